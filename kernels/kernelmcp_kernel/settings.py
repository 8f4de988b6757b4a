"""What a kernel process is told at its start: environment variables, the only ones that it reads (docs/design.md 3).

Above: everything that needs one. Below: nothing. Imports little: it is read before a guest is spawned.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# The wasm memory of a guest, in MB, when the environment does not say. The boot image alone takes about 60.
DEFAULT_MEMORY_MB = 1024


@dataclass(frozen=True)
class PackageSettings:
    """KERNELMCP_PACKAGES, a JSON object: which packages may be installed and where they come from.

    What each means, with its unit, says the server's configuration ([packages] of docs/configuration.md).
    """

    enabled: bool = True
    index_url: str | None = None
    pyodide_url: str | None = None
    wheel_folders: list[str] = field(default_factory=list[str])
    preinstalled: list[str] = field(default_factory=list[str])
    allowed: list[str] | None = None
    denied: list[str] = field(default_factory=list[str])
    resolution_ttl_seconds: float = 24 * 3600
    install_timeout_seconds: float = 300
    max_package_mb: int = 512


@dataclass(frozen=True)
class KernelSettings:
    """The settings of one kernel process."""

    memory_mb: int = DEFAULT_MEMORY_MB
    """KERNELMCP_MEMORY_MB: cap of the guest's wasm memory, MiB."""
    berth: Path | None = None
    """KERNELMCP_BERTH: the one directory that the guest may write. Not set: a private one."""
    packages: PackageSettings = PackageSettings()
    """KERNELMCP_PACKAGES."""


def read_settings(environ: Mapping[str, str]) -> KernelSettings:
    """Raises ValueError for a value that is none."""
    berth = environ.get("KERNELMCP_BERTH")
    return KernelSettings(
        memory_mb=int(environ.get("KERNELMCP_MEMORY_MB") or DEFAULT_MEMORY_MB),
        berth=Path(berth) if berth else None,
        packages=PackageSettings(**json.loads(environ.get("KERNELMCP_PACKAGES") or "{}")),
    )


@cache
def settings() -> KernelSettings:
    """This process's."""
    return read_settings(os.environ)


def data_home() -> Path:
    """Where packages and images are kept: KERNELMCP_HOME, else where the platform keeps a user's data."""
    if named := os.environ.get("KERNELMCP_HOME"):
        return Path(named).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "kernelmcp"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kernelmcp"
