"""`kernelmcp lab`: checks its requirements, takes the lock of this home's Lab, and becomes JupyterLab."""

import json
import os
import secrets
import socket
import stat
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.commands.terminal import fail
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.home import private_directory, runtime_root_of
from kernelmcp.files.locks import Lock
from kernelmcp.lab.descriptors import Descriptors

# The same as in pyproject.toml, whose test compares them.
NEEDS = {
    "jupyterlab": ">=4.6,<4.7",
    "jupyter-collaboration": ">=5.0,<5.1",
    "jupyter-server": ">=2.20,<3",
    "jupyter-server-ydoc": ">=3.0.4,<3.1",
    "jupyterlab-widgets": ">=3,<4",
    "nh3": ">=0.3.2",
}
INSTALL = "pip install " + " ".join(f"'{name}{wanted}'" for name, wanted in NEEDS.items())
TOKEN_BYTES = 24


def main(settings: Settings, *, port: int | None, open_browser: bool) -> int:
    """Returns status 0 after it was ended, 1 if another one is open. Raises `ConfigurationError`."""
    _check_versions()
    home, runtime_root = settings.home.absolute(), runtime_root_of(settings.config.server.runtime).absolute()
    _check_ours(home, "server.home (KERNELMCP_HOME)")
    _check_ours(runtime_root, "server.runtime (KERNELMCP_SERVER__RUNTIME)")
    lab = home / "lab"
    for folder in (lab, lab / "state"):
        private_directory(folder)
    if port is not None:
        _check_port(port)
    lock, address = Lock(lab / "lock"), lab / "state" / "address.json"
    if not lock.try_acquire():
        lock.close()
        return fail(f"JupyterLab is already open for {home}: {_address_in(address)}")
    from kernelmcp.lab import program

    token = secrets.token_hex(TOKEN_BYTES)

    def on_ready(port: int) -> None:
        url = f"http://{program.HOST}:{port}/lab?token={token}"
        replace_text(address, json.dumps({"url": url}))
        descriptors = Descriptors(runtime_root, home / "sessions")
        found = descriptors.read()
        servers = len({session.control for session in found.values()})
        there = f"Sessions: {len(found)}, of {servers} running server{'' if servers == 1 else 's'}."
        none = "No running server of this home has a session yet: its notebook appears here when one does."
        said = "\n".join([there if found else none, *descriptors.left_out])
        sys.stdout.write(f"JupyterLab on the sessions of {home}:\n\n    {url}\n\n{said}\n")
        sys.stdout.write("Ctrl-C ends it; the sessions go on.\n")
        sys.stdout.flush()

    try:
        program.run(lab, runtime_root, home / "sessions", port, token, open_browser, on_ready)
    finally:
        with suppress(OSError):
            address.unlink(missing_ok=True)
    sys.stdout.flush()
    # Threads of the documents' store wait for work that does not come, and Python would wait for them.
    os._exit(0)


def _check_versions() -> None:
    for name, wanted in NEEDS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError as exc:
            raise ConfigurationError(f"`kernelmcp lab` needs {name}", f"Install it: {INSTALL}") from exc
        if not SpecifierSet(wanted).contains(found, prereleases=True):
            raise ConfigurationError(f"`kernelmcp lab` needs {name} {wanted}; {found} is installed", f"Try {INSTALL}")


def _check_ours(folder: Path, setting: str) -> None:
    """The folder leads to sessions and their kernels' sockets: anyone with write access could substitute others."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        private_directory(folder)
        return
    advice = f"Set {setting} to a directory of your own."
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigurationError(f"{folder} does not belong to this user", advice)
    if found.st_mode & 0o022:
        raise ConfigurationError(f"{folder} is writable by other users", advice, f"Or: chmod 700 {folder}")


def _check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"there is no port {port}", "Give --port a number up to 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise ConfigurationError(
                f"port {port} cannot be used: {exc.strerror}", "Omit --port, or choose another one."
            ) from exc


def _address_in(file: Path) -> str:
    try:
        return str(json.loads(read_small(file))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return "it is just starting."
