"""`kernelmcp replay`: runs the code cells of a local notebook in a session, using its own server.

Outputs are shown as a model would see them, and the session is kept: `kernelmcp` and JupyterLab can continue it. The
notebook is treated as hostile input; its code runs only in the sandbox.
"""

import os
import re
import sys
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, Implementation, TextContent

from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError, ServerError
from kernelmcp.mcp_server.results.structured import RESULT_KEY
from kernelmcp.notebook.code_cells import MAX_NOTEBOOK_BYTES, CodeCell, code_cells
from kernelmcp.output.sanitize import as_dict, for_terminal
from kernelmcp.preflight import check_start
from kernelmcp.process_start import python_command
from kernelmcp.version import __version__

MAX_NAME_CHARS = 64
# Time that one answer waits for a running cell.
WAIT_SECONDS = 30


class ReplayFailed(Exception):
    """The text is for the person who runs it."""


def main(notebook: Path, session_id: str | None, config: Path | None = None, policy: Path | None = None) -> int:
    """Returns 0 if all cells ran, 1 if one failed. Raises `ConfigurationError` before anything starts."""
    check_start(load(config, policy))
    cells = _read(notebook)
    name = session_id if session_id is not None else name_of(notebook)
    arguments = ["serve", "--log-level", "error"]
    for option, file in (("--config", config), ("--policy", policy)):
        arguments += [option, str(file)] if file is not None else []
    try:
        return anyio.run(_replay, cells, name, arguments)
    except (ReplayFailed, BaseExceptionGroup) as exc:
        found = exc.split(ReplayFailed)[0] if isinstance(exc, BaseExceptionGroup) else exc
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        sys.stderr.write(f"kernelmcp: {for_terminal(str(found))}\n")
        return 1


def name_of(notebook: Path) -> str:
    """A session's name derived from the notebook's: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", notebook.stem).strip("-.")[:MAX_NAME_CHARS] or "notebook"


def _read(notebook: Path) -> list[CodeCell]:
    try:
        with notebook.open("rb") as stream:
            data = stream.read(MAX_NOTEBOOK_BYTES + 1)
    except OSError as exc:
        raise ConfigurationError(f"{notebook} cannot be read: {exc.strerror}", "Give an .ipynb file.") from exc
    try:
        return code_cells(data, str(notebook))
    except ServerError as exc:
        raise ConfigurationError(exc.message, *exc.suggestions) from exc


async def _replay(cells: list[CodeCell], session_id: str, arguments: list[str]) -> int:
    python, *options = python_command("kernelmcp", *arguments)
    server = StdioServerParameters(command=python, args=options, env=dict(os.environ))
    me = Implementation(name="kernelmcp-replay", version=__version__)
    async with Client(server, client_info=me) as client:
        for number, cell in enumerate(cells, 1):
            status, text = await _run(client, session_id, cell.code)
            sys.stdout.write(f"[{number}/{len(cells)}] {for_terminal(_first_line(cell.code))}\n")
            if text != "(no output)":
                sys.stdout.write(f"{for_terminal(text)}\n")
            sys.stdout.flush()
            if status != "ok" and not (status == "error" and cell.may_fail):
                left = len(cells) - number
                sys.stderr.write(
                    f"kernelmcp: cell {number} of {len(cells)} ended with {status!r}"
                    f"{f'; {left} did not run' if left else ''}. The session is {session_id!r}.\n"
                )
                return 1
    sys.stderr.write(
        f"kernelmcp: all {len(cells)} code cells ran. Their files are kept in session {session_id!r}, their variables "
        f"are not: create_session(from_notebook='kernelmcp://sessions/{session_id}/notebook') runs them again.\n"
    )
    return 0


async def _run(client: Client, session_id: str, code: str) -> tuple[str, str]:
    """The status of the cell, and its text. Raises `ReplayFailed` if the server rejects it."""
    result = await client.call_tool("execute_code", {"code": code, "session_id": session_id})
    while True:
        text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
        fields = _fields(result, text)
        if fields["status"] != "running":
            return str(fields["status"]), text
        more = {"execution_id": fields["execution_id"], "wait_seconds": WAIT_SECONDS}
        result = await client.call_tool("get_execution", more)


def _fields(result: CallToolResult, text: str) -> dict[str, object]:
    fields = as_dict((result.meta or {}).get(RESULT_KEY))
    if "status" not in fields:
        raise ReplayFailed(text)
    return fields


def _first_line(code: str) -> str:
    first, *more = code.strip().splitlines()
    return first[:100] + (" ..." if more or len(first) > 100 else "")
