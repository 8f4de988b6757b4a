"""`kernelmcp install claude-desktop`: adds the server to the client's configuration and keeps what is there.

Inside WSL that is the configuration of the client on Windows. `--uninstall` takes the server out again.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.commands import client_entry
from kernelmcp.commands.setup import OFFER
from kernelmcp.config.load import load
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.volumes import SHARED_INSIDE, check_volumes

SERVER_NAME = "kernelmcp"
Config = dict[str, Any]
WINDOWS_SECONDS = 20.0
_INTEROP = Path("/proc/sys/fs/binfmt_misc/WSLInterop")


def main(
    client: str, *, dry_run: bool, folder: str | None = None, uninstall: bool = False, file: Path | None = None
) -> int:
    """Raises `ConfigurationError` for a folder that guests must not have."""
    file = file or config_file()
    path = None if folder is None or uninstall else _folder(folder)
    try:
        old = _read(file)
        new = without(old) if uninstall else merge(old, path)
    except (ValueError, RecursionError) as exc:
        return _say_no(f"{file} was left alone: {exc}. Correct it and try again.")
    except OSError as exc:
        return _say_no(f"{file} cannot be read: {exc.strerror or exc}.")
    if dry_run:
        sys.stdout.write(f"# would write {file}\n{new}" if new else f"# would leave {file} as it is\n")
        return 0
    try:
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
        if new is not None:
            _replace(file, new, old)
    except OSError as exc:
        return _say_no(f"{exc.filename or file} cannot be written: {exc.strerror or exc}.")
    title = client.replace("-", " ").title()
    if uninstall:
        sys.stdout.write(_removed(file, old, title) if new else f"{file} has no server of this name.\n")
    else:
        sys.stdout.write(_added(file, title, path) if new else f"{file} has the server already.\n")
    return 0


def _added(file: Path, title: str, folder: Path | None) -> str:
    use = f"Put files for it into {folder}: code reads and writes them in {SHARED_INSIDE}.\n" if folder else ""
    return f"Added {SERVER_NAME} to {file}. Restart {title} to use it.\n{use}{OFFER}\n"


def _removed(file: Path, old: str | None, title: str) -> str:
    folder = _folder_in(old)
    kept = f"Your folder {folder} is as it was.\n" if folder else ""
    return f"Removed {SERVER_NAME} from {file}. Restart {title} to be rid of it.\n{kept}"


def _say_no(text: str) -> int:
    sys.stderr.write(f"kernelmcp: {text}\n")
    return 1


# -- where it is ----------------------------------------------------------------------------------------------------


def config_file(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> Path:
    """Where Claude Desktop reads its configuration. Raises `ConfigurationError` when Windows does not say."""
    if platform == "darwin":
        base = Path(environ.get("HOME", "~")).expanduser() / "Library" / "Application Support"
    elif inside_wsl(environ):
        base = _windows_settings(environ)
    else:
        base = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")
    return base / "Claude" / "claude_desktop_config.json"


def inside_wsl(environ: Mapping[str, str] = os.environ) -> bool:
    return "WSL_DISTRO_NAME" in environ or _INTEROP.exists()


def _windows_settings(environ: Mapping[str, str]) -> Path:
    """Windows' APPDATA as a path of Linux: what the variable says here, else what Windows says."""
    path = environ.get("APPDATA", "")
    try:
        if not path:
            shell = shutil.which("cmd.exe", path=environ.get("PATH")) or "/mnt/c/Windows/System32/cmd.exe"
            # /u: in UTF-16, whatever the user is called. It complains about a working directory that is Linux's.
            said = _run([shell, "/d", "/u", "/c", "echo %APPDATA%"], Path(shell).parent).decode("utf-16-le")
            path = said.strip().removeprefix("\ufeff")
        if ":" in path[:2]:
            path = _run(["wslpath", "-u", path], Path("/")).decode().removesuffix("\n")
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise ConfigurationError(f"Windows does not say where its settings are: {exc}", _APPDATA_ADVICE) from exc
    if not path.startswith("/") or not Path(path).is_dir():
        raise ConfigurationError(f"Windows' settings are not at {path!r}", _APPDATA_ADVICE)
    return Path(path)


_APPDATA_ADVICE = "Say it: APPDATA=/mnt/c/Users/YOU/AppData/Roaming kernelmcp install claude-desktop"


def _run(command: list[str], folder: Path) -> bytes:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WINDOWS_SECONDS, check=True, cwd=folder
    ).stdout


def state(file: Path | None = None) -> str:
    """Whether the client can start the server, for `kernelmcp doctor`: in words, with what to do."""
    try:
        file = file or config_file()
        text = _read(file)
        ours: Any = _parsed(text)["mcpServers"].get(SERVER_NAME)
        folder = client_entry.folder_of(cast("Config", ours)) if isinstance(ours, dict) else None
    except (ConfigurationError, OSError, ValueError, RecursionError) as exc:
        return f"{file or 'its configuration'} cannot be used: {exc}"
    if not isinstance(ours, dict):
        return f"not set up in {file}; `kernelmcp install claude-desktop` does it"
    command = str(cast("Config", ours).get("command"))
    if shutil.which(command) is None:
        return f"{file} names {command}, which is not there; `kernelmcp install claude-desktop` mends it"
    if folder is not None and not Path(folder).expanduser().is_dir():
        return f"{file} names the folder {folder}, which is not there; make it, or install with another --folder"
    return f"set up in {file}"


# -- what is in it --------------------------------------------------------------------------------------------------


def entry(environ: Mapping[str, str] = os.environ) -> client_entry.Entry:
    """The server as the client is to start it."""
    return client_entry.updated({}, _command(environ), None)


def _command(environ: Mapping[str, str]) -> list[str]:
    command = client_entry.launcher(environ)
    if sys.platform == "linux" and inside_wsl(environ):
        return client_entry.through_wsl(command, environ.get("WSL_DISTRO_NAME"))
    return command


def merge(text: str | None, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The configuration with our entry in it; None when it is there already. Raises ValueError when the text is not a
    configuration."""
    config = _parsed(text)
    ours: Any = config["mcpServers"].get(SERVER_NAME, {})
    if not isinstance(ours, dict):
        raise ValueError(f'its "mcpServers.{SERVER_NAME}" must be a JSON object')
    new = client_entry.updated(cast("Config", ours), _command(environ), folder)
    if new == ours:
        return None
    config["mcpServers"][SERVER_NAME] = new
    return _to_text(config)


def without(text: str | None) -> str | None:
    """The configuration without our entry; None when it has none. Raises ValueError as `merge` does."""
    config = _parsed(text)
    if SERVER_NAME not in config["mcpServers"]:
        return None
    del config["mcpServers"][SERVER_NAME]
    return _to_text(config)


def _parsed(text: str | None) -> Config:
    config: Any = json.loads(text) if text and text.strip() else {}
    if not isinstance(config, dict) or not isinstance(cast("Config", config).setdefault("mcpServers", {}), dict):
        raise ValueError('it must be a JSON object, and its "mcpServers" one too')
    return cast("Config", config)


def _to_text(config: Config) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _folder_in(text: str | None) -> str | None:
    try:
        return client_entry.folder_of(_parsed(text)["mcpServers"][SERVER_NAME])
    except (ValueError, KeyError, AttributeError):
        return None


# -- the disk -------------------------------------------------------------------------------------------------------


def _folder(text: str) -> Path:
    """The user's folder, which need not be there yet. Raises `ConfigurationError` when a server would refuse it."""
    settings = load(overrides={"volumes": {"default_volume": text if text.startswith("~") else os.path.abspath(text)}})
    folder = settings.config.volumes.default_volume
    try:
        check_volumes(settings, there=False)
        usable = folder is not None and (folder.is_dir() or not os.path.lexists(folder))
    except RuntimeError:  # links in a circle
        usable = False
    if folder is None or not usable:
        raise ConfigurationError(f"{text!r} is not a folder", "Name a folder, or one that can be made.")
    return folder


def _read(file: Path) -> str | None:
    try:
        return read_small(file).decode("utf-8-sig")
    except FileNotFoundError:
        return None


def _replace(file: Path, text: str, old: str | None) -> None:
    """As a whole or not at all, with the old one beside it. A link stays a link."""
    try:
        file = file.resolve()
    except RuntimeError as exc:  # until Python 3.12: links in a circle
        raise OSError(None, str(exc), str(file)) from exc
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600
    if old is not None:
        mode = stat.S_IMODE(file.stat().st_mode)
        replace_text(file.with_name(f"{file.name}.bak"), old, mode=mode)
    replace_text(file, text, mode=mode)
