"""New lines of a log that another process writes. Blocking, except `has_news`.

A position is valid only until the file is rewritten. Then all lines come again, and a follower skips the cells that it
has.
"""

import os
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernelmcp.cells import event
from kernelmcp.cells.lookup import SEARCHED_BYTES
from kernelmcp.output.sanitize import as_dict

# The beginning of an ended cell's line that names its client.
HEAD_BYTES = 600


@dataclass(frozen=True, slots=True)
class Entry:
    """A line, an event or an ended cell, and its position."""

    kind: str
    cell: str
    offset: int
    length: int
    checksum: str = ""
    by: str = "model"
    client: str = ""
    line: bytes = b""
    """Only of events; `Tail.lines` reads those of ended cells."""


class Tail:
    """A reader of one log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.is_anew = True
        """True if the last result starts with the first line of the log."""
        self._read_up_to = 0
        self._stream: BinaryIO | None = None
        """The file that was read last. It stays open, so that no other file gets its inode number meanwhile."""
        self._stamp: tuple[int, int] = (0, 0)
        self._size = -1

    def has_news(self) -> bool:
        """True if the file has changed. Takes microseconds, and needs no thread."""
        try:
            found = os.stat(self._file, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) != self._stamp or found.st_size != self._size

    def new(self) -> list[Entry]:
        """Return the lines since the last call. Empty if the file cannot be read."""
        if (stream := self._open()) is None:
            return []
        found = os.fstat(stream.fileno())
        if (found.st_dev, found.st_ino) != self._stamp or found.st_size < self._read_up_to:
            self._stamp, self._read_up_to = (found.st_dev, found.st_ino), 0
        self._stream, self._size = stream, found.st_size
        self.is_anew = self._read_up_to == 0
        stream.seek(self._read_up_to)
        entries: list[Entry] = []
        while (line := stream.readline()).endswith(b"\n"):
            if (entry := _entry(line, self._read_up_to)) is not None:
                entries.append(entry)
            self._read_up_to += len(line)
        return entries

    def lines(self, entries: list[Entry]) -> list[bytes]:
        """The lines of ended cells; an empty one for each that is damaged."""
        if (stream := self._stream) is None:
            return [b""] * len(entries)
        found: list[bytes] = []
        for entry in entries:
            stream.seek(entry.offset)
            line = stream.read(entry.length).rstrip(b"\n")
            found.append(line if event.is_whole(line) or not event.kind_of(line)[0] else b"")
        return found

    def _open(self) -> BinaryIO | None:
        try:
            fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_size <= SEARCHED_BYTES:
            stream = os.fdopen(fd, "rb", closefd=False)
            weakref.finalize(stream, os.close, fd)  # a thread may read while its follower is cancelled
            return stream
        os.close(fd)
        return None


def _entry(line: bytes, offset: int) -> Entry | None:
    kind, cell = event.kind_of(line)
    if kind in ("submitted", "began", "output", "late", "cancelled"):
        return Entry(kind, cell, offset, len(line), line=line)
    checksum = event.sum_of(line)
    if kind == "cell" and b'"by": "person"' not in line[:HEAD_BYTES]:
        return Entry(kind, cell, offset, len(line), checksum)
    found = event.parsed(line)
    facts = as_dict(as_dict(found.get("metadata")).get("kernelmcp"))
    if not isinstance(cell := facts.get("execution_id", found.get("id")), str):
        return None
    by, client = str(facts.get("by", "model")), str(facts.get("client", ""))
    return Entry("cell", cell, offset, len(line), checksum, by, client)
