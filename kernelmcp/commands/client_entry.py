"""How an MCP client starts the server: the entry in its configuration.

A desktop application has no shell and not the shell's PATH, so programs have their full paths. What the user has added
to the server's arguments stays. Must not know where a client's configuration is.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, cast

from kernelmcp.process_start import python_command

NAME = "kernelmcp"
Entry = dict[str, Any]
# Folders of uv's cache, in which uvx makes environments that `uv cache clean` deletes.
_EPHEMERAL = re.compile(r"(archive|environments|builds)-v\d+")
# How the package is named to uvx and its like: kernelmcp==0.1, kernelmcp[otel], kernelmcp@latest.
_REQUIREMENT = re.compile(rf"{NAME}(\[[^\]]*\])?([=@<>~!].*)?")
FOLDER_OPTION = "--folder"


def launcher(environ: Mapping[str, str] = os.environ, prefix: str = sys.prefix) -> list[str]:
    """The command that starts this installation's server, without arguments for it."""
    if any(_EPHEMERAL.fullmatch(part) for part in Path(prefix).parts):
        return [_uvx(environ), *_source(), NAME]
    script = Path(sys.executable).with_name(NAME)
    if script.exists():
        return [str(script)]
    return python_command(NAME)


def through_wsl(command: list[str], distribution: str | None) -> list[str]:
    """The same for a program on Windows. `--exec`: no shell reads what is in a path."""
    named = ["--distribution", distribution] if distribution else []
    return ["wsl.exe", *named, "--exec", *command]


def updated(old: Entry, command: list[str], folder: Path | None) -> Entry:
    """The entry with this command. What else is in it stays, and so do the arguments that are the server's.

    Raises ValueError for an entry that no client would understand.
    """
    arguments = _servers_arguments(old)
    if folder is not None:
        arguments = [*_without_folder(arguments), FOLDER_OPTION, str(folder)]
    return {**old, "command": command[0], "args": [*command[1:], *arguments]}


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
    """The arguments of an entry that are the server's, and not those of what starts it: Python, uvx, wsl.exe."""
    command, found = entry.get("command", NAME), entry.get("args", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in cast("list[Any]", found)):
        raise ValueError(f'"args" of "{NAME}" must be a list of texts')
    arguments = cast("list[str]", found)
    if isinstance(command, str) and _is_ours(command):
        return arguments
    for place, argument in enumerate(arguments):
        # A folder may have our name, and `uvx --from kernelmcp kernelmcp` has it twice.
        following = arguments[place + 1 : place + 2]
        if _is_ours(argument) and all(one == "serve" or one.startswith("-") for one in following):
            return arguments[place + 1 :]
    return arguments


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
    """uv tells what it starts where it is itself."""
    uv = environ.get("UV")
    beside = Path(uv).with_name("uvx") if uv else None
    if beside is not None and beside.exists():
        return str(beside)
    return shutil.which("uvx", path=environ.get("PATH")) or "uvx"


def _source() -> list[str]:
    """Where uvx is to take the package from when that is no index: another package there may have our name."""
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
