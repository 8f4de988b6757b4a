"""The log of one session, `notebook.jsonl`: one line for each ended cell, and a few for a running one.

The process that holds the session's lock writes it; any process may read it. A line is written before anybody is told
what it says. Opening a log parses nothing, and nobody waits for it. Must not know executions.

A cell that ends within `FLUSH_SECONDS` costs one line. For longer ones the log has the output so far, merged: one event
for a run of text, the last update of a display, and nothing of what was cleared.
"""

import asyncio
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from kernelmcp.atomic import open_own, put_aside, sweep_drafts, write_at
from kernelmcp.cells import event
from kernelmcp.cells.event import Op
from kernelmcp.cells.line import (
    MAX_CELL_BYTES,
    MAX_METADATA_BYTES,
    MAX_SOURCE_CHARS,
    MAX_TEXT_CHARS,
    bundle,
    cut,
    left_out_cell,
    size,
    untrusted,
    without_outputs,
)
from kernelmcp.cells.lookup import MAX_LOG_BYTES, last_bytes, requests, stopped, unfinished, whole_lines

# Longest time that an event of a running cell waits before it is written.
FLUSH_SECONDS = 0.05
# Limit for all events of one cell, even if it clears its output repeatedly.
MAX_EVENT_BYTES = 4 * MAX_CELL_BYTES
# Limit for lines that could not be written: the disk is full.
MAX_WAITING_BYTES = 32 * 1024 * 1024
# The end of a run of text that is too long for events.
NOT_IN_LOG = "\n[the rest of this text is left out here]\n"

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Recorder:
    """The events of one cell that are not written yet."""

    log: "CellLog"
    cell: str
    lines: list[Callable[[], bytes]] = field(default_factory=list[Callable[[], bytes]])
    """Made when they are written: most cells end before."""
    ops: list[Op] = field(default_factory=list[Op])
    changes: dict[int, Op] = field(default_factory=dict[int, Op])
    """The last update of each display, after all others."""
    late: bool = False
    """The cell has ended, and its line does not have these events."""
    is_on_disk: bool = False
    quiet: bool = False
    """It has used up its share of the log; the line of its end has the rest."""
    written: int = 0
    room: int = MAX_CELL_BYTES
    run: str = ""
    run_chars: int = 0

    def add(self, op: Op) -> None:
        """Record one event; the `on_event` of a fold."""
        if self.quiet or not self._keep(op):
            return
        if self.late:
            self.log.follow(self)
        if self.log.is_calm:
            self.log.flush_soon()

    def _keep(self, op: Op) -> bool:
        """Keep it until it is written; False if there is nothing to write."""
        match op:
            case ["text", name, text]:  # most are
                return self._add_text(name, text)
            case ["change", n, *_]:
                self.changes[n] = op
            case ["dropped", displays, types] if self.ops and self.ops[-1][0] == "dropped":
                self.ops[-1] = ["dropped", self.ops[-1][1] + displays, self.ops[-1][2] + types]
            case ["clear"]:
                self.ops = [one for one in self.ops if one[0] in ("dropped", "error")]
                self.changes.clear()
                self.room = MAX_CELL_BYTES
                if self.is_on_disk or self.late:
                    self.ops.append(op)
            case _:
                self.ops.append(op)
        self.run = ""
        return True

    def _add_text(self, name: str, text: str) -> bool:
        if self.run != name:
            self.run, self.run_chars = name, 0
        room = min(MAX_TEXT_CHARS - self.run_chars, self.room)
        if room <= 0 or not text:
            return False
        kept = text if len(text) <= room else text[:room]
        self.run_chars += len(kept)
        self.room -= len(kept)
        if len(kept) == room:
            kept += NOT_IN_LOG
        last = self.ops[-1] if self.ops else None
        if last is not None and last[0] == "texts" and last[1] == name:
            last[2].append(kept)
        else:
            self.ops.append(["texts", name, [kept]])
        return True

    def take(self) -> list[bytes]:
        """Return what is to be written now, in parts."""
        if self.late and self.log.late_bytes > MAX_EVENT_BYTES:
            return []  # after the log is rewritten
        waiting, self.ops, self.changes = [*self.ops, *self.changes.values()], [], {}
        ops = [kept for op in waiting if (kept := _for_log(op)) is not None]
        parts, self.lines = [part for make in self.lines for part in (make(), b"\n")], []
        self.written += sum(map(len, parts))
        if ops:
            try:
                output = event.output(self.cell, ops, late=self.late)
            except ValueError:  # our bug: the fold leaves only JSON
                log.exception("an output could not be recorded", cell=self.cell)
            else:
                length = sum(map(len, output)) + 1
                self.quiet = not self.late and self.written + length > MAX_EVENT_BYTES
                if not self.quiet:
                    parts += [*output, b"\n"]
                    self.written += length
                    if self.late:
                        self.log.note_late(length)
        self.is_on_disk = self.is_on_disk or bool(parts)
        return parts


def _for_log(op: Op) -> Op | None:
    match op:
        case ["texts", name, pieces]:
            return ["text", name, "".join(pieces)]
        case ["show", kind, data, metadata, display_id]:
            return ["show", kind, bundle(data), _bounded(metadata), display_id]
        case ["change", n, data, metadata]:
            return ["change", n, bundle(data), _bounded(metadata)]
        case ["head", *_]:
            return None
        case _:
            return op


def _bounded(metadata: dict[str, Any]) -> dict[str, Any]:
    found = untrusted(metadata)
    return found if size(found) <= MAX_METADATA_BYTES else {}


def _ignore() -> None:
    """The default of `on_late`."""


class CellLog:
    """The writer of one log. All methods except `rewrite` run in the event loop."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.size: int = 0
        """Bytes, up to the last whole line."""
        self.is_new = True
        """There was no log of an earlier server."""
        self.generation: int = 0
        """Changes when the file is rewritten: earlier positions mean nothing then."""
        self.on_late: Callable[[], None] = _ignore
        """Called when an ended cell puts something out."""
        self.last_at = 0.0
        """When an earlier server last wrote the file, in seconds since the epoch."""
        self.requests: dict[str, str] = {}
        """The cells that earlier servers have begun for these HTTP requests."""
        self.stopped: list[str] = []
        """The cells that ran or waited when the previous server ended."""
        self.has_late = False
        """Cells have changed after their end, so that their lines are out of date."""
        self.late_bytes = 0
        """The size of the events of ended cells since the log was last rewritten."""
        self._unwritten: list[bytes] = []
        self._lost = 0
        """How many ended cells were too many to be kept until they can be written."""
        self._recorders: dict[str, Recorder] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushed = 0.0

    @property
    def is_calm(self) -> bool:
        """True if nothing is about to be written."""
        return self._timer is None

    def unwritten_cells(self) -> list[bytes]:
        """The lines of ended cells that could not be written yet."""
        lines = b"".join(self._unwritten).splitlines()
        return [line for line in lines if event.kind_of(line)[0] == "cell"]

    @property
    def is_written(self) -> bool:
        """True if every ended cell is in the file."""
        return not self._unwritten and not self._lost

    # -- open ---------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, list[bytes]]:
        """Cut off an incomplete line at the end. Returns the events of each cell that never ended. Raises `OSError`."""
        sweep_drafts(self.file)
        try:
            found = self.file.lstat()
        except FileNotFoundError:
            return {}
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_LOG_BYTES:
            log.error("a log is not a regular file, or far too large; it is put aside", file=str(self.file))
            put_aside(self.file)
            return {}
        start, data = last_bytes(self.file)
        self.size, self.last_at = start + data.rfind(b"\n") + 1, found.st_mtime
        if self.size < start + len(data):
            log.warning("the last line of a log was incomplete", file=str(self.file))
            os.truncate(self.file, self.size)
        self.is_new = not self.size
        left, self.has_late = unfinished(data)
        self.stopped = [*stopped(data), *left]
        self.requests = requests(data, [lines[0] for lines in left.values()])
        return left

    # -- write --------------------------------------------------------------------------------------------------

    def submitted(self, cell: str, at: str, code: str, request: str | None = None) -> Recorder:
        line = partial(event.submitted, cell, at, cut(code, MAX_SOURCE_CHARS, "# "), request)
        recorder = self._recorders[cell] = Recorder(self, cell, [line])
        self.flush_soon()
        return recorder

    def began(self, cell: str, *, may_be_repeated: bool = False, **facts: Any) -> None:
        """Note that it runs now. Written at once if the file has it already, or if its request `may_be_repeated`:
        otherwise a server that takes over would believe that it waited."""
        if (recorder := self._recorders.get(cell)) is None:
            return
        recorder.lines.append(partial(event.began, cell, event.now(), facts))
        if recorder.is_on_disk or may_be_repeated:
            self.flush()
        else:
            self.flush_soon()

    def ended(self, cell: str, line: bytes) -> None:
        """Write the line of an ended cell at once. It has what was not written yet."""
        if (recorder := self._recorders.pop(cell, None)) is not None:
            recorder.lines, recorder.ops, recorder.changes, recorder.run = [], [], {}, ""
            recorder.late, recorder.quiet, recorder.written, recorder.room = True, False, 0, MAX_CELL_BYTES
        if not self._write(line, b"\n") and not self._write(without_outputs(line), b"\n"):
            self._lost += 1

    def cancelled(self, cell: str, *, as_task: bool = False) -> None:
        """Note that it ended without having begun."""
        recorder = self._recorders.pop(cell, None)
        if recorder is not None and recorder.is_on_disk:
            self._write(event.cancelled(cell, as_task=as_task) + b"\n")

    def abandon(self) -> None:
        """Write nothing more: the session is being deleted."""
        if self._timer is not None:
            self._timer.cancel()
        self._recorders.clear()

    def follow(self, recorder: Recorder) -> None:
        """Write the events of an ended cell with the next ones."""
        self._recorders[recorder.cell] = recorder

    def note_late(self, size: int) -> None:
        """Note that an ended cell has put out something, of so many bytes."""
        self.late_bytes += size
        self.has_late = True
        self.on_late()

    def flush_soon(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            first = self._flushed < loop.time() - 1
            at = loop.time() + FLUSH_SECONDS if first else max(loop.time() + 0.005, self._flushed + FLUSH_SECONDS)
            self._timer = loop.call_at(at, self.flush)

    def flush(self) -> None:
        """Write the events so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._flushed = asyncio.get_running_loop().time()
        parts = [part for recorder in self._recorders.values() for part in recorder.take()]
        for recorder in [one for one in self._recorders.values() if one.late and not one.ops and not one.changes]:
            del self._recorders[recorder.cell]
        if self._unwritten:
            self._write()  # ended cells come first on a full disk
        if self._unwritten:
            # Of cells that have not ended, what a server that takes over must know; of others, what no line will have.
            lines = b"".join(parts).splitlines(keepends=True)
            for kinds in (("submitted", "began"), ("late",)):
                kept = b"".join(each for each in lines if event.kind_of(each)[0] in kinds)
                if len(kept) + sum(map(len, self._unwritten)) <= MAX_WAITING_BYTES:
                    self._unwritten.append(kept)
        elif parts:
            self._write(*parts)

    def _write(self, *parts: bytes) -> bool:
        """Append all or nothing. What cannot be written is kept for the next time; False if that would be too much."""
        parts = (*self._unwritten, *parts)
        length = sum(map(len, parts))
        try:
            self._append(parts, length)
        except OSError as exc:
            if not self._unwritten:
                log.error("the record of a cell could not be written", file=str(self.file), error=str(exc))
            if length > MAX_WAITING_BYTES:
                return False
            self._unwritten = [b"".join(parts)]
            return True
        self._unwritten = []
        if self._lost:
            lost, self._lost = self._lost, 0
            self._write(left_out_cell(lost, "they could not be written"), b"\n")
        return True

    def _append(self, parts: Sequence[bytes], length: int) -> None:
        """Append these bytes. No descriptor stays open, however many sessions there are. Raises `OSError`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self.file, flags, 0o600)
        try:
            if (found := os.fstat(fd).st_size) < self.size:  # somebody has deleted or replaced it
                self.size, self.generation = found, self.generation + 1
            try:
                write_at(fd, parts, self.size)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, self.size)
                raise
            self.size += length
        finally:
            os.close(fd)

    # -- rewrite ------------------------------------------------------------------------------------------------

    def rewrite(self, lines: Callable[[Iterator[bytes]], Iterator[bytes]], upto: int) -> Path:
        """Write a new file with what `lines` makes of the lines up to `upto`, in bytes; `put` takes it into use. For a
        thread. Raises `OSError`."""
        new = self.file.with_name(f".{self.file.name}.{secrets.token_hex(4)}")  # as `sweep_drafts` finds it
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as out:
                out.writelines(line + b"\n" for line in lines(whole_lines(self.file, 0, upto)))
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        return new

    def put(self, new: Path, upto: int) -> None:
        """Take a rewritten file into use, with the lines that were written since. Raises `OSError`."""
        try:
            with new.open("r+b") as out:
                out.seek(0, os.SEEK_END)
                if self.size > upto:
                    with open_own(self.file) as stream:
                        stream.seek(upto)
                        out.write(stream.read(self.size - upto))
            new.replace(self.file)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        self.size = self.file.stat().st_size
        self.generation += 1
        self.late_bytes = 0
        if self._recorders:
            self.flush_soon()
