"""What this process has open."""

import os
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Paths of open descriptors in a folder. Others come and go: the garbage collector closes older ones."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if Path(path).is_relative_to(folder)]
