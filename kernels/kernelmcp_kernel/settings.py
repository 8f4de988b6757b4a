"""The settings of a kernel process, from the environment variables at its start (docs/design.md 3, 123).

Imports little: it is read before a guest is spawned.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

# The folder of a guest's own files, and its default working directory.
WORKSPACE = "/workspace"


@dataclass(frozen=True)
class Quota:
    """A guest's storage limits, workspace and /tmp together: bytes, and files including directories."""

    max_bytes: int
    max_files: int


@dataclass(frozen=True)
class Volume:
    """A directory of the host that is mounted in the guest at /volumes/NAME."""

    name: str
    path: str
    mode: Literal["ro", "rw"]


@dataclass(frozen=True)
class PackageSettings:
    """KERNELMCP_PACKAGES, a JSON object: the packages that may be installed, and their sources.

    Each field is described, with its unit, in the server's configuration ([packages] in docs/configuration.md).
    """

    enabled: bool = True
    auto_install: bool = True
    build_from_source: bool = True
    index_url: str | None = None
    pyodide_url: str | None = None
    wheel_folders: list[str] = field(default_factory=list[str])
    preinstalled: list[str] = field(default_factory=list[str])
    allowed: list[str] | None = None
    denied: list[str] = field(default_factory=list[str])
    resolution_ttl_seconds: float = 24 * 3600
    install_timeout_seconds: float = 300
    max_package_mb: int = 512
    max_cache_mb: int = 4096


@dataclass(frozen=True)
class NetworkSettings:
    """KERNELMCP_NETWORK, a JSON object: the hosts that the guest's requests may reach, and their limits.

    Each field is described, with its unit, in the server's configuration ([network] in docs/configuration.md).
    """

    allow_hosts: list[str] = field(default_factory=list[str])
    headers: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]], repr=False)
    timeout_seconds: float = 30
    max_request_mb: int = 16
    max_response_mb: int = 16


@dataclass(frozen=True)
class KernelSettings:
    """The settings of one kernel process."""

    memory_mb: int = 1024
    """KERNELMCP_MEMORY_MB: cap of the guest's wasm memory, MiB. The boot image alone takes about 60."""
    sandbox: Path | None = None
    """KERNELMCP_SANDBOX_DIRECTORY: the guest's own writable directory. Default: a private one."""
    network: NetworkSettings = NetworkSettings()
    """KERNELMCP_NETWORK. Default: no network."""
    workspace_mb: int = 1024
    """KERNELMCP_WORKSPACE_MB: limit of the guest's files, workspace and /tmp together, MiB; also of a single file."""
    max_files: int = 10_000
    """KERNELMCP_MAX_FILES: maximum number of these files and directories."""
    volumes: tuple[Volume, ...] = ()
    """KERNELMCP_VOLUMES: a JSON list of {"name", "path", "mode"}."""
    packages: PackageSettings = PackageSettings()
    """KERNELMCP_PACKAGES."""
    cpu_seconds: float | None = None
    """KERNELMCP_CPU_SECONDS: CPU time of one execution, seconds. Default: no limit. A request may set another."""
    background_cpu_seconds: float = 60.0
    """KERNELMCP_BACKGROUND_CPU_SECONDS: CPU time of tasks that cells leave behind, between two cells, seconds."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """KERNELMCP_ENV, a JSON object: the guest's environment variables."""
    guest_uid: int | None = None
    """KERNELMCP_GUEST_UID: the user and group of the guest of a root process. Default: it stays root, without root's
    capabilities."""
    required_layers: tuple[str, ...] = ()
    """KERNELMCP_REQUIRED_LAYERS: names, separated by commas; a kernel does not start if one is missing."""
    working_directory: str = WORKSPACE
    """KERNELMCP_WORKING_DIRECTORY: the initial directory of cells, a path in the guest."""
    umask: int = 0o077
    """KERNELMCP_UMASK, octal: the umask of guests, whose files in volumes belong to the user."""
    folder_note: str = ""
    """KERNELMCP_FOLDER_NOTE: the reason why a notebook's folder is not shown as configured. Empty: it is."""
    ask_commands: bool = False
    """KERNELMCP_ASK_COMMANDS: ask the client whether a script of the shell may run, before it does."""
    keep_globals: bool = False
    """KERNELMCP_KEEP_GLOBALS: keep globals such as `process` in the guest's JavaScript. For doctor and the tests, whose
    attempts should reach the next layers of defence."""

    @property
    def folder(self) -> Literal["private", "read", "write"] | None:
        """The guest's access to the notebook's folder. None: a server's kernel, which has no notebook."""
        if self.sandbox is not None:
            return None
        if self.working_directory == WORKSPACE:
            return "private"
        inside = (volume for volume in self.volumes if f"/volumes/{volume.name}" == self.working_directory)
        return "write" if any(volume.mode == "rw" for volume in inside) else "read"

    @property
    def how_to_see_more(self) -> str:
        """How to get more access to the notebook's folder, or why that has not helped."""
        file = os.environ.get("KERNELMCP_CONFIG_FILE") or data_home() / "mcp.toml"
        more = "'write'" if self.folder == "read" else "'read' or 'write'"
        return self.folder_note or f"set jupyter_folder = {more} under [kernels] in {file}"

    @property
    def quota(self) -> Quota:
        return Quota(self.workspace_mb * 1024 * 1024, self.max_files)

    @property
    def folder_mode(self) -> int:
        """Mode of the parent folders of files that a guest may read: a guest that is another user must pass through."""
        return 0o700 if self.guest_uid is None else 0o711


def _volume(name: str, path: str, mode: str) -> Volume:
    """A volume; any mode but "rw" means read-only."""
    return Volume(name, path, "rw" if mode == "rw" else "ro")


# By environment variable: the field, and how its text is read. The server also uses KERNELMCP_HOME.
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "KERNELMCP_MEMORY_MB": ("memory_mb", int),
    "KERNELMCP_SANDBOX_DIRECTORY": ("sandbox", Path),
    "KERNELMCP_NETWORK": ("network", lambda text: NetworkSettings(**json.loads(text))),
    "KERNELMCP_WORKSPACE_MB": ("workspace_mb", int),
    "KERNELMCP_MAX_FILES": ("max_files", int),
    "KERNELMCP_VOLUMES": ("volumes", lambda text: tuple(_volume(**found) for found in json.loads(text))),
    "KERNELMCP_PACKAGES": ("packages", lambda text: PackageSettings(**json.loads(text))),
    "KERNELMCP_CPU_SECONDS": ("cpu_seconds", float),
    "KERNELMCP_BACKGROUND_CPU_SECONDS": ("background_cpu_seconds", float),
    "KERNELMCP_ENV": ("env", json.loads),
    "KERNELMCP_GUEST_UID": ("guest_uid", int),
    "KERNELMCP_REQUIRED_LAYERS": ("required_layers", lambda text: tuple(filter(None, text.split(",")))),
    "KERNELMCP_WORKING_DIRECTORY": ("working_directory", str),
    "KERNELMCP_UMASK": ("umask", lambda text: int(text, 8)),
    "KERNELMCP_FOLDER_NOTE": ("folder_note", str),
    "KERNELMCP_ASK_COMMANDS": ("ask_commands", lambda text: text == "1"),
    "KERNELMCP_KEEP_GLOBALS": ("keep_globals", lambda text: text == "1"),
}
VARIABLES = frozenset(_READERS)
"""The environment variables that are settings of a kernel process."""


def read_settings(environ: Mapping[str, str]) -> KernelSettings:
    """Read the settings from these environment variables; an empty one is not set. Raises ValueError for an invalid
    value."""
    found = {field: read(environ[name]) for name, (field, read) in _READERS.items() if environ.get(name)}
    return KernelSettings(**found)


@cache
def settings() -> KernelSettings:
    """The settings of this process, read once."""
    return read_settings(os.environ)


def data_home() -> Path:
    """The folder of packages and images: KERNELMCP_HOME, otherwise the platform's folder for user data."""
    if named := os.environ.get("KERNELMCP_HOME"):
        return Path(named).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "kernelmcp"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kernelmcp"
