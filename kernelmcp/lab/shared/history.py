"""The changes of Lab's documents, stored beside them: a tab that is open while Lab is killed continues where it was.

Documents are saved to their files a second later and from other tasks; if the history had less than the file, an open
tab would show each cell twice. So a change is written at once, in the event loop: this takes some 50 µs, because it
does not wait for the disk. A kill of Lab loses none of it; a history that a power cut damages is started again
(`stores.py`).
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from logging import Logger, getLogger
from pathlib import Path
from typing import Any, ClassVar, cast

import nbformat
from jupyter_ydoc import YNotebook
from nbformat.v4 import rwbase
from pycrdt import Doc
from pycrdt.store import BaseYStore, YDocNotFound

from kernelmcp.atomic import aside_of, replace, replace_text, stamp_of
from kernelmcp.lab.shared.stores import SESSIONS

# A history is merged into one change when it has grown by this factor, and is at least this large.
SQUASH_TIMES = 4
SQUASH_BYTES = 4 * 1024 * 1024
# Changes that a full disk rejects are kept for a while: without one, the next Lab understands none of the later ones.
MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
# The event loop waits at most this long, and nobody else uses the database.
BUSY_SECONDS = 0.2
# A file lacks the changes made while it was written.
LONGEST_SAVE_SECONDS = 5.0
# No document waits longer to be saved: an older file is from a backup, and a copy of it is kept.
LONGEST_UNSAVED_SECONDS = 600.0
# The overhead of a row, and of each row in memory while a document is read.
ROW_BYTES = 200
_TABLE = "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, path TEXT, change BLOB, time REAL)"
_INDEX = "CREATE INDEX IF NOT EXISTS by_path ON changes (path, number)"
# The state of a history and of its file in which they were last found to agree: loading both takes 90 ms for 0.5 MB.
_SAVED = "CREATE TABLE IF NOT EXISTS saved (path TEXT PRIMARY KEY, state TEXT)"


class History(BaseYStore):
    """The history of one document, in the database of all."""

    file: ClassVar[Path]
    """Set before the first instance is created."""
    _database: ClassVar[sqlite3.Connection | None] = None
    _writing: ClassVar[asyncio.Lock] = asyncio.Lock()
    """Held for each change, and while a history is replaced: a write waits for it, and the event loop continues."""

    def __init__(self, path: str, metadata_callback: Any = None, log: Logger | None = None, **_: Any) -> None:
        self.metadata_callback = metadata_callback
        self._path = path
        self._log = log or getLogger(__name__)
        self._squashed = 0
        """Size in bytes after the last merge."""
        self._bytes = 0
        self._squashing: asyncio.Task[None] | None = None
        self._unwritten: list[bytes] = []

    async def write(self, data: bytes) -> None:
        """Write a change. Logs errors and raises nothing, because the caller would give up the document; a failed
        change is written with the next one."""
        async with self._writing:
            failed_before = bool(self._unwritten)
            self._unwritten.append(data)
            try:
                with (database := self._opened()):
                    rows = [(self._path, change, time.time()) for change in self._unwritten]
                    database.executemany("INSERT INTO changes (path, change, time) VALUES (?, ?, ?)", rows)
            except sqlite3.Error:
                if not failed_before:
                    self._log.exception("kernelmcp: a notebook's changes could not be kept")
                while sum(map(len, self._unwritten)) > MAX_UNWRITTEN_BYTES:
                    del self._unwritten[0]
                return
            self._bytes += sum(len(change) + ROW_BYTES for change in self._unwritten)
            self._unwritten.clear()
        if self._squashing is None and self._bytes > max(SQUASH_BYTES, SQUASH_TIMES * self._squashed):
            self._squashing = asyncio.create_task(self._squash())

    async def read(self) -> AsyncIterator[tuple[bytes, bytes, float]]:
        """Read the changes. Raises `YDocNotFound`."""
        try:
            found = self._opened().execute(
                "SELECT change, time FROM changes WHERE path = ? ORDER BY number", [self._path]
            )
            rows: list[tuple[bytes, float]] = found.fetchall()
        except sqlite3.Error:
            self._log.exception("kernelmcp: a notebook's changes could not be read")
            rows = []
        if not rows:
            raise YDocNotFound
        self._bytes = sum(len(change) + ROW_BYTES for change, _ in rows)
        for change, when in rows:
            yield change, b"", when

    def check(self) -> None:
        """Delete the history if it is damaged: nobody could open the document any more. Blocking."""
        with suppress(_DamagedError, sqlite3.Error), closing(connect(self.file)) as database:
            _content(database, self._path, self.file.with_name(SESSIONS))

    async def _squash(self) -> None:
        try:
            last, whole = await asyncio.to_thread(squashed, self.file, self._path)
            async with self._writing:
                await asyncio.to_thread(replace_changes, self.file, self._path, last, whole)
            self._squashed = self._bytes = len(whole) + ROW_BYTES
        except sqlite3.Error:
            self._log.exception("kernelmcp: the history of a notebook could not be compacted")
            self._squashed = self._bytes  # no retry at the next change
        finally:
            self._squashing = None

    @classmethod
    def _opened(cls) -> sqlite3.Connection:
        if cls._database is None:
            cls._database = connect(cls.file)
        return cls._database


def connect(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, timeout=BUSY_SECONDS)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=OFF")
    with database:
        database.execute(_TABLE)
        database.execute(_INDEX)
        database.execute(_SAVED)
    return database


def squashed(file: Path, path: str) -> tuple[int, bytes]:
    """Merge a document's changes into one, without deleted content; returns the number of the last one and the merged
    change."""
    with closing(connect(file)) as database:
        found = database.execute("SELECT number, change FROM changes WHERE path = ? ORDER BY number", [path])
        document: Doc[Any] = Doc()
        last = 0
        for number, change in found:
            document.apply_update(change)
            last = number
        return last, document.get_update()


def replace_changes(file: Path, path: str, last: int, whole: bytes) -> None:
    """Replace the changes up to the last one by one change."""
    with closing(connect(file)) as database, database:
        database.execute("DELETE FROM changes WHERE path = ? AND number <= ?", (path, last))
        database.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (last, path, whole, time.time()))


def complete_files(file: Path, file_ids: Path, notebooks: Path) -> None:
    """Save what a killed Lab had not: if a file and its history differ, jupyter-collaboration takes the file, and open
    tabs would lose a person's edits too. Called before any tab is open. Logs what fails for one notebook. Raises
    `sqlite3.Error`, `OSError`."""
    if not file.exists() or not file_ids.exists():
        return
    with closing(sqlite3.connect(file_ids)) as database:
        names = dict(database.execute("SELECT id, path FROM Files").fetchall())
    with closing(connect(file)) as database:
        histories = "SELECT path, max(time), count(*), sum(length(change)) FROM changes GROUP BY path"
        for path, last, *size in database.execute(histories).fetchall():
            kind, _, file_id = path.removeprefix(".").removesuffix(".y").partition(":")
            notebook = Path(names.get(file_id, ""))
            if kind != "notebook" or not notebook.is_relative_to(notebooks) or not notebook.is_file():
                continue
            state = json.dumps([last, *size, *stamp_of(notebook)])
            if database.execute("SELECT 1 FROM saved WHERE path = ? AND state = ?", [path, state]).fetchone():
                continue
            try:
                _complete(notebook, last, _content(database, path, file.with_name(SESSIONS)))
                with suppress(sqlite3.Error), database:
                    database.execute("INSERT OR REPLACE INTO saved VALUES (?, ?)", [path, state])
            except Exception as exc:  # noqa: BLE001 - one damaged history keeps no other notebook from being saved
                what = "is lost" if isinstance(exc, _DamagedError) else "could not be saved now"
                getLogger(__name__).error(
                    "kernelmcp: what Lab had not saved of %s when it ended %s: %s", notebook.name, what, exc
                )


def _complete(notebook: Path, last: float, content: dict[str, Any]) -> None:
    changed = notebook.stat().st_mtime
    if last <= changed - LONGEST_SAVE_SECONDS:
        return
    if content["nbformat"] != 4 or not content["cells"]:  # killed during loading, it has none yet
        return
    found = notebook.read_bytes()
    is_older = last > changed + LONGEST_UNSAVED_SECONDS
    try:
        if _told(_loaded(found)) == _told(content):
            return
    except Exception:  # noqa: BLE001 - whatever is in it
        is_older = True
    if is_older:
        replace(aside_of(notebook), lambda out: out.write(found))
    replace_text(notebook, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _loaded(content: bytes) -> dict[str, Any]:
    document: Any = YNotebook()
    document.set(cast("Any", nbformat).reads(content, as_version=4))
    return document.get()


def _told(notebook: dict[str, Any]) -> str:
    """What the notebook tells, without what loading it adds: ids, trust, and an empty cell."""
    stripped: Any = cast("Any", rwbase).strip_transient(cast("Any", nbformat).from_dict(notebook))
    cells = [cell | {"id": ""} for cell in stripped["cells"] if cell["source"] or cell.get("outputs")]
    return json.dumps(stripped | {"cells": cells}, sort_keys=True)


class _DamagedError(ValueError):
    """A history's changes cannot be applied."""


def _content(database: sqlite3.Connection, path: str, sessions: Path) -> dict[str, Any]:
    """Deletes a damaged history, which Lab could not open: its file counts, and open tabs are reloaded. Raises
    `_DamagedError`, `sqlite3.Error`."""
    document: Doc[Any] = Doc()
    try:
        for (change,) in database.execute("SELECT change FROM changes WHERE path = ? ORDER BY number", [path]):
            document.apply_update(change)
        notebook: Any = YNotebook(document)
        return notebook.get()
    except (sqlite3.Error, MemoryError):  # the next start may read it
        raise
    except Exception as exc:
        with database:
            database.execute("DELETE FROM changes WHERE path = ?", [path])
        sessions.unlink(missing_ok=True)
        raise _DamagedError(str(exc)) from exc
