"""What this process has open."""

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Paths of open descriptors in a folder. Others come and go: the garbage collector closes older ones."""
    found: list[str] = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the one that lists them; on macOS, what is no file
            found.append(_path(int(name)))
    return [path for path in found if Path(path).is_relative_to(folder)]


def _path(number: int) -> str:
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(number, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/dev/fd/{number}")
