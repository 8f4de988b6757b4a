"""The entry in an MCP client's configuration that starts the server.

A desktop application has no shell and lacks the shell's PATH, so programs have full paths. Arguments that the user
added stay. Must not know where a client's configuration is, nor its syntax.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, cast

from kernelmcp.commands.install.clients import Client
from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.home import runtime_root_of
from kernelmcp.output.sanitize import as_dict, as_list
from kernelmcp.process_start import python_command

NAME = "kernelmcp"
Entry = dict[str, Any]
# Folders of uv's cache in which uvx creates environments; `uv cache clean` deletes them.
_EPHEMERAL = re.compile(r"(archive|environments|builds)-v\d+")
# An environment of `pipx run`, which deletes it when it is two weeks old.
_PIPX_RUN = re.compile(r".*/(pipx|\.cache)/[0-9a-f]{15}")
# Forms of the package's name for uvx and similar programs: kernelmcp==0.1, kernelmcp[otel], kernelmcp@latest.
_REQUIREMENT = re.compile(rf"{NAME}(\[[^\]]*\])?([=@<>~!].*)?")
FOLDER_OPTION = "--folder"
# What the server's own arguments begin with, unlike a launcher's and other programs' (cli.py).
_FIRST = frozenset(
    ["serve", "--config", "--folder", "--host", "--insecure", "--log-level", "--policy", "--port", "--transport"]
)
# The clients' names for it.
_ADDRESSES = ("url", "serverUrl", "httpUrl")
# What uv would choose by itself may be older than kernelmcp needs on macOS (cli.ON_OLD_MACOS).
_PYTHON = ("--python", ">=3.13") if sys.platform == "darwin" else ()


def launcher(environ: Mapping[str, str] = os.environ, prefix: str = sys.prefix) -> list[str]:
    """The command that starts this installation's server, without the server's arguments. Raises `ConfigurationError`
    for an installation that will not stay."""
    if _PIPX_RUN.fullmatch(prefix):
        raise ConfigurationError(
            "this installation is deleted after two weeks", "Install it with `pipx install`, then run this command."
        )
    if any(_EPHEMERAL.fullmatch(part) for part in Path(prefix).parts):
        return [_uvx(environ), *_PYTHON, *_source(), NAME]
    script = Path(sys.executable).with_name(NAME)
    if script.exists():
        return [str(script)]
    return python_command(NAME)


def through_wsl(command: list[str], distribution: str | None, variables: Mapping[str, str]) -> list[str]:
    """The same for a program on Windows, whose variables are not passed to WSL. `--exec`: no shell interprets a
    path."""
    named = ["--distribution", distribution] if distribution else []
    assigned = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    return ["wsl.exe", *named, "--exec", *assigned, *command]


def updated(old: Entry, client: Client, command: list[str], folder: Path | None, variables: dict[str, str]) -> Entry:
    """The entry with this command. Everything else in it stays, including the server's arguments.

    Raises ValueError for an entry that no client would understand, and for one that is no server of ours.
    """
    if address_of(old) is not None:
        raise ValueError(f'its "{NAME}" connects to an address: remove it first, with --uninstall')
    command_before, arguments = _parts(old)
    start = _servers_start(command_before, arguments)
    if start is None:
        raise ValueError(f'its "{NAME}" starts another program, {command_before}: remove it first, with --uninstall')
    arguments = arguments[start:]
    if folder is not None:
        arguments = [*_without_folder(arguments), FOLDER_OPTION, str(folder)]
    new: Entry = {**client.fixed, **old}
    if client.one_list:
        new["command"] = [*command, *arguments]
    else:
        new |= {"command": command[0], "args": [*command[1:], *arguments]}
    if variables:
        key = "environment" if client.one_list else "env"
        new[key] = {**as_dict(old.get(key)), **variables}
    if client.sandboxes:
        new["sandbox"] = _sandbox(as_dict(old.get("sandbox")), folder_of(new), new.get("env", {}))
    return new


def command_of(entry: Entry) -> list[str]:
    """The program and its arguments. Raises ValueError if there is none."""
    found: Any = entry.get("command")
    parts = cast("list[Any]", found if isinstance(found, list) else [found, *as_list(entry.get("args"))])
    if not parts or not all(isinstance(one, str) for one in parts):
        raise ValueError(f'"{NAME}" names no program')
    return parts


def address_of(entry: Entry) -> str | None:
    """Where an entry connects to, if it starts no server."""
    return next((str(entry[key]) for key in _ADDRESSES if key in entry), None)


def variables_of(entry: Entry) -> dict[str, str]:
    found = as_dict(entry.get("env")) or as_dict(entry.get("environment"))
    return {name: str(value) for name, value in found.items()}


def _sandbox(old: Entry, folder: str | None, variables: Mapping[str, str]) -> Entry:
    """The folders that the server writes, in case the user has the client sandbox it.

    `sandboxEnabled` stays the user's choice: with it VS Code no longer asks before it calls a tool, and on Linux it
    forbids the Unix sockets of the kernels (sandbox-runtime 0.0.78: tools are listed, no kernel starts).
    """
    settings = load(environ={**os.environ, **variables})
    filesystem = as_dict(old.get("filesystem"))
    places = [settings.home, runtime_root_of(settings.config.server.runtime), Path(tempfile.gettempdir())]
    wanted = [str(place) for place in places] + ([folder] if folder else [])
    allowed = list(dict.fromkeys([*as_list(filesystem.get("allowWrite")), *wanted]))
    return {**old, "filesystem": {**filesystem, "allowWrite": allowed}}


def folder_of(entry: Entry) -> str | None:
    """The user's folder that the entry names."""
    arguments = _servers_arguments(entry)
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{FOLDER_OPTION}="):
            return argument.partition("=")[2]
        if argument == FOLDER_OPTION and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _servers_arguments(entry: Entry) -> list[str]:
    """The server's own arguments in an entry, without those of its launcher: Python, uvx, wsl.exe."""
    command, arguments = _parts(entry)
    return arguments[_servers_start(command, arguments) or 0 :]


def _parts(entry: Entry) -> tuple[Any, list[str]]:
    """The program and its arguments. Raises ValueError for arguments that no client would understand."""
    found: Any = entry.get("command", NAME)
    if isinstance(found, list):
        command, arguments = (cast("list[Any]", found) or [NAME])[0], cast("list[Any]", found)[1:]
    else:
        command, arguments = found, entry.get("args", [])
    if isinstance(command, dict):
        raise ValueError(f'its "{NAME}" has an object as its command: remove it first, with --uninstall')
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in cast("list[Any]", arguments)):
        raise ValueError(f'the arguments of "{NAME}" must be a list of strings')
    return command, cast("list[str]", arguments)


def _servers_start(command: Any, arguments: list[str]) -> int | None:
    """The place of the server's first argument. None if another program is started."""
    if isinstance(command, str) and _is_ours(command):
        return 0
    for place, argument in enumerate(arguments):
        # A folder may have our name, and `uvx --from kernelmcp kernelmcp` contains it twice.
        if _is_ours(argument) and _may_be_servers(arguments[place + 1 :]):
            return place + 1
    return None


def _may_be_servers(arguments: list[str]) -> bool:
    if not arguments:
        return True
    first = arguments[0].partition("=")[0]
    begun = [one for one in _FIRST if first.startswith("--") and one.startswith(first)]
    return first in _FIRST or len(begun) == 1  # argparse takes the beginning of one


def _is_ours(argument: str) -> bool:
    name = PurePosixPath(argument.replace("\\", "/")).name
    return name in (NAME, f"{NAME}.exe") or bool(_REQUIREMENT.fullmatch(argument))


def _without_folder(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument.startswith(f"{FOLDER_OPTION}="):
            skip = False
        elif argument == FOLDER_OPTION:
            skip = True
        else:
            kept.append(argument)
    return kept


def _uvx(environ: Mapping[str, str]) -> str:
    """The path of uvx. uv tells the programs that it starts where it is."""
    uv = environ.get("UV")
    beside = Path(uv).with_name("uvx") if uv else None
    if beside is not None and beside.exists():
        return str(beside)
    return shutil.which("uvx", path=environ.get("PATH")) or "uvx"


def _source() -> list[str]:
    """The source for uvx if it is not an index, where another package may have our name."""
    try:
        found: Any = json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return []
    url = str(found.get("url", ""))
    if not url:
        return []
    vcs: dict[str, str] = found.get("vcs_info") or {}
    if vcs:
        revision = vcs.get("requested_revision") or vcs.get("commit_id")
        url = f"{vcs.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")
    return ["--from", url]
