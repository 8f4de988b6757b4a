"""Decides what this process may import and read as configuration: no file that a guest can write
(docs/trusted-inputs.md).

Imports little: it is used before a guest is spawned.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from kernelmcp_kernel.settings import KernelSettings, settings

# Linux's limit.
_MAX_LINKS = 40


def guest_folders(found: KernelSettings | None = None) -> list[Path]:
    """Folders that the guest may write: its sandbox directory and the writable volumes (shared with other guests)."""
    found = found or settings()
    volumes = [Path(volume.path) for volume in found.volumes if volume.mode == "rw"]
    return [path.resolve() for path in ([found.sandbox] if found.sandbox else []) + volumes]


def is_trusted(path: str | Path) -> bool:
    """Return whether no guest can write this path, or change its target. It must be absolute, but need not exist."""
    if not os.path.isabs(path):
        return False
    folders = guest_folders()
    try:
        return not any(place.is_relative_to(folder) for place in _places(Path(path)) for folder in folders)
    except OSError:
        return False


def _places(path: Path) -> Iterator[Path]:
    """Every path that is looked up to resolve an absolute path, including links and their targets.

    The final target is not enough: a guest's link may lead outside its folders until the guest replaces it by a file.
    Raises OSError for a loop of links.
    """
    current, ahead, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            current = current.parent
            continue
        step = current / name
        yield step
        try:
            target = Path(os.readlink(step))
        except OSError:  # not a link, or missing
            current = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if target.is_absolute():
            current = Path(target.anchor)
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def keep_trusted_imports() -> None:
    """Remove folders that a guest may write from sys.path, and the working directory that `python -m` adds.

    Modules are imported lazily, when a hostile cell may have run.
    """
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        own = Path(__file__).resolve().parents[2]
        if Path(sys.path[0]).resolve() != own:
            del sys.path[0]
    sys.path[:] = [entry for entry in sys.path if is_trusted(entry)]
