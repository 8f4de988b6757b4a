"""`kernelmcp install CLIENT`: adds the server to a client's configuration, or removes it, and keeps everything else.

The file is edited as text, so comments, order and spacing of the rest stay. A change that would alter the meaning of
anything else is rejected. Inside WSL, desktop programs are those of Windows.
"""

import json
import os
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.commands.install import entry, json_edit, toml_edit
from kernelmcp.commands.install.clients import CLIENTS, Client, Places, Scope
from kernelmcp.commands.setup import OFFER
from kernelmcp.commands.terminal import fail
from kernelmcp.config.client_files import MAX_BYTES, loads_with_comments
from kernelmcp.config.load import load
from kernelmcp.config.settings import home_directory
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.volumes import SHARED_INSIDE, check_volumes
from kernelmcp.output.sanitize import as_dict

SERVER_NAME = "kernelmcp"
HOME_VARIABLE = "KERNELMCP_HOME"
# If the client writes the file meanwhile.
TRIES = 3
Config = dict[str, Any]
_BOM = "\ufeff"


def main(name: str, *, dry_run: bool, folder: str | None = None, uninstall: bool = False, scope: Scope = "user") -> int:
    """Raises `ConfigurationError` for a folder that guests must not have, and for a scope that the client lacks."""
    client, places = CLIENTS[name], Places()
    file = client.file(scope, places)
    path = None if folder is None or uninstall else _folder(folder)
    for _ in range(TRIES):
        try:
            old = read(file)
            new = without(client, old) if uninstall else merged(client, old, path, scope)
        except (ValueError, RecursionError) as exc:
            return fail(f"{file} was not changed: {exc}. Correct it and try again.")
        except OSError as exc:
            return fail(f"{file} cannot be read: {exc.strerror or exc}.")
        if dry_run:
            sys.stdout.write(
                f"# would write {file}\n{new.removeprefix(_BOM)}" if new else f"# would leave {file} as it is\n"
            )
            return 0
        try:
            if path is not None:
                path.mkdir(parents=True, exist_ok=True)
            if new is None or _replace(file, new, old):
                break
        except OSError as exc:
            return fail(f"{exc.filename or file} cannot be written: {exc.strerror or exc}.")
    else:
        return fail(f"{file} was not changed: another program is writing it. End {client.title} and try again.")
    if uninstall:
        sys.stdout.write(_removed(client, file, old) if new else f"{file} has no server of this name.\n")
    else:
        sys.stdout.write(_added(client, file, path, scope) if new else f"{file} has the server already.\n")
    return 0


def _added(client: Client, file: Path, folder: Path | None, scope: Scope) -> str:
    use = f"Put files for it into {folder}: code reads and writes them in {SHARED_INSIDE}.\n" if folder else ""
    shared = "The entry has paths of this machine: others who use the project need their own.\n"
    return (
        f"Added {SERVER_NAME} to {file}. Restart {client.title} to use it.\n{use}"
        f"{shared if scope == 'project' else ''}{OFFER}\n"
    )


def _removed(client: Client, file: Path, old: str | None) -> str:
    try:
        folder = entry.folder_of(entry_in(client, old) or {})
    except ValueError:
        folder = None
    kept = f"Your folder {folder} is unchanged.\n" if folder else ""
    return f"Removed {SERVER_NAME} from {file}. Restart {client.title} to finish removing it.\n{kept}"


# -- contents -------------------------------------------------------------------------------------------------------


def merged(
    client: Client,
    text: str | None,
    folder: Path | None = None,
    scope: Scope = "user",
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """The configuration with our entry; None if it already has it. Raises ValueError if the text is not a
    configuration."""
    config = _parsed(client, text)
    keys, table = _servers(client, config)
    ours: Any = table.get(SERVER_NAME, {})
    if not isinstance(ours, dict):
        raise ValueError(f'its "{".".join([*keys, SERVER_NAME])}" must be an object')
    old = cast("Config", ours)
    new = entry_for(client, old, folder, scope, environ)
    if new == ours:
        return None
    table[SERVER_NAME] = new
    if client.format == "toml":
        made = toml_edit.with_entry(text or "", keys[0], SERVER_NAME, old or None, new)
    elif not old:
        made = json_edit.with_member(text or "", (*keys, SERVER_NAME), new)
    else:
        made = text or ""
        for key, value in new.items():
            if key not in old or old[key] != value:
                made = json_edit.with_member(made, (*keys, SERVER_NAME, key), value)
    return _checked(client, made, config)


def entry_for(
    client: Client, old: Config, folder: Path | None, scope: Scope, environ: Mapping[str, str] = os.environ
) -> Config:
    """The entry that starts this installation's server, with what else is in the old one. Raises ValueError for one
    that is not a server of ours."""
    # Resolved like in the server: a client starts it in another working directory.
    variables = {HOME_VARIABLE: str(home_directory(None, environ))} if environ.get(HOME_VARIABLE) else {}
    command = entry.launcher(environ)
    if client.desktop and scope == "user" and Places(environ).in_wsl:
        command = entry.through_wsl(command, environ.get("WSL_DISTRO_NAME"), variables)
        variables = {}
    return entry.updated(old, client, command, folder, variables)


def without(client: Client, text: str | None) -> str | None:
    """The configuration without our entry; None if it has none. Raises ValueError as `merged` does."""
    config = _parsed(client, text)
    keys, table = _servers(client, config)
    if text is None or SERVER_NAME not in table:
        return None
    del table[SERVER_NAME]
    if client.format == "toml":
        made = toml_edit.without_entry(text, keys[0], SERVER_NAME)
        if not table and keys[0] not in _loaded(client, made):
            del config[keys[0]]
    else:
        made = json_edit.without_member(text, (*keys, SERVER_NAME))
    return _checked(client, made, config)


def entry_in(client: Client, text: str | None) -> Config | None:
    """Our entry. Raises ValueError if the text is not a configuration."""
    ours: Any = _servers(client, _parsed(client, text))[1].get(SERVER_NAME)
    return as_dict(ours) if isinstance(ours, dict) else None


def _checked(client: Client, text: str, wanted: Config) -> str:
    """Raises ValueError if anything else changed: a bug in the edit, or a format that it does not know."""
    try:
        right = _loaded(client, text) == wanted
    except ValueError:
        right = False
    if not right:
        raise ValueError(f"it is written in a form that cannot be changed safely; see {client.page}")
    return text


def _servers(client: Client, config: Config) -> tuple[tuple[str, ...], Config]:
    """The keys that lead to the table of servers, and the table itself, which is created if it is missing."""
    keys, found = client.keys, config
    if client.one_list and _is_table_of_servers(config.get(keys[0])):
        keys = (*keys, "servers")
    for key in keys:
        inner: Any = found.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f'its "{key}" must be an object')
        found = cast("Config", inner)
    return keys, found


def _is_table_of_servers(found: Any) -> bool:
    """True if `mcp` has the form of OpenCode 2, `mcp.servers`, and is not a server with that name."""
    inner = as_dict(found).get("servers")
    return isinstance(inner, dict) and not {"type", "command", "url", "enabled"} & as_dict(inner).keys()


def _parsed(client: Client, text: str | None) -> Config:
    config: Any = _loaded(client, text) if text and text.strip() else {}
    if not isinstance(config, dict):
        raise ValueError("it must be an object")
    return cast("Config", config)


def _loaded(client: Client, text: str) -> Any:
    match client.format:
        case "toml":
            return tomllib.loads(text.replace("\r\n", "\n"))
        case "jsonc":
            return loads_with_comments(text)
        case _:
            return json.loads(text)


# -- the disk -------------------------------------------------------------------------------------------------------


def _folder(text: str) -> Path:
    """The user's folder, which need not exist yet. Raises `ConfigurationError` if a server would reject it."""
    settings = load(overrides={"volumes": {"default_volume": text if text.startswith("~") else os.path.abspath(text)}})
    folder = settings.config.volumes.default_volume
    try:
        check_volumes(settings, there=False)
        usable = folder is not None and (os.path.isdir(folder) or not os.path.lexists(folder))
    except RuntimeError:  # circular links
        usable = False
    if folder is None or not usable:
        raise ConfigurationError(f"{text!r} is not a folder", "Name an existing folder, or one that can be created.")
    return folder


def read(file: Path) -> str | None:
    try:
        return read_small(file, MAX_BYTES).decode("utf-8").removeprefix(_BOM)
    except FileNotFoundError:
        return None


def _replace(file: Path, text: str, old: str | None) -> bool:
    """Replace it completely or not at all, and keep a backup beside it. Keeps a link and a byte order mark. Returns
    False if it no longer has the old text."""
    try:
        file = file.resolve()
    except RuntimeError as exc:  # until Python 3.12: circular links
        raise OSError(None, str(exc), str(file)) from exc
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600
    if old is not None:
        mode = stat.S_IMODE(file.stat().st_mode)
        with file.open("rb") as stream:
            mark = _BOM if stream.read(3) == _BOM.encode() else ""
        replace_text(file.with_name(f"{file.name}.bak"), mark + old, mode=mode)
        text = mark + text
    if not _has(file, old):
        return False
    replace_text(file, text, mode=mode)
    return True


def _has(file: Path, text: str | None) -> bool:
    try:
        return read(file) == text
    except ValueError:  # a part of a character
        return False
