"""Lists the files below a directory that a hostile guest may change meanwhile. Blocking: called in worker threads.

Limited in number and time, and follows no links. Must not know quotas or sessions.
"""

import errno
import itertools
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelmcp.files.safe_open import DIRECTORY, open_beneath, reveal

# A listing is for a reader. Counting continues beyond it, because a quota may allow more files.
MAX_LISTED = 1_000
LIST_SECONDS = 2.0
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


@dataclass(frozen=True)
class Entry:
    """A regular file: its path in the workspace, size in bytes, time of its last change in ns since 1970."""

    path: str
    size: int
    modified_ns: int


@dataclass
class Listing:
    """The found files, their total size, and the number of `entries`: files and directories. `complete` is false if the
    search stopped early."""

    files: list[Entry] = field(default_factory=list[Entry])
    total_bytes: int = 0
    entries: int = 0
    complete: bool = True


def scan(root: int, start: tuple[str, ...], found: Listing, max_entries: int) -> None:
    """Add the files below a directory to a listing. It is incomplete if there are more than `max_entries` files and
    directories, if the search takes too long, or if a path gets too long."""
    deadline = time.monotonic() + LIST_SECONDS
    pending = [start]
    while pending:
        parts = pending.pop()
        try:
            fd = _open_directory(root, parts)
        except OSError as exc:
            # Files that were deleted meanwhile do not belong in the listing.
            found.complete = found.complete and exc.errno in _GONE
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if found.entries >= max_entries or time.monotonic() > deadline:
                        found.complete = False
                        return
                    found.entries += 1
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            pending.append((*parts, entry.name))
                        else:
                            _add(found, "/".join((*parts, entry.name)), entry.stat(follow_symlinks=False))
        finally:
            os.close(fd)


def stored_bytes(status: os.stat_result) -> int:
    """The size of a file for its quota: its length, or its blocks if they exceed that by a block, as for a file with
    preallocated space. The kernel process uses the same rule."""
    return max(status.st_size, getattr(status, "st_blocks", 0) * 512 - 4096)


def size_of(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count / 2**20:,.1f} MB" if count >= 2**20 else f"{max(count >> 10, 1)} kB"


def top(directory: Path, limit: int) -> list[str]:
    """The names of a directory's entries, directories with a slash, at most `limit`. Raises OSError."""
    fd = os.open(directory, DIRECTORY)
    try:
        return names_at(fd, limit)
    finally:
        os.close(fd)


def names_at(fd: int, limit: int) -> list[str]:
    """Same as `top`, for an open directory."""
    with os.scandir(fd) as entries:
        found = itertools.islice(entries, limit)
        return sorted(f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in found)


def _add(found: Listing, path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        found.total_bytes += stored_bytes(status)
        found.files.append(Entry(path, status.st_size, status.st_mtime_ns))


def _open_directory(root: int, parts: tuple[str, ...]) -> int:
    try:
        return open_beneath(root, parts, DIRECTORY)
    except PermissionError:
        above = open_beneath(root, parts[:-1], DIRECTORY)
        try:
            reveal(parts[-1], above)
            return os.open(parts[-1], DIRECTORY, dir_fd=above)
        finally:
            os.close(above)
