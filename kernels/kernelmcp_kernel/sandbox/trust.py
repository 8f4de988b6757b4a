"""What this process may import and read as configuration: nothing that a guest can write (docs/trusted-inputs.md).

Imports little: it is read before a guest is spawned.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kernelmcp_kernel.settings import KernelSettings, settings


def guest_folders(found: KernelSettings | None = None) -> list[Path]:
    """What the guest may write: its sandbox directory and the writable volumes, which it shares with other guests."""
    found = found or settings()
    volumes = [Path(volume.path) for volume in found.volumes if volume.mode == "rw"]
    return [path.resolve() for path in ([found.sandbox] if found.sandbox else []) + volumes]


def is_trusted(path: str | Path) -> bool:
    """Whether this path, which may not exist, lies where no guest writes. A relative one lies anywhere."""
    if not os.path.isabs(path):
        return False
    real = Path(path).resolve()
    return not any(real.is_relative_to(folder) for folder in guest_folders())


def keep_trusted_imports() -> None:
    """Take folders that a guest may write off sys.path, and the working directory that `python -m` puts there.

    Modules are imported lazily, when a hostile cell may have run.
    """
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        own = Path(__file__).resolve().parents[2]
        if Path(sys.path[0]).resolve() != own:
            del sys.path[0]
    sys.path[:] = [entry for entry in sys.path if is_trusted(entry)]
