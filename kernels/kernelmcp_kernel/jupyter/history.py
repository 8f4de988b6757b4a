"""The kernel's input history. It is kept here and not in the guest so that it survives the guest's end."""

from __future__ import annotations

import fnmatch
from collections import deque
from dataclasses import dataclass

# Cells kept; a frontend requests about 1000 of them when it opens.
_MAX_CELLS = 2000
# Characters of all these cells together.
_MAX_CHARS = 8 * 2**20

# This kernel keeps no history of earlier sessions.
_SESSION = 0

Entry = tuple[int, int, str]
"""session, line (execution count), source"""


@dataclass(frozen=True)
class Search:
    """The glob of a history_request with access type `search`."""

    pattern: str
    most: int | None
    unique: bool


class History:
    """Cells in the order they ran."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._chars = 0

    def add(self, line: int, source: str) -> None:
        """Remember a cell."""
        self._entries.append((_SESSION, line, source))
        self._chars += len(source)
        while len(self._entries) > _MAX_CELLS or self._chars > _MAX_CHARS:
            self._chars -= len(self._entries.popleft()[2])

    def tail(self, count: int) -> list[Entry]:
        """The newest `count` cells, oldest first."""
        return list(self._entries)[-count:] if count > 0 else []

    def range(self, start: int, stop: int | None) -> list[Entry]:
        """Cells with start <= line < stop; without a stop, to the end."""
        return [entry for entry in self._entries if entry[1] >= start and (stop is None or entry[1] < stop)]

    def search(self, search: Search) -> list[Entry]:
        """Cells whose source matches the glob, oldest first."""
        found = [entry for entry in self._entries if fnmatch.fnmatchcase(entry[2], search.pattern)]
        if search.unique:
            found = list({entry[2]: entry for entry in found}.values())
        return found[-search.most :] if search.most else found
