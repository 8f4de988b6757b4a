"""Checks the clients on this machine: starts the server as each of them would.

The user's own files may name any program. A project's file comes with the project, or from a guest that may write
there, so only what `kernelmcp install` writes is started from it.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import anyio
from mcp import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from kernelmcp.commands.install import configure
from kernelmcp.commands.install.clients import CLIENTS, Client, Places, Scope
from kernelmcp.commands.install.entry import FOLDER_OPTION, NAME, Entry, address_of, command_of, folder_of, variables_of
from kernelmcp.commands.terminal import plain
from kernelmcp.config.client_files import NESTED_VARIABLE
from kernelmcp.errors import ConfigurationError
from kernelmcp.output.sanitize import counted

START_SECONDS = 60.0
_MAX_LOG_CHARS = 1_000_000
# The tried server starts no kernels and none of the user's other MCP servers.
_TRIAL = {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0", NESTED_VARIABLE: "1"}


async def states(places: Places) -> dict[str, str]:
    """The state of each installed client, and of the project in the working folder, with advice."""
    found: dict[str, str] = {}

    async def look(title: str, name: str, scope: Scope) -> None:
        found[title] = await _state(name, scope, places)

    async with anyio.create_task_group() as tasks:
        for name, client in CLIENTS.items():
            in_project = _has_project_entry(client, places)
            if client.is_here(places) and not (in_project and not _has_entry(client, client.file("user", places))):
                found[client.title] = ""  # keeps the order
                tasks.start_soon(look, client.title, name, "user")
            if in_project:
                title = f"{client.title}, {client.project}"
                found[title] = ""
                tasks.start_soon(look, title, name, "project")
    return found


def _has_project_entry(client: Client, places: Places) -> bool:
    try:
        file = client.file("project", places)
        if file.absolute() == client.user(places).absolute():  # the working folder is the user's home
            return False
    except (ConfigurationError, OSError):
        return False
    return _has_entry(client, file)


def _has_entry(client: Client, file: Path) -> bool:
    try:
        return configure.entry_in(client, configure.read(file)) is not None
    except (OSError, ValueError, RecursionError):
        return False


async def _state(name: str, scope: Scope, places: Places) -> str:
    client = CLIENTS[name]
    file = client.file(scope, places)
    repair = f"`kernelmcp install {name}{' --scope project' if scope == 'project' else ''}`"
    try:
        ours = configure.entry_in(client, configure.read(file))
        if ours is None:
            return f"not set up in {file}; {repair} adds it"
        if (address := address_of(ours)) is not None:
            return f"connects to {plain(address)}; not tried ({file})"
        if scope == "project" and not _is_as_installed(client, ours, places):
            return f"not tried: a project may name any program, and this is not what {repair} writes ({file})"
        told = _obstacle(client, ours, repair) or await _trial(command_of(ours), variables_of(ours))
    except (OSError, ValueError, RuntimeError, ConfigurationError) as exc:
        return f"{file} cannot be used: {plain(exc)}"
    return f"{told} ({file})"


def _is_as_installed(client: Client, ours: Entry, places: Places) -> bool:
    wanted = configure.entry_for(client, {}, None, "project", places.environ)
    command, folder = command_of(wanted), folder_of(ours)
    named = [] if folder is None else [[FOLDER_OPTION, folder], [f"{FOLDER_OPTION}={folder}"]]
    is_same = command_of(ours) in [command, *([*command, *option] for option in named)]
    return is_same and variables_of(ours) == variables_of(wanted)


def _obstacle(client: Client, ours: Entry, repair: str) -> str | None:
    """An obstacle that is visible without starting the server. Raises ValueError, RuntimeError."""
    program, folder = command_of(ours)[0], folder_of(ours)
    if shutil.which(program) is None:
        return f"does not start: {plain(program)} does not exist; {repair} repairs the entry"
    if folder is not None and not Path(folder).expanduser().is_dir():
        advice = "create it, or install again with another --folder"
        return f"does not start: the folder {plain(folder)} does not exist; {advice}"
    if client.sandboxes and ours.get("sandboxEnabled") and sys.platform == "linux":
        return "starts no kernels: sandboxEnabled forbids the Unix sockets that they need; set it to false"
    return None


async def _trial(command: list[str], variables: dict[str, str]) -> str:
    """Start the server with few variables of this process, like a client, and list its tools."""
    server = StdioServerParameters(command=command[0], args=command[1:], env={**variables, **_TRIAL})
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            with anyio.fail_after(START_SECONDS):
                async with McpClient(stdio_client(server, errlog=log)) as client:
                    tools = (await client.list_tools()).tools
        except TimeoutError:
            return f"does not answer within {START_SECONDS:.0f} s"
        except (MCPError, OSError, ExceptionGroup):
            log.seek(0)
            lines = log.read(_MAX_LOG_CHARS).splitlines() or ["it said nothing"]
            reason = next((line for line in lines if line.startswith(f"{NAME}: ")), lines[-1])
            return f"does not start: {plain(reason.removeprefix(f'{NAME}: '))}"
    return f"works: starts and lists {counted(len(tools), 'tool')}"
