"""Copies the content of an open file that a guest may change meanwhile. Blocking.

The copy shares its blocks with the original if the file system can (Btrfs, XFS), and holes stay holes. Must not know
names or trees.
"""

import errno
import fcntl
import os
import sys
from collections.abc import Iterator

# _IOW(0x94, 9, int), as on x86, ARM and RISC-V.
_FICLONE = 0x40049409
_READ_BYTES = 1024 * 1024
# Linux copies at most this much in one call.
_RANGE_BYTES = 0x7FFFF000


def copy_content(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes of a file to an empty one, which then has this size.

    If the file changes meanwhile, the copy is a mixture. Raises OSError.
    """
    if not _clone(source, target):
        for start, end in _data_ranges(source, size):
            _copy_range(source, target, start, end)
    os.ftruncate(target, size)  # a hole at the end; or a clone of a file that has grown


def _clone(source: int, target: int) -> bool:
    """Let both files share their blocks until one is written. False if that is impossible."""
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # another file system, one that cannot share, or a container's filter; a full disk fails below too
        return False
    return True


def _data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The offsets of a file's data between its holes, each with its end; all of it if the file system does not know."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
            # In a file that changes, the data may have just become a hole.
            end = max(os.lseek(fd, start, os.SEEK_HOLE), start + 1)
        except OSError as exc:
            if exc.errno != errno.ENXIO:
                yield end, size
            return  # no data follows
        yield start, min(end, size)


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        copied = _copy_some(source, target, start, end - start)
        if not copied:
            return  # the file has become shorter
        start += copied


def _copy_some(source: int, target: int, offset: int, size: int) -> int:
    """Copy at most `size` bytes; returns their number."""
    if sys.platform == "linux":
        try:
            copied = os.copy_file_range(source, target, min(size, _RANGE_BYTES), offset, offset)
        except OSError:  # as for a clone
            copied = 0
        if copied:
            return copied
    return os.pwrite(target, os.pread(source, min(size, _READ_BYTES), offset), offset)
