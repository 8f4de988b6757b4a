"""Regular files below an open directory that a guest may change meanwhile: reads, measures and replaces them. Blocking.

Follows no links (safe_open.py). Must not know whose directory it is.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kernelmcp.files.paths import not_a_regular_file
from kernelmcp.files.safe_open import give_to_owner, open_beneath, open_made

# Opening a FIFO would otherwise wait for its other end.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# No file system has larger files; a larger offset would be an error.
_MAX_OFFSET = 2**53


@dataclass(frozen=True)
class Piece:
    """A part of a file, and the size of the whole file, in bytes."""

    data: bytes
    size: int


@contextmanager
def opened(root: int, parts: list[str], *, reader: int | None) -> Iterator[int]:
    """Open a file for reading, or a directory. `reader` as in `open_beneath`. Raises OSError."""
    fd = open_beneath(root, parts, FILE, reader=reader)
    try:
        yield fd
    finally:
        os.close(fd)


def read_piece(fd: int, path: str, offset: int, limit: int | None) -> Piece:
    """Read at most `limit` bytes, starting at `offset`. Raises `PermissionDenied` if it is not a regular file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise not_a_regular_file(path)
    wanted = max(0, status.st_size - offset) if limit is None else limit
    return Piece(_read_at(fd, offset, wanted), status.st_size)


def size_of(root: int, parts: list[str], path: str, *, reader: int | None) -> int:
    """The size in bytes of the file to be replaced; 0 if there is none yet."""
    try:
        with opened(root, parts, reader=reader) as fd:
            status = os.fstat(fd)
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(status.st_mode):
        raise not_a_regular_file(path)
    return status.st_size


@contextmanager
def made(root: int, parts: list[str], mode: int = 0o700, *, user: int | None = None) -> Iterator[int]:
    """Open a directory, and create it and its parents if they are missing. Follows no links.

    `user`: a server that is root acts for this user, and only where that user could. Raises OSError.
    """
    fd = os.dup(root)
    try:
        for part in parts:
            above, fd = fd, open_made(fd, part, mode, user=user)
            os.close(above)
        yield fd
    finally:
        os.close(fd)


def write_whole(directory: int, name: str, data: bytes, mode: int = 0o600, *, user: int | None = None) -> None:
    """Create or replace a file: a reader sees either the old content or the new. A new file's mode is `mode`. `user` as
    in `made`. Raises OSError."""
    draft = f".kernelmcp-{secrets.token_hex(8)}"
    fd = os.open(draft, NEW_FILE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            give_to_owner(file.fileno(), directory, user)
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode) & 0o777
            os.fchmod(file.fileno(), mode)
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=directory)
        raise


def _read_at(fd: int, offset: int, size: int) -> bytes:
    """Read up to `size` bytes. A file that is truncated meanwhile gives fewer."""
    pieces: list[bytes] = []
    while size > 0 and offset < _MAX_OFFSET:
        piece = os.pread(fd, min(size, 1 << 20), offset)
        if not piece:
            break
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return b"".join(pieces)
