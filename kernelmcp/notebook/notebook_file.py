"""`notebook.ipynb`: a notebook file whose cells are the lines of a journal, and to which cells are appended in place.

An append writes the new cells over the closing text and the closing text after them, so that it costs as much as the
cells do, however long the notebook is. A write that was torn is seen at the next opening and made good from the
journal. What somebody else has changed is never written over. Blocking.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from kernelmcp.atomic import replace
from kernelmcp.notebook.journal import put_aside

_METADATA = {
    "kernelspec": {"name": "kernelmcp", "display_name": "Python (kernelmcp)", "language": "python"},
    "language_info": {"name": "python"},
}
HEAD = b'{"cells": [\n'
FOOT = f'\n], "metadata": {json.dumps(_METADATA)}, "nbformat": 4, "nbformat_minor": 5}}\n'.encode()
SEPARATOR = b",\n"

log = structlog.get_logger(__name__)
Stamp = tuple[int, int, int, int]


class NotebookFile:
    """One notebook. The lines that it is given are cells, without newlines."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: Stamp | None = None
        """What the file looked like when we last wrote it, or found it complete."""

    def open(self, lines: Iterable[bytes]) -> bool:
        """Whether the file is the notebook of these lines. One that holds anything else is put aside; an older or a
        torn one of ours is not: everything in it is in the lines, too."""
        self._stamp = None
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
    def is_as_we_left_it(self) -> bool:
        """Nobody else has written it since."""
        try:
            return self._stamp is not None and _stamp(os.lstat(self._file)) == self._stamp
        except FileNotFoundError:
            return False

    def write(self, lines: Iterable[bytes]) -> None:
        """The whole notebook, anew. Raises `OSError`, and then the old one is there."""
        replace(self._file, lambda out: out.writelines(pieces(lines)))
        self._stamp = _stamp(os.lstat(self._file))

    def append(self, lines: Sequence[bytes]) -> None:
        """Cells at the end of a notebook that is as we left it and has cells. Raises `OSError`: it is as it was, if the
        disk allows that, and the next write must be a whole one."""
        fd = os.open(self._file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._stamp, expected = None, self._stamp
        try:
            if _stamp(os.fstat(fd)) != expected:
                raise OSError("the notebook was changed by somebody else just now")
            end = os.fstat(fd).st_size - len(FOOT)
            try:
                _write_at(fd, b"".join(SEPARATOR + line for line in lines) + FOOT, end)
            except OSError:
                with suppress(OSError):
                    _write_at(fd, FOOT, end)
                    os.ftruncate(fd, end + len(FOOT))
                raise
            self._stamp = _stamp(os.fstat(fd))
        finally:
            os.close(fd)


def pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a notebook."""
    yield HEAD
    for number, line in enumerate(lines):
        yield SEPARATOR + line if number else line
    yield FOOT


def _compare(stream: BinaryIO, lines: Iterable[bytes]) -> tuple[bool, bool]:
    """Whether the file is the notebook of these lines; and whether nothing is in it that is not in theirs.

    That is so for their beginning with the closing text (the server was killed between its two files), for their
    beginning alone, and for their beginning with what is left of an earlier closing text (it was killed as it wrote).
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
    """How many bytes at their beginning are the same."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _write_at(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written
