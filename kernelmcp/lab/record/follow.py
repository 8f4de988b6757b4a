"""Follows one session's kernel process and writes its executions into the session's notebook, earlier ones too.

At first it adds cells of the journal that the notebook lacks, and running cells from their drafts; then the kernel's
messages; finally a note on how the kernel ended.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.record.iopub import Event, Iopub
from kernelmcp.lab.record.journal_tail import Draft, Entry, JournalTail, running
from kernelmcp.lab.record.outputs import display_id
from kernelmcp.lab.record.record import By, Record, cell_id

# Messages that arrive within this time are written together: a tab draws once, and a flood costs few transactions. It
# is longer if no tab shows the notebook: a change slows the model's next cells.
BATCH_SECONDS = 0.03
UNSEEN_BATCH_SECONDS = 0.5
# A cell is in the journal a moment after its kernel is idle; a very large one takes longer, and so does the first cell
# of a reopened session.
JOURNAL_SECONDS = (0.1, 0.5, 2.0, 8.0, 20.0)
DRAFT_SECONDS = 1.0
# Journal cells added to the notebook per batch, because other sessions wait meanwhile.
CELLS_AT_ONCE = 20
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Document:
    """The shared notebook to write into."""

    get: Callable[[], Awaitable[Any]]
    """Returns the notebook, which may have been unloaded and loaded again."""
    is_open: Callable[[], bool]
    """Returns whether a tab shows it."""


class Follower:
    """One session, from the start of a kernel process to its end. `record` outlives it."""

    def __init__(
        self, session: Descriptor, iopub: Iopub, record: Record, tail: JournalTail, persons: Persons, document: Document
    ) -> None:
        self._session = session
        self._iopub = iopub
        self._record = record
        self._tail = tail
        self._persons = persons
        self._document = document
        self._drafts: dict[str, Draft] = {}
        """Drafts of executions that began before we looked."""
        self._missing: set[str] = set()
        """Ended executions that the journal must have."""
        self._looks = 0
        # The first looks find the executions from before our socket was connected.
        self._next_look: float | None = time.monotonic()
        self._next_draft = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        reading = asyncio.create_task(self._iopub.read())
        try:
            await self._begin()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_to_look()):
                        await self._iopub.wait()
                        is_open = self._document.is_open()
                        await asyncio.sleep(BATCH_SECONDS if is_open else UNSEEN_BATCH_SECONDS)
                await self._write(self._iopub.take())
                await self._look()
        finally:
            reading.cancel()
            self._iopub.close()

    async def end(self, words: str, key: str) -> None:
        """Write the messages that have arrived, and a note that contains the time, in `words`: the kernel process is
        gone. Call it after `run`."""
        self._record.notebook = notebook = await self._document.get()
        with notebook.ydoc.transaction():
            self._feed(self._iopub.take())
            self._record.abandon()
            self._record.note(key, f"*{words.format(datetime.now().astimezone().strftime('%H:%M'))}*")

    # -- earlier executions -------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._record.notebook = await self._document.get()
        self._record.look()
        entries = await asyncio.to_thread(self._tail.new)
        await self._put(entries)
        ended = {entry.execution_id for entry in entries}
        self._miss(set(self._record.abandoned) - ended)
        self._record.abandoned = []
        await self._find_drafts(ended)

    async def _find_drafts(self, ended: set[str]) -> None:
        for draft in await asyncio.to_thread(running, self._session.directory):
            name = draft.execution_id
            if name not in ended and name not in self._drafts and self._record.is_open(name):
                self._drafts[name] = draft

    def _is_unfinished(self, entry: Entry) -> bool:
        return cell_id(entry.execution_id) in self._record.unfinished

    async def _put(self, entries: list[Entry]) -> None:
        """Write missing or incomplete entries into the notebook, each before the entries that followed it."""
        first = 0
        if self._tail.is_anew:
            # Entries that are missing before the last existing one were removed or omitted.
            seen = [at for at, entry in enumerate(entries) if self._record.knows(entry.execution_id)]
            first = seen[-1] + 1 if seen else 0
        wanted = [entry for at, entry in enumerate(entries) if self._is_wanted(entry, is_new=at >= first)]
        after = _successors(entries, self._record.knows)
        for at in range(0, len(wanted), CELLS_AT_ONCE):
            some = wanted[at : at + CELLS_AT_ONCE]
            cells = await asyncio.to_thread(self._tail.cells, some)
            self._record.notebook = notebook = await self._document.get()
            with notebook.ydoc.transaction():
                for entry, cell in zip(some, cells, strict=True):
                    if cell:
                        self._record.put(cell, before=after.get(entry.execution_id))
                self._record.shrink()

    def _miss(self, execution_ids: set[str]) -> None:
        if execution_ids - self._missing:
            self._missing |= execution_ids
            self._looks = 0
            self._next_look = time.monotonic() + JOURNAL_SECONDS[0]

    def _seconds_to_look(self) -> float | None:
        times = [] if self._next_look is None else [self._next_look]
        if self._drafts:
            times.append(self._next_draft)
        return max(0.0, min(times) - time.monotonic()) if times else None

    async def _look(self) -> None:
        """Check the drafts of running executions, and the journal for ended ones."""
        if self._drafts and time.monotonic() >= self._next_draft:
            self._next_draft = time.monotonic() + DRAFT_SECONDS
            await self._look_at_drafts()
        if self._next_look is None or time.monotonic() < self._next_look:
            return
        entries = await asyncio.to_thread(self._tail.new)
        await self._put(entries)
        ended = {entry.execution_id for entry in entries}
        self._missing -= ended
        for execution_id in ended:
            self._drafts.pop(execution_id, None)
        await self._find_drafts(ended)
        self._looks += 1
        if self._looks < len(JOURNAL_SECONDS):
            self._next_look = time.monotonic() + JOURNAL_SECONDS[self._looks]
            return
        self._next_look = None
        self._record.notebook = notebook = await self._document.get()
        with notebook.ydoc.transaction():
            for execution_id in self._missing:
                self._record.say_left_out(execution_id)
        self._missing.clear()

    def _is_wanted(self, entry: Entry, *, is_new: bool) -> bool:
        """True if it is missing or incomplete in the notebook, and no browser has written it."""
        if entry.by == "person" and entry.client in self._persons:
            return False
        is_lacking = is_new and not self._record.knows(entry.execution_id)
        return is_lacking or entry.execution_id in self._missing or self._is_unfinished(entry)

    async def _look_at_drafts(self) -> None:
        drafts = list(self._drafts.values())
        news = await asyncio.to_thread(lambda: [draft.new() for draft in drafts])
        if not any(news):
            return
        self._record.notebook = notebook = await self._document.get()
        with notebook.ydoc.transaction():
            for draft, messages in zip(drafts, news, strict=True):
                for kind, content in messages:
                    if kind == "begin":
                        self._record.begin(draft.execution_id, content["code"], None, "model")
                    else:
                        self._record.feed(draft.execution_id, kind, content)

    # -- messages of the kernel ---------------------------------------------------------------------------------

    async def _write(self, events: list[Event]) -> None:
        if not events:
            return
        self._record.notebook = notebook = await self._document.get()
        with notebook.ydoc.transaction():
            self._feed(events)
            self._record.shrink()

    def _feed(self, events: list[Event]) -> None:
        for event in _joined(events):
            if event.kind == "execute_input":
                self._drafts.pop(event.execution_id, None)
                code, count = str(event.content.get("code", "")), event.content.get("execution_count")
                self._record.begin(event.execution_id, code, count, _by(event))
            elif event.kind == "end":
                self._end_of(event.execution_id)
            elif event.kind == "left_out":
                self._record.leave_out(event.execution_id)
            elif event.execution_id not in self._drafts:  # otherwise its draft shows it
                self._record.feed(event.execution_id, event.kind, event.content)

    def _end_of(self, execution_id: str) -> None:
        """Handle the end of an execution. If its beginning or a part was missed here, the journal has it."""
        is_draft = self._drafts.pop(execution_id, None) is not None
        if not self._record.is_whole(execution_id) and not self._record.end(execution_id, whole=not is_draft):
            self._miss({execution_id})


def _by(event: Event) -> By:
    """Tell clients by their message ids. Jupyter's clients use a session's id and a number, or a UUID; a server's
    executions use neither."""
    theirs = event.execution_id.startswith(event.client) or _UUID.fullmatch(event.execution_id)
    return "person" if theirs else "model"


def _successors(entries: list[Entry], is_there: Callable[[str], bool]) -> dict[str, str]:
    """For each missing entry, the next existing cell of the notebook; none for those at the end."""
    found: dict[str, str] = {}
    after: str | None = None
    for entry in reversed(entries):
        if is_there(entry.execution_id):
            after = entry.execution_id
        elif after is not None:
            found[entry.execution_id] = after
    return found


def _joined(events: list[Event]) -> Iterator[Event]:
    """Merge neighbouring texts of one stream, and keep only the last of neighbouring updates of one display: a cell
    that updates one for ever is drawn as often as time allows."""
    for (execution_id, client, kind, name), group in groupby(events, _run):
        if kind == "stream":
            text = "".join(str(event.content.get("text", "")) for event in group)
            yield Event(execution_id, client, kind, {"name": name, "text": text})
        elif kind == "update_display_data":
            *_, last = group
            yield last
        else:
            yield from group


def _run(event: Event) -> tuple[str, str, str, Any]:
    name: Any = event.content.get("name") if event.kind == "stream" else display_id(event.content)
    return event.execution_id, event.client, event.kind, name
