"""Locations: this package, the guest's runtime, and the package cache."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kernelmcp_kernel.settings import data_home, settings

PACKAGE = Path(__file__).resolve().parents[1]
RUNTIME = PACKAGE / "_runtime"
HOST = PACKAGE / "host"
INSIDE = PACKAGE / "inside"


def packages_root() -> Path:
    """The package cache. Guests may read the unpacked packages in it, and nothing else."""
    return data_home() / "packages"


def open_package_cache() -> None:
    """Create the folders of packages and their bytecode: a guest may read only folders that existed when it started."""
    with contextlib.suppress(OSError):  # read-only: an install will report it
        for folder in (packages_root(), packages_root() / "unpacked", packages_root() / "bytecode"):
            open_to_guests(folder)


def open_to_guests(folder: Path) -> None:
    """Create a parent folder of files that guests may read, unless it is there. Raises OSError."""
    mode = settings().folder_mode
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    if mode != 0o700:
        folder.chmod(mode)  # created by a kernel without `guest_uid`
