"""Files that are read and replaced as a whole: a reader sees either the old or the new one, never a part.

Standard library only: it reads settings before anything else is imported.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

# A name may have 255 bytes, and a draft's has ten more than what it has of the file's.
MAX_NAME_IN_DRAFT_BYTES = 245
# Parts that POSIX systems write in one call.
MAX_PARTS = 1024
# No file of ours that is read as a whole is larger.
MAX_SMALL_BYTES = 1024 * 1024
Stamp = tuple[int, int, int]
"""Identifies a version of a replaced file: the new one has another inode, even if the disk's clock is coarse."""
NO_FILE: Stamp = (0, 0, 0)


def stamp_of(file: Path) -> Stamp:
    """Changes whenever the file is replaced; `NO_FILE` if there is none."""
    try:
        found = file.stat()
    except OSError:
        return NO_FILE
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_small(file: Path, max_bytes: int = MAX_SMALL_BYTES, *, follow: bool = True) -> bytes:
    """Read a small file. `follow`: it may be a link. Raises OSError, also for a pipe or a device, which could block a
    reader for ever."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:  # `fdopen` rejects a directory but does not close it
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(file))
        with os.fdopen(fd, "rb", closefd=False) as stream:
            content = stream.read(max_bytes + 1)
    finally:
        os.close(fd)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"is larger than {max_bytes:,} bytes", str(file))
    return content


def open_own(file: Path) -> BinaryIO:
    """Open a file that a server has written, to read. A pipe in its place is refused. Raises `OSError`."""
    return open(file, "rb", opener=_open_regular)


def _open_regular(name: str, mode: int) -> int:
    fd = os.open(name, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "is not a regular file", name)


def create_once(file: Path, content: bytes) -> None:
    """Create a small file if there is none. Of several processes at once, all then find the same one, and the whole of
    it. Raises `OSError`."""
    draft = file.with_name(_draft_beginning(file) + secrets.token_hex(4))
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(fd)
        with suppress(FileExistsError):  # another process was first
            os.link(draft, file)
    finally:
        draft.unlink()


def replace(file: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o600) -> None:
    """Replace a file; `mode` is the new one's. Raises `OSError` with the file's name; then the old one is unchanged."""
    draft = file.with_name(_draft_beginning(file) + secrets.token_hex(4))
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as stream:
            write(stream)
            if mode != 0o600:
                os.fchmod(fd, mode)
        os.replace(draft, file)
    except BaseException as exc:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(exc, OSError) and exc.filename in (None, str(draft)):
            exc.filename, exc.filename2 = str(file), None
        raise


def _draft_beginning(file: Path) -> str:
    """The beginning of the names of a file's drafts, and of no other file's."""
    name, encoded = file.name, os.fsencode(file.name)
    if len(encoded) > MAX_NAME_IN_DRAFT_BYTES:
        digest = sha256(encoded).hexdigest()[:8]
        name = f"{encoded[: MAX_NAME_IN_DRAFT_BYTES - 9].decode(errors='ignore')}-{digest}"
    return f".{name}."


def write_at(fd: int, parts: Sequence[bytes], position: int) -> None:
    """Write all these bytes, which are not joined, at a position. Raises `OSError`; then a part may be written."""
    waiting = [memoryview(part) for part in parts if part]
    while waiting:
        written = os.pwritev(fd, waiting[:MAX_PARTS], position)
        position += written
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.pop(0))
        if written:
            waiting[0] = waiting[0][written:]


def sweep_drafts(file: Path) -> None:
    """Delete the remains of a process that was killed within `replace`. No other process may be writing the file."""
    pattern = re.compile(rf"{re.escape(_draft_beginning(file))}[0-9a-f]{{8}}")
    with suppress(OSError):
        for entry in os.listdir(file.parent):
            if pattern.fullmatch(entry):
                with suppress(OSError):
                    (file.parent / entry).unlink()


def replace_text(file: Path, text: str, *, mode: int = 0o600) -> None:
    """The same for text, in UTF-8. Raises `OSError`."""
    replace(file, lambda out: out.write(text.encode()), mode=mode)


def aside_of(file: Path) -> Path:
    """The name under which an unusable file is kept. A file cannot replace a directory, nor vice versa."""
    aside = file.with_suffix(f".damaged{file.suffix}")
    if aside.is_dir() or not file.is_file():
        aside = aside.with_name(f"{aside.stem}.{secrets.token_hex(4)}{aside.suffix}")
    return aside


def put_aside(file: Path) -> None:
    """Rename an unusable file, so that a person can still inspect it. Raises `OSError`."""
    file.replace(aside_of(file))
