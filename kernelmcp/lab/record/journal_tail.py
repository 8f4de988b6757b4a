"""Lab's reader of a session's journal and of the drafts of running cells, for cells that Lab has not seen happen.

Another process writes them at any moment, so the last line may be incomplete. Blocking.
"""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kernelmcp.notebook.cells import MAX_CELL_BYTES, MAX_SOURCE_CHARS
from kernelmcp.notebook.drafts import DRAFTS
from kernelmcp.notebook.transcript import JOURNAL, MAX_FOREIGN_BYTES
from kernelmcp.output.sanitize import as_dict, clean

# A character of the source or of an output takes at most six bytes.
MAX_LINE_BYTES = 6 * (MAX_CELL_BYTES + MAX_SOURCE_CHARS)
MAX_DRAFT_BYTES = 4 * MAX_CELL_BYTES


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell of the journal, and its position."""

    execution_id: str
    by: str
    client: str
    offset: int
    length: int


class JournalTail:
    """Reads new journal entries since the last call; all of them if it was rewritten meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / JOURNAL
        self.is_anew = True
        """True if the last result starts with the first cell of the journal."""
        self._read_up_to = 0
        self._stamp: tuple[int, int] = (0, 0)

    def new(self) -> list[Entry]:
        """Return the new entries. Empty if the file cannot be read."""
        stream, found = _open(self._file, 2 * MAX_FOREIGN_BYTES)
        if stream is None or found is None:
            return []
        with stream:
            if (found.st_dev, found.st_ino) != self._stamp or found.st_size < self._read_up_to:
                self._stamp, self._read_up_to = (found.st_dev, found.st_ino), 0
            self.is_anew = self._read_up_to == 0
            stream.seek(self._read_up_to)
            entries: list[Entry] = []
            while (line := stream.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                if (entry := _entry(line, self._read_up_to)) is not None:
                    entries.append(entry)
                self._read_up_to += len(line)
            return entries

    def cells(self, entries: list[Entry]) -> list[dict[str, Any]]:
        """The cells; an empty one for each that can no longer be read."""
        return [self._cell(entry) for entry in entries]

    def _cell(self, entry: Entry) -> dict[str, Any]:
        try:
            with self._file.open("rb") as stream:
                stream.seek(entry.offset)
                return _parsed(stream.read(entry.length))
        except OSError:
            return {}


class Draft:
    """The output of a running execution so far, as messages; each is returned once."""

    def __init__(self, file: Path) -> None:
        self.execution_id = file.stem
        self._file = file
        self._code = ""
        self._read_up_to = 0

    def new(self) -> list[tuple[str, dict[str, Any]]]:
        """Return new messages. The first one is `begin`, with the code; it is repeated after the cell has cleared its
        output."""
        stream, status = _open(self._file, MAX_DRAFT_BYTES)
        found: list[tuple[str, dict[str, Any]]] = []
        if stream is None or status is None:
            return found
        with stream:
            if status.st_size < self._read_up_to:
                self._read_up_to = 0
            stream.seek(self._read_up_to)
            while (line := stream.readline()).endswith(b"\n"):
                self._read_up_to += len(line)
                entry = _parsed(line)
                if "code" in entry:
                    self._code = str(entry["code"])
                elif entry.get("began"):
                    found.append(("begin", {"code": self._code}))
                elif isinstance(kind := entry.get("kind"), str):
                    found.append((kind, as_dict(entry.get("content"))))
        return found


def running(directory: Path) -> list[Draft]:
    """The drafts of a session: of running executions, and of those that ran when an earlier server was killed."""
    try:
        return [Draft(file) for file in sorted((directory / DRAFTS).glob("*.jsonl"))]
    except OSError:
        return []


def _open(file: Path, max_bytes: int) -> tuple[BinaryIO, os.stat_result] | tuple[None, None]:
    """Open a regular file that is not too large. Returns None if there is none, or it cannot be read."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None, None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes:
        return os.fdopen(fd, "rb"), found
    os.close(fd)
    return None, None


def _entry(line: bytes, offset: int) -> Entry | None:
    cell = _parsed(line)
    if not cell:
        return None
    facts = as_dict(as_dict(cell.get("metadata")).get("kernelmcp"))
    execution_id = clean(facts.get("execution_id", cell.get("id", "")))
    by, client = str(facts.get("by", "model")), str(facts.get("client", ""))
    return Entry(execution_id, by, client, offset, len(line))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return as_dict(json.loads(line))
    except (ValueError, RecursionError):
        return {}
