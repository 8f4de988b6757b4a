"""The session as a notebook: every execution is a cell of `notebook.ipynb`.

A journal beside it (`notebook.jsonl`, one cell per line) has every cell first. New cells are appended to both files, so
they take no memory, and a cell takes the same time however many came before it. Both files are bounded: the oldest
outputs are omitted first, then the oldest cells, and the notebook says so. A cell is in the journal before its result
is sent, unless it is very large; it is in the notebook a moment later. Damaged files never prevent a session from
opening.
"""

import json
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import structlog

from kernelmcp.atomic import sweep_drafts
from kernelmcp.executions.execution import Execution
from kernelmcp.notebook import cells
from kernelmcp.notebook.journal import Journal, put_aside
from kernelmcp.notebook.notebook_file import NotebookFile, pieces

MAX_NOTEBOOK_BYTES = 32 * 1024 * 1024
# The size after shrinking: it rewrites the whole file, and must not be necessary again for the next cell.
SHRUNK_BYTES = MAX_NOTEBOOK_BYTES * 3 // 4
# A notebook that somebody else wrote is read completely, once.
MAX_FOREIGN_BYTES = 2 * MAX_NOTEBOOK_BYTES
# The pending cells may not be larger than a notebook.
MAX_PENDING_BYTES = MAX_NOTEBOOK_BYTES
# Limit for writing to the journal in the event loop, which takes a tenth of a millisecond.
MAX_AT_ONCE_BYTES = 64 * 1024
# Omitting the outputs of a shorter cell would gain nothing.
MIN_LINE_BYTES = 4096
# Beside the notebook, in the directory of a session.
JOURNAL = "notebook.jsonl"
GROWN = "the notebook had grown too large"

log = structlog.get_logger(__name__)


class Transcript:
    """The cells of one session, in two files. `append` is for the event loop; the rest blocks and is for threads."""

    def __init__(self, file: Path) -> None:
        self.changed = False
        """Some cells are not in the notebook yet."""
        self._file = file
        self._journal = Journal(file.with_suffix(".jsonl"))
        self._notebook = NotebookFile(file)
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._first = 0
        """The number of the first pending cell."""
        self._lost = 0
        self._behind: list[bytes] | None = []
        """Lines of the journal that the notebook lacks; None if it must be written again."""
        self._pending_lock = threading.Lock()  # held briefly; the other one while files are written
        self._lock = threading.Lock()
        # Held while the files of an earlier server are read, and taken before `_lock`, which is then held only briefly.
        self._opening = threading.Lock()
        self._found = 0
        """The end of the earlier server's journal, in bytes. Later lines are in `_behind`."""
        self._appendable = False
        """The end of the journal is known, and cells can be appended, although the rest may not be checked yet."""
        self._opened = False

    @property
    def journal_file(self) -> Path:
        return self._journal.file

    @property
    def is_in_journal(self) -> bool:
        """True if all cells are on disk, at least in the journal."""
        return not self._pending

    def append(self, execution: Execution) -> None:
        line = cells.to_line(execution)
        with self._pending_lock:
            self._pending.append(line)
            self._pending_bytes += len(line)
            if self._pending_bytes > MAX_PENDING_BYTES:
                self._lighten()
            self.changed = True
        self._write_at_once()

    def _write_at_once(self) -> None:
        """Write the pending cells to the journal, if they are small and no thread uses the files."""
        if self._pending_bytes > MAX_AT_ONCE_BYTES or not self._lock.acquire(blocking=False):
            return
        try:
            if self._appendable:
                with suppress(OSError):  # the cells stay pending, and `save` reports the error
                    self._write_journal()
        finally:
            self._lock.release()

    def _lighten(self) -> None:
        for number, line in enumerate(self._pending):
            if self._pending_bytes > MAX_PENDING_BYTES and len(line) > MIN_LINE_BYTES:
                self._pending[number] = cells.without_outputs(line)
                self._pending_bytes -= len(line) - len(self._pending[number])
        while self._pending_bytes > MAX_PENDING_BYTES and len(self._pending) > 1:
            self._take_first()
            self._lost += 1

    def _take_first(self) -> None:
        self._pending_bytes -= len(self._pending.popleft())
        self._first += 1

    def save(self) -> None:
        """Write the new cells to both files. Raises `OSError`; then the cells are kept for the next time."""
        self.open()
        with self._lock:
            if not self._notebook.is_as_we_left_it:
                self._behind = [] if self._notebook.open(self._journal.lines()) else None
            self._write_journal()
            self._write_notebook(self._behind)
            self._behind = []
            with self._pending_lock:
                self.changed = bool(self._pending)

    def open(self) -> None:
        """Read and repair the files of an earlier server. Cells can be appended to the journal meanwhile: ended
        executions must not wait for it. Raises `OSError`."""
        with self._opening:
            if not self._opened:
                self._begin()
                self._check()
                self._opened = True

    def close(self) -> None:
        """Delete temporary data. It may still be used afterwards."""
        with self._lock:
            self._notebook.drop_spare()

    def waiting_cell(self, execution_id: str) -> bytes:
        """The line of a cell that may not be in the journal yet; empty if no pending cell matches."""
        wanted = json.dumps(execution_id).encode()
        with self._pending_lock:
            return next((line for line in self._pending if wanted in line), b"")

    def to_json(self) -> str:
        """The notebook as it would be on disk now. Raises `OSError`."""
        self.open()
        with self._lock:
            with self._pending_lock:
                new = list(self._pending)
            return b"".join(pieces([*self._journal.lines(), *new])).decode()

    def _write_notebook(self, new: list[bytes] | None) -> None:
        if self._journal.size > MAX_NOTEBOOK_BYTES:
            self._shrink()
            new = None
        if new is not None and self._notebook.is_as_we_left_it:
            self._notebook.append(new)
        else:
            self._notebook.write(self._journal.lines())

    def _write_journal(self) -> None:
        """Append all pending cells to the journal."""
        with self._pending_lock:
            new, first, lost = list(self._pending), self._first, self._lost
        missing = [cells.left_out_cell(lost, "they could not be written")] if lost else []
        before = self._journal.size
        start = self._journal.append([*missing, *new])
        with self._pending_lock:
            # Meanwhile cells may have been added, and some dropped that are written now: those are not lost.
            self._lost -= lost + min(self._first - first, len(new))
            while self._pending and self._first < first + len(new):
                self._take_first()
        # Another process may have changed the journal, so that earlier lines are missing.
        fits = self._behind is not None and 0 < start == before
        self._behind = [*(self._behind or []), *missing, *new] if fits else None

    # -- size limits --------------------------------------------------------------------------------------------

    def _shrink(self) -> None:
        """Omit the outputs of the oldest cells and, if that is not enough, the oldest cells."""
        self._journal.rewrite(self._lighter())
        excess = self._journal.size - SHRUNK_BYTES
        if excess > 0:
            self._journal.rewrite(self._fewer(excess))

    def _lighter(self) -> Iterator[bytes]:
        excess = self._journal.size - SHRUNK_BYTES
        for line in self._journal.lines():
            kept = cells.without_outputs(line) if excess > 0 else line
            excess -= len(line) - len(kept)
            yield kept

    def _fewer(self, excess: int) -> Iterator[bytes]:
        gone = 0
        for line in self._journal.lines():
            if excess > 0:
                gone += cells.left_out_count(line) or 1
                excess -= len(line) + 1
                continue
            if gone:
                yield cells.left_out_cell(gone, GROWN)
                gone = 0
            yield line
        if gone:
            yield cells.left_out_cell(gone, GROWN)

    # -- files of an earlier server -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Find the end of the journal, and write the pending cells."""
        with self._lock:
            sweep_drafts(self._file)
            sweep_drafts(self._journal.file)
            is_whole = self._journal.begin(MAX_FOREIGN_BYTES)
            self._found = self._journal.size
            # Without a journal, the cells of an existing notebook are written into it first.
            self._appendable = is_whole and (self._journal.size > 0 or not self._file.is_file())
            if self._appendable and self._pending:
                with suppress(OSError):  # the cells stay pending, and `save` reports the error
                    self._write_journal()

    def _check(self) -> None:
        """Check every line of the journal, and the notebook. The journal accepts cells meanwhile."""
        damaged = self._journal.check(cells.is_cell)
        with self._lock:
            if damaged:
                self._journal.repair(damaged)
            imported = self._file.is_file() and not self._journal.size and self._import()
            if damaged or imported:
                self._found, self._behind = self._journal.size, []
            self._appendable = True
        if not imported and self._notebook.open(self._journal.lines(self._found)):
            return
        with self._lock:
            if self._journal.size:
                with suppress(OSError):  # it is written again with the next cell
                    self._notebook.write(self._journal.lines())
            self._behind = []

    def _import(self) -> bool:
        """Create a journal from a notebook that has none. False if it is not a valid notebook: it is put aside."""
        try:
            if self._file.stat().st_size > MAX_FOREIGN_BYTES:
                raise ValueError("it is too large")
            found: list[Any] = cast("dict[str, Any]", json.loads(self._file.read_bytes()))["cells"]
            # Before minor version 5 cells had no ids.
            lines = [json.dumps({"id": secrets.token_hex(4), **cell}).encode() for cell in found]
            if not all(map(cells.is_cell, lines)):
                raise ValueError("some of its cells are not valid")
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            log.error("a notebook is damaged, it is put aside", file=str(self._file), error=str(exc)[:200])
            put_aside(self._file)
            return False
        self._journal.rewrite(lines)
        return True
