"""Follows one session's log while its kernel process lives, and writes its executions into the session's notebook.

At first it adds the cells of the log that the notebook lacks; then each line as it comes; finally a note on how the
kernel ended.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kernelmcp.cells import event
from kernelmcp.cells.lookup import LOG
from kernelmcp.cells.tail import Entry, Tail
from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.record.cell_record import MAX_CELLS, Record, cell_id
from kernelmcp.lab.record.outputs import tame_line
from kernelmcp.output.sanitize import as_list

# Lines that arrive within this time are written together: a tab draws once. It is longer if no tab shows the notebook:
# a change slows the model's next cells.
LOOK_SECONDS = 0.03
UNSEEN_LOOK_SECONDS = 0.5
# Lines written into the notebook per transaction, because other sessions wait meanwhile.
LINES_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Document:
    """The shared notebook to write into."""

    get: Callable[[], Awaitable[Any]]
    """Returns the notebook, which may have been unloaded and loaded again."""
    is_open: Callable[[], bool]
    """Returns whether a tab shows it."""


class Follower:
    """One session, from the start of a kernel process to its end. `on_state` is called with `busy` and `idle`."""

    def __init__(
        self, session: Descriptor, persons: Persons, document: Document, on_state: Callable[[str], None]
    ) -> None:
        self._file = session.directory / LOG
        self._tail = Tail(self._file)
        self._record = Record()
        self._persons = persons
        self._document = document
        self._on_state = on_state
        self._ended: dict[str, Entry] = {}
        """The newest lines of ended cells."""
        self._running: set[str] = set()
        self._of_browsers: set[str] = set()
        """Cells that browsers write themselves."""
        self._left: dict[str, str] = {}
        """Of those that have just ended, the ones whose browsers were gone before, with their cells in the notebook."""

    async def run(self) -> None:
        """Run until cancelled."""
        await self._open()
        while True:
            if self._tail.has_news():
                await self._write(await asyncio.to_thread(self._tail.new))
            await asyncio.sleep(LOOK_SECONDS if self._document.is_open() else UNSEEN_LOOK_SECONDS)

    async def end(self, words: str, key: str) -> None:
        """Write the lines that have arrived, and a note that contains the time, in `words`: the kernel process is gone.
        Call it after `run`."""
        if self._record.notebook is None:
            await self._open()
        self._tail = Tail(self._file)  # `run` may have been cancelled between reading and writing
        await self._write(await asyncio.to_thread(self._tail.new))
        self._record.notebook = notebook = await self._document.get()
        with notebook.ydoc.transaction():
            self._record.abandon()
            self._record.note(key, f"*{words.format(datetime.now().astimezone().strftime('%H:%M'))}*")

    async def _open(self) -> None:
        self._record.notebook = await self._document.get()
        self._record.look()

    async def _write(self, entries: list[Entry]) -> None:
        """Write what the notebook lacks, each ended cell before the cells that followed it."""
        if self._tail.is_anew:
            self._ended.clear()
            self._running.clear()
        for entry in entries:
            self._note(entry)
        entries = self._newest(entries)
        after = _successors(entries, self._record.knows)
        wanted = self._wanted(entries)
        for at in range(0, len(wanted), LINES_AT_ONCE):
            some = wanted[at : at + LINES_AT_ONCE]
            found = await asyncio.to_thread(self._read, some)
            self._record.notebook = notebook = await self._document.get()
            with notebook.ydoc.transaction():
                for entry, line in zip(some, found, strict=True):
                    self._apply(entry, line, after.get(entry.cell))
                self._record.shrink()
        self._on_state("busy" if self._running else "idle")

    def _read(self, entries: list[Entry]) -> list[dict[str, Any]]:
        cells = iter(self._tail.lines([entry for entry in entries if entry.kind == "cell"]))
        lines = [next(cells) if entry.kind == "cell" else entry.line for entry in entries]
        return [tame_line(event.parsed(line)) for line in lines]

    def _apply(self, entry: Entry, line: dict[str, Any], before: str | None) -> None:
        match entry.kind:
            case "cell" if line and entry.cell in self._left:
                self._record.complete(self._left.pop(entry.cell), line)
            case "cell" if line:
                self._record.put(line, before)
            case "submitted":
                self._record.submitted(entry.cell, str(line.get("code", "")))
            case "began":
                self._record.began(entry.cell, "person" if line.get("by") == "person" else "model")
            case "output" | "late":
                self._record.feed(entry.cell, [as_list(op) for op in as_list(line.get("ops"))])
            case "cancelled":
                self._record.cancelled(entry.cell)
            case _:  # an ended cell that can no longer be read
                pass

    # -- what to write ------------------------------------------------------------------------------------------

    def _newest(self, entries: list[Entry]) -> list[Entry]:
        """Without the ended cells that the notebook has no room for, and their events."""
        ended = dict.fromkeys(entry.cell for entry in entries if entry.kind == "cell")
        old = list(ended)[:-MAX_CELLS]
        shown = self._record.unfinished
        gone = {cell for cell in old if cell not in self._left and cell_id(cell) not in shown}
        return [entry for entry in entries if entry.cell not in gone] if gone else entries

    def _wanted(self, entries: list[Entry]) -> list[Entry]:
        """The lines that the notebook lacks, and that no browser writes."""
        is_anew = self._tail.is_anew
        left = [entry for entry in entries if entry.kind == "cell" and entry.cell in self._left]
        entries = [entry for entry in entries if entry.cell not in self._of_browsers]
        ends = {entry.cell: entry for entry in entries if entry.kind == "cell"}
        self._ended |= ends
        # Entries that are missing before the last existing one were removed or omitted.
        seen = [entry.offset for entry in ends.values() if self._record.knows(entry.cell)] if is_anew else []
        first = max(seen, default=-1) + 1
        # The notebook may have the late output of these already: they are written again.
        again = {entry.cell for entry in entries if is_anew and entry.kind == "late"}
        complete = set(ends)
        wanted: list[Entry] = []
        for entry in entries:
            cell = entry.cell
            if entry.kind == "cell":
                is_known = self._record.knows(cell)
                is_lacking = cell in again or not self._record.is_current(cell, entry.checksum)
                if entry is ends[cell] and (is_lacking if is_known else entry.offset >= first):
                    wanted.append(entry)
            elif entry.kind == "late":
                if cell not in complete and self._record.knows(cell) and not self._record.is_shown(cell):
                    complete.add(cell)
                    wanted += [self._ended[cell]] if cell in self._ended else []
                wanted.append(entry)
            elif cell not in ends and not self._record.is_whole(cell):
                wanted.append(entry)
        return wanted + left

    def _note(self, entry: Entry) -> None:
        """Note which cells are running, and which ones browsers write."""
        by, client = entry.by, entry.client
        if entry.kind == "began":
            self._running.add(entry.cell)
            facts = event.parsed(entry.line)
            by, client = facts.get("by"), facts.get("client")
        elif entry.kind in ("cell", "cancelled"):
            self._running.discard(entry.cell)
        if by == "person" and client in self._persons:
            self._of_browsers.add(entry.cell)
            if entry.kind == "cell" and (left := self._persons.ended(entry.cell, str(client))) is not None:
                self._left[entry.cell] = left


def _successors(entries: list[Entry], is_there: Callable[[str], bool]) -> dict[str, str]:
    """For each missing cell, the next existing cell of the notebook; none for those at the end."""
    found: dict[str, str] = {}
    after: str | None = None
    for entry in reversed(entries):
        if entry.kind not in ("began", "cell"):
            continue
        if is_there(entry.cell):
            after = entry.cell
        elif after is not None:
            found[entry.cell] = after
    return found
