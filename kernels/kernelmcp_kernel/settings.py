"""What a kernel process is told at its start: environment variables, the only ones that it reads (docs/design.md 3).

Above: everything that needs one. Below: nothing. Imports little: it is read before a guest is spawned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# The wasm memory of a guest, in MB, when the environment does not say. The boot image alone takes about 60.
DEFAULT_MEMORY_MB = 1024

# The largest file that a guest may write, in MB. A sparse file of 100 GB costs nothing until somebody copies it.
DEFAULT_MAX_FILE_MB = 1024


@dataclass(frozen=True)
class KernelSettings:
    """The settings of one kernel process."""

    memory_mb: int = DEFAULT_MEMORY_MB
    """KERNELMCP_MEMORY_MB: cap of the guest's wasm memory, MiB."""
    berth: Path | None = None
    """KERNELMCP_BERTH: the one directory that the guest may write. Not set: a private one."""
    max_file_mb: int = DEFAULT_MAX_FILE_MB
    """KERNELMCP_MAX_FILE_MB: the largest file that the guest may write, MiB."""
    guest_uid: int | None = None
    """KERNELMCP_GUEST_UID: the user and group that the guest of a root process runs as. Not set: it stays root, without
    root's capabilities."""
    required_layers: tuple[str, ...] = ()
    """KERNELMCP_REQUIRED_LAYERS: names, with commas between; a kernel does not start where one is missing."""
    keep_globals: bool = False
    """KERNELMCP_KEEP_GLOBALS: leave the guest's JavaScript its `process` and the like. For doctor and the tests, whose
    attempts are to meet the walls behind."""


def read_settings(environ: Mapping[str, str]) -> KernelSettings:
    """Raises ValueError for a value that is none."""
    berth = environ.get("KERNELMCP_BERTH")
    return KernelSettings(
        memory_mb=int(environ.get("KERNELMCP_MEMORY_MB") or DEFAULT_MEMORY_MB),
        berth=Path(berth) if berth else None,
        max_file_mb=int(environ.get("KERNELMCP_MAX_FILE_MB") or DEFAULT_MAX_FILE_MB),
        guest_uid=int(environ["KERNELMCP_GUEST_UID"]) if environ.get("KERNELMCP_GUEST_UID") else None,
        required_layers=tuple(filter(None, environ.get("KERNELMCP_REQUIRED_LAYERS", "").split(","))),
        keep_globals=environ.get("KERNELMCP_KEEP_GLOBALS") == "1",
    )


@cache
def settings() -> KernelSettings:
    """This process's."""
    return read_settings(os.environ)
