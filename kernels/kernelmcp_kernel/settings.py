"""The settings of a kernel process: the environment variables that it is started with (docs/design.md 3, 123).

Imports little: it is read before a guest is spawned.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

# The wasm memory of a guest, in MB, when the environment does not say. The boot image alone takes about 60.
DEFAULT_MEMORY_MB = 1024

# What a guest may store when the environment does not say: MB, and files.
DEFAULT_WORKSPACE_MB = 1024
DEFAULT_MAX_FILES = 10_000

# Where a guest's own files are, which is its working directory where nothing else is said.
WORKSPACE = "/workspace"

# CPU time of tasks between two cells when the environment does not say, in seconds.
DEFAULT_BACKGROUND_CPU_SECONDS = 60.0


@dataclass(frozen=True)
class Quota:
    """What a guest may store, workspace and /tmp together: bytes, and files with directories."""

    max_bytes: int
    max_files: int


@dataclass(frozen=True)
class Volume:
    """A directory of the host that the guest sees at /volumes/NAME."""

    name: str
    path: str
    mode: Literal["ro", "rw"]


@dataclass(frozen=True)
class PackageSettings:
    """KERNELMCP_PACKAGES, a JSON object: which packages may be installed and where they come from.

    Each is explained, with its unit, in the server's configuration ([packages] of docs/configuration.md).
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
    """KERNELMCP_NETWORK, a JSON object: which hosts the guest's requests may reach, and under which limits.

    Each is explained, with its unit, in the server's configuration ([network] of docs/configuration.md).
    """

    allow_hosts: list[str] = field(default_factory=list[str])
    headers: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]], repr=False)
    timeout_seconds: float = 30
    max_request_mb: int = 16
    max_response_mb: int = 16


@dataclass(frozen=True)
class KernelSettings:
    """The settings of one kernel process."""

    memory_mb: int = DEFAULT_MEMORY_MB
    """KERNELMCP_MEMORY_MB: cap of the guest's wasm memory, MiB."""
    sandbox: Path | None = None
    """KERNELMCP_SANDBOX_DIRECTORY: the one directory that the guest may write. Not set: a private one."""
    network: NetworkSettings = NetworkSettings()
    """KERNELMCP_NETWORK. Not set: no network."""
    workspace_mb: int = DEFAULT_WORKSPACE_MB
    """KERNELMCP_WORKSPACE_MB: what the guest's files may take, workspace and /tmp together, MiB; so one file, too."""
    max_files: int = DEFAULT_MAX_FILES
    """KERNELMCP_MAX_FILES: how many files and directories they may be."""
    volumes: tuple[Volume, ...] = ()
    """KERNELMCP_VOLUMES: a JSON list of {"name", "path", "mode"}."""
    packages: PackageSettings = PackageSettings()
    """KERNELMCP_PACKAGES."""
    cpu_seconds: float | None = None
    """KERNELMCP_CPU_SECONDS: CPU time of one execution, seconds. Not set: no limit. A request may name another."""
    background_cpu_seconds: float = DEFAULT_BACKGROUND_CPU_SECONDS
    """KERNELMCP_BACKGROUND_CPU_SECONDS: CPU time of tasks that cells leave behind, between two cells, seconds."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """KERNELMCP_ENV, a JSON object: the guest's environment variables."""
    guest_uid: int | None = None
    """KERNELMCP_GUEST_UID: the user and group that the guest of a root process runs as. Not set: it stays root, without
    root's capabilities."""
    required_layers: tuple[str, ...] = ()
    """KERNELMCP_REQUIRED_LAYERS: names, with commas between; a kernel does not start where one is missing."""
    working_directory: str = WORKSPACE
    """KERNELMCP_WORKING_DIRECTORY: where cells begin, a directory of the guest's."""
    umask: int = 0o077
    """KERNELMCP_UMASK, octal: the umask of guests, whose files in volumes are the user's."""
    folder_note: str = ""
    """KERNELMCP_FOLDER_NOTE: why a notebook's folder is not shown as configured. Empty: it is."""
    keep_globals: bool = False
    """KERNELMCP_KEEP_GLOBALS: leave the guest's JavaScript its `process` and the like. For doctor and the tests, whose
    attempts are to meet the walls behind."""

    @property
    def folder(self) -> Literal["private", "read", "write"] | None:
        """What a guest sees of the notebook's folder. None: a server's kernel, which has no notebook."""
        if self.sandbox is not None:
            return None
        if self.working_directory == WORKSPACE:
            return "private"
        inside = (volume for volume in self.volumes if f"/volumes/{volume.name}" == self.working_directory)
        return "write" if any(volume.mode == "rw" for volume in inside) else "read"

    @property
    def how_to_see_more(self) -> str:
        """Of the notebook's folder: what to set, or why that has not helped."""
        file = os.environ.get("KERNELMCP_CONFIG_FILE") or data_home() / "mcp.toml"
        more = "'write'" if self.folder == "read" else "'read' or 'write'"
        return self.folder_note or f"set jupyter_folder = {more} under [kernels] in {file}"

    @property
    def quota(self) -> Quota:
        return Quota(self.workspace_mb * 1024 * 1024, self.max_files)

    @property
    def folder_mode(self) -> int:
        """Of the folders on the way to what a guest may read: where it is another user, it must get through."""
        return 0o700 if self.guest_uid is None else 0o711


VARIABLES = frozenset(
    f"KERNELMCP_{name}"
    for name in (
        "BACKGROUND_CPU_SECONDS", "CPU_SECONDS", "ENV", "FOLDER_NOTE", "GUEST_UID", "KEEP_GLOBALS", "MAX_FILES",
        "MEMORY_MB", "NETWORK", "PACKAGES", "REQUIRED_LAYERS", "SANDBOX_DIRECTORY", "UMASK", "VOLUMES",
        "WORKING_DIRECTORY", "WORKSPACE_MB",
    )
)  # fmt: skip
"""The environment variables that are settings of a kernel process. KERNELMCP_HOME is the server's as well."""


def read_settings(environ: Mapping[str, str]) -> KernelSettings:
    """The settings in these environment variables. Raises ValueError for a value that cannot be read."""
    sandbox = environ.get("KERNELMCP_SANDBOX_DIRECTORY")
    return KernelSettings(
        memory_mb=int(environ.get("KERNELMCP_MEMORY_MB") or DEFAULT_MEMORY_MB),
        sandbox=Path(sandbox) if sandbox else None,
        network=NetworkSettings(**json.loads(environ.get("KERNELMCP_NETWORK") or "{}")),
        workspace_mb=int(environ.get("KERNELMCP_WORKSPACE_MB") or DEFAULT_WORKSPACE_MB),
        max_files=int(environ.get("KERNELMCP_MAX_FILES") or DEFAULT_MAX_FILES),
        volumes=tuple(_volume(**found) for found in json.loads(environ.get("KERNELMCP_VOLUMES") or "[]")),
        packages=PackageSettings(**json.loads(environ.get("KERNELMCP_PACKAGES") or "{}")),
        cpu_seconds=float(cpu) if (cpu := environ.get("KERNELMCP_CPU_SECONDS")) else None,
        background_cpu_seconds=float(environ.get("KERNELMCP_BACKGROUND_CPU_SECONDS") or DEFAULT_BACKGROUND_CPU_SECONDS),
        env=json.loads(environ.get("KERNELMCP_ENV") or "{}"),
        guest_uid=int(uid) if (uid := environ.get("KERNELMCP_GUEST_UID")) else None,
        required_layers=tuple(filter(None, environ.get("KERNELMCP_REQUIRED_LAYERS", "").split(","))),
        working_directory=environ.get("KERNELMCP_WORKING_DIRECTORY") or WORKSPACE,
        folder_note=environ.get("KERNELMCP_FOLDER_NOTE", ""),
        umask=int(environ.get("KERNELMCP_UMASK") or "77", 8),
        keep_globals=environ.get("KERNELMCP_KEEP_GLOBALS") == "1",
    )


def _volume(name: str, path: str, mode: str) -> Volume:
    """Anything but "rw" is read-only."""
    return Volume(name, path, "rw" if mode == "rw" else "ro")


@cache
def settings() -> KernelSettings:
    """The settings of this process, read once."""
    return read_settings(os.environ)


def data_home() -> Path:
    """Where packages and images are kept: KERNELMCP_HOME, else where the platform keeps a user's data."""
    if named := os.environ.get("KERNELMCP_HOME"):
        return Path(named).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "kernelmcp"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kernelmcp"
