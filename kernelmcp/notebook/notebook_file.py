"""`notebook.ipynb`: a notebook file whose cells are lines of a log, and to which cells are appended.

An append takes the same time however long the notebook is, and a reader finds a valid file at any moment, even if we
are killed: there are two copies, the missing cells are written over the closing text of the spare one, and then the two
are swapped. Changes by others are never overwritten. Blocking.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from kernelmcp.atomic import put_aside, replace, write_at

_METADATA = {
    "kernelspec": {"name": "kernelmcp", "display_name": "Python (kernelmcp)", "language": "python"},
    "language_info": {"name": "python"},
}
HEAD = b'{"cells": [\n'
FOOT = f'\n], "metadata": {json.dumps(_METADATA)}, "nbformat": 4, "nbformat_minor": 5}}\n'.encode()
SEPARATOR = b",\n"

# Bytes per read when the spare is completed.
COPIED_BYTES = 1024 * 1024

log = structlog.get_logger(__name__)
Stamp = tuple[int, int, int, int]


class NotebookFile:
    """One notebook. Lines are cells in JSON, without newlines."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: Stamp | None = None
        """Identity, size and time of the file when we last wrote it or found it complete."""
        self._spare = file.with_name(f".{file.stem}.spare")
        self._older = file.with_name(f".{file.stem}.older")
        self._spare_end: int | None = None
        """The end of the notebook's cells in the spare, in bytes; None if there is no spare."""

    def open(self, lines: Iterable[bytes]) -> bool:
        """True if the file is the notebook of these lines. It is put aside if it contains anything else, but not if it
        is only older or incomplete, because then the lines contain all of it."""
        self._stamp = None
        self.drop_spare()
        if not self._file.is_file():
            if self._file.exists():
                put_aside(self._file)
            return False
        with self._file.open("rb") as stream:
            stamp = _stamp(os.fstat(stream.fileno()))
            is_complete, is_ours = _compare(stream, lines)
        if is_complete:
            self._stamp = stamp
        elif not is_ours:
            log.warning("a notebook was changed by somebody else, it is put aside", file=str(self._file))
            put_aside(self._file)
        return is_complete

    @property
    def size(self) -> int:
        """In bytes, as we left it."""
        return 0 if self._stamp is None else self._stamp[2]

    @property
    def is_as_we_left_it(self) -> bool:
        """True if nobody else has written the file since we did."""
        try:
            return self._stamp is not None and _stamp(os.lstat(self._file)) == self._stamp
        except FileNotFoundError:
            return False

    def write(self, lines: Iterable[bytes]) -> None:
        """Write the whole notebook again. Raises `OSError`; then the old one is unchanged."""
        self.drop_spare()
        replace(self._file, lambda out: out.writelines(pieces(lines)))
        self._stamp = _stamp(os.lstat(self._file))

    def append(self, lines: Sequence[bytes]) -> None:
        """Append cells to a notebook that has cells and is as we left it. Raises `OSError`; then it is unchanged."""
        fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _stamp(os.fstat(fd)) != self._stamp:
                raise OSError("the notebook was changed by somebody else just now")
            end = os.fstat(fd).st_size - len(FOOT)
            self._complete_spare(fd, end, [*(part for line in lines for part in (SEPARATOR, line)), FOOT])
        except BaseException:
            self.drop_spare()
            raise
        finally:
            os.close(fd)
        self._swap()
        self._spare_end = None if self._spare_end is None else end
        self._stamp = _stamp(os.lstat(self._file))

    def drop_spare(self) -> None:
        """Delete the second copy, which a notebook needs only while cells are appended."""
        self._spare_end = None
        for file in (self._spare, self._older):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _complete_spare(self, notebook: int, end: int, new: Sequence[bytes]) -> None:
        """Copy the cells that the spare lacks from the notebook, and append the new cells."""
        if self._spare_end is None:
            self.drop_spare()
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._spare, flags, 0o600)
        try:
            position = self._spare_end or 0
            while position < end:
                piece = os.pread(notebook, min(COPIED_BYTES, end - position), position)
                write_at(fd, [piece], position)
                position += len(piece)
            write_at(fd, new, end)
            os.ftruncate(fd, end + sum(map(len, new)))
        finally:
            os.close(fd)

    def _swap(self) -> None:
        """Swap the spare and the notebook in one step."""
        self._older.unlink(missing_ok=True)
        try:
            os.link(self._file, self._older)
        except OSError:  # a file system without hard links: the spare is recreated each time
            os.replace(self._spare, self._file)
            self._spare_end = None
        else:
            os.replace(self._spare, self._file)
            os.replace(self._older, self._spare)
            self._spare_end = 0


def pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a notebook, in pieces."""
    yield HEAD
    for number, line in enumerate(lines):
        yield SEPARATOR + line if number else line
    yield FOOT


def _compare(stream: BinaryIO, lines: Iterable[bytes]) -> tuple[bool, bool]:
    """Return whether the file is the notebook of these lines; and, if not, whether all of its content comes from them.

    That is so if the file has only the first lines: with the closing text (the server was killed before it wrote the
    notebook), without it, or with the rest of an earlier closing text (it was killed while it wrote the notebook).
    """
    same = 0
    ends: list[int] = []
    for piece in pieces(lines):
        found = stream.read(len(piece))
        if found != piece:
            same += _common(found, piece)
            break
        same += len(piece)
        ends = [*ends[-len(FOOT) :], same]
    else:
        if not stream.read(1):
            return True, True
    stream.seek(same)
    rest = stream.read(len(FOOT) + 1)
    remains = {FOOT[same - end :] for end in ends if same - end < len(FOOT)}
    return False, same >= len(HEAD) and (not rest or rest in remains)


def _common(one: bytes, other: bytes) -> int:
    """The length of the common prefix, in bytes."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
