"""The session as a notebook: `notebook.ipynb`, which follows the session's log.

The log has a cell before its result is sent, and the notebook has it a moment later. Both are bounded: the oldest
outputs are omitted first, then the oldest cells, and the notebook says so. Damaged files never prevent a session from
opening. Blocking: for threads.
"""

import json
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import structlog

from kernelmcp.atomic import aside_of, put_aside, sweep_drafts
from kernelmcp.cells import event, line
from kernelmcp.cells.event import EVENT_PREFIX, Op
from kernelmcp.cells.log import CellLog
from kernelmcp.cells.lookup import whole_lines
from kernelmcp.notebook.notebook_file import NotebookFile, pieces
from kernelmcp.output.sanitize import clean_json

MAX_NOTEBOOK_BYTES = 32 * 1024 * 1024
# The size after shrinking: it rewrites the whole file, and must not be necessary again for the next cell.
SHRUNK_BYTES = MAX_NOTEBOOK_BYTES * 3 // 4
# A notebook that somebody else wrote is read completely, once.
MAX_FOREIGN_BYTES = 2 * MAX_NOTEBOOK_BYTES
# Omitting the outputs of a shorter cell would gain nothing.
MIN_LINE_BYTES = 4096
NOTEBOOK = "notebook.ipynb"
GROWN = "the notebook had grown too large"

log = structlog.get_logger(__name__)


class Transcript:
    """The notebook of one session."""

    def __init__(self, file: Path, cells: CellLog) -> None:
        self._file = file
        self._log = cells
        self._notebook = NotebookFile(file)
        self._upto: int = 0
        """How much of the log the notebook has, in bytes."""
        self._generation: int = -1
        """The generation of the log that this refers to."""
        self._has_strangers = False
        """Lines of the log are damaged, or of an older version."""
        self._foreign: list[bytes] = []
        """The cells of a notebook that had no log, until the log is rewritten with them."""
        self._rewritten_bytes: int = 0
        """The size of the log when it was last rewritten: the events of running cells have to stay."""
        self._lock = threading.Lock()
        self._opened = False

    @property
    def exists(self) -> bool:
        return self._file.exists()

    @property
    def changed(self) -> bool:
        """True if the notebook differs from the log."""
        is_behind = self._log.size > self._upto or self._generation != self._log.generation
        return (self._log.size > 0 and is_behind) or not self._log.is_written or self.wants_rewrite

    @property
    def wants_rewrite(self) -> bool:
        """True if the log is to be rewritten: `compact`, then `CellLog.put`."""
        has_grown = self._log.size - self._rewritten_bytes > MAX_NOTEBOOK_BYTES - SHRUNK_BYTES
        is_too_large = self._notebook.size > MAX_NOTEBOOK_BYTES or (self._log.size > MAX_NOTEBOOK_BYTES and has_grown)
        return self._log.has_late or self._has_strangers or bool(self._foreign) or is_too_large

    def save(self) -> None:
        """Write the new cells into the notebook. Raises `OSError`; then they are written the next time."""
        with self._lock:
            self._open()
            if self._foreign:
                return
            upto, generation = self._log.size, self._log.generation
            if not self._notebook.is_as_we_left_it:
                self._notebook.open(self._cells(0, upto))
                self._write(upto)
            elif generation != self._generation:
                self._write(upto)
            elif new := list(self._cells(self._upto, upto)):
                self._notebook.append(new)
            self._upto, self._generation = upto, generation

    def close(self) -> None:
        """Delete temporary data. It may still be used afterwards."""
        with self._lock:
            self._notebook.drop_spare()

    def to_json(self) -> str:
        """The notebook as it would be on disk now. Raises `OSError`."""
        with self._lock:
            self._open()
            cells = chain(self._foreign, self._cells(0, self._log.size), self._log.unwritten_cells())
            return b"".join(pieces(cells)).decode()

    def _write(self, upto: int) -> None:
        """Write the whole notebook, but not an empty one: a running cell is not in it yet."""
        cells = self._cells(0, upto)
        if (first := next(cells, None)) is not None:
            self._notebook.write(chain([first], cells))

    def _cells(self, start: int, end: int) -> Iterator[bytes]:
        for found in whole_lines(self._log.file, start, end):
            if event.is_whole(found):
                yield found
            elif not found.startswith(EVENT_PREFIX):
                self._has_strangers = True
                if line.is_cell(found):
                    yield found

    def _open(self) -> None:
        """Compare the notebook of an earlier server with the log, and write it again if it is not complete."""
        if self._opened:
            return
        sweep_drafts(self._file)
        upto, generation = self._log.size, self._log.generation
        if self._log.is_new and self._file.is_file():
            self._foreign = self._cells_of_notebook()
        elif self._notebook.open(self._cells(0, upto)):
            self._upto, self._generation = upto, generation
        else:
            with suppress(OSError):  # it is written again with the next cell
                self._write(upto)
                self._upto, self._generation = upto, generation
        self._opened = True

    def _cells_of_notebook(self) -> list[bytes]:
        """The cells of a notebook that has no log. Empty if it is not a valid one: it is put aside."""
        try:
            if self._file.stat().st_size > MAX_FOREIGN_BYTES:
                raise ValueError("it is too large")
            found: list[Any] = cast("dict[str, Any]", clean_json(json.loads(self._file.read_bytes())))["cells"]
            # Before minor version 5 cells had no ids.
            cells = [{"id": secrets.token_hex(4), **cell} for cell in found]
            if not all(line.is_cell(json.dumps(cell).encode()) for cell in cells):
                raise ValueError("some of its cells are not valid")
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            log.error("a notebook is damaged, it is put aside", file=str(self._file), error=str(exc)[:200])
            put_aside(self._file)
            return []
        return [line.resealed(cell) for cell in cells]

    # -- rewriting the log --------------------------------------------------------------------------------------

    def compact(self, upto: int) -> Path:
        """Write the log up to `upto`, in bytes, again: without the events of ended cells, late ones merged into their
        lines, and within its limits. Returns the new file, for `CellLog.put`. Raises `OSError`."""
        had_strangers, self._has_strangers = self._has_strangers, False
        try:
            new = self._log.rewrite(lambda lines: chain(self._foreign, self._compacted(lines)), upto)
            is_too_large = new.stat().st_size > SHRUNK_BYTES and _notebook_bytes(new) > MAX_NOTEBOOK_BYTES
            for again in (_lighter, _fewer):
                if is_too_large and (excess := _notebook_bytes(new) - SHRUNK_BYTES) > 0:
                    lines = list(again(whole_lines(new), excess))
                    new.unlink()
                    new = self._log.rewrite(lambda _, lines=lines: iter(lines), 0)
        except BaseException:
            self._has_strangers = had_strangers
            raise
        return new

    def put(self, new: Path, upto: int) -> None:
        """Take the compacted log into use. For the event loop. Raises `OSError`."""
        since = self._log.size - upto
        self._log.put(new, upto)
        self._foreign, self._rewritten_bytes = [], self._log.size - since

    def _compacted(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        changes: dict[str, list[Op]] = defaultdict(list)
        kept: list[bytes] = []
        damaged: list[bytes] = []
        for found in lines:
            kind, cell = event.kind_of(found)
            if kind in ("cell", "note") and event.is_whole(found):
                kept.append(found)
            elif kind == "late":
                changes[cell] += event.ops_of(found)
            elif kind in ("submitted", "began", "output", "cancelled"):
                kept.append(found)
            elif not kind and line.is_cell(found):
                kept.append(line.resealed(event.parsed(found)))
            elif found.startswith(EVENT_PREFIX):  # of a later version
                kept.append(found)
            else:
                damaged.append(found)
        if damaged:
            log.error("a log has damaged lines, they are put aside", file=str(self._log.file), lines=len(damaged))
            with aside_of(self._log.file).open("ab") as out:  # which may have others
                out.writelines(one + b"\n" for one in damaged)
        return _merged(kept, changes)


def _merged(lines: list[bytes], changes: dict[str, list[Op]]) -> Iterator[bytes]:
    """The lines without the events of ended and cancelled cells; changes are merged into the lines of their cells."""
    gone = {cell for kind, cell in map(event.kind_of, lines) if kind in ("cell", "cancelled")}
    for found in lines:
        kind, cell = event.kind_of(found)
        if kind == "cell" and cell in changes:
            yield line.with_changes(found, changes[cell])
        elif kind in ("cell", "note") or cell not in gone:
            yield found


def _notebook_bytes(file: Path) -> int:
    """The size of the notebook of a log."""
    cells = (found for found in whole_lines(file) if event.kind_of(found)[0] in ("cell", "note"))
    return sum(map(len, pieces(cells)))


def _lighter(lines: Iterator[bytes], excess: int) -> Iterator[bytes]:
    """The lines without the outputs of the oldest cells."""
    for found in lines:
        kept = line.without_outputs(found) if excess > 0 and event.kind_of(found)[0] == "cell" else found
        excess -= len(found) - len(kept)
        yield kept


def _fewer(lines: Iterator[bytes], excess: int) -> Iterator[bytes]:
    """The lines without the oldest cells, and a note instead of them."""
    gone = 0
    for found in lines:
        if excess > 0 and event.kind_of(found)[0] in ("cell", "note"):
            gone += line.left_out_count(found) or 1
            excess -= len(found) + 1
            continue
        if gone:
            yield line.left_out_cell(gone, GROWN)
            gone = 0
        yield found
    if gone:
        yield line.left_out_cell(gone, GROWN)
