"""What has changed Lab's documents, kept beside them: a tab that is open while Lab is killed goes on where it was.

Documents are saved to their files a second later and from other tasks; a history that had less than the file would
give an open tab each cell twice. So a change is written at once, in the event loop: some 50 µs, for the disk is not
waited for. A kill of Lab loses nothing of it; what a power cut damages is begun anew (`stores.py`).
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from logging import Logger, getLogger
from pathlib import Path
from typing import Any, ClassVar

from jupyter_ydoc import YNotebook
from pycrdt import Doc
from pycrdt.store import BaseYStore, YDocNotFound

from kernelmcp.atomic import replace_text

# A history is made one change when it has become that many times as large, and no smaller than that.
SQUASH_TIMES = 4
SQUASH_BYTES = 4 * 1024 * 1024
# Changes that a full disk does not take are kept for a while: without one, the next Lab understands none that follow.
MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
# The event loop waits as long at most, and nobody else uses the database.
BUSY_SECONDS = 0.2
# What has changed while a file was written is not in it.
LONGEST_SAVE_SECONDS = 5.0
# What a row takes beside its change, and what a document takes for each of them while it is read.
ROW_BYTES = 200
_TABLE = "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, path TEXT, change BLOB, time REAL)"
_INDEX = "CREATE INDEX IF NOT EXISTS by_path ON changes (path, number)"


class History(BaseYStore):
    """One document's, in the database of all."""

    file: ClassVar[Path]
    """Set before the first one is made."""
    _database: ClassVar[sqlite3.Connection | None] = None
    _writing: ClassVar[asyncio.Lock] = asyncio.Lock()
    """Held for each change, and while a history is replaced: a write waits for it, and the event loop goes on."""

    def __init__(self, path: str, metadata_callback: Any = None, log: Logger | None = None, **_: Any) -> None:
        self.metadata_callback = metadata_callback
        self._path = path
        self._log = log or getLogger(__name__)
        self._squashed = 0
        """Bytes, as of the last time."""
        self._bytes = 0
        self._squashing: asyncio.Task[None] | None = None
        self._unwritten: list[bytes] = []

    async def write(self, data: bytes) -> None:
        """Says what fails and raises nothing: the caller would give up the document. It is written with the next one
        then."""
        async with self._writing:
            failed_before = bool(self._unwritten)
            self._unwritten.append(data)
            try:
                with (database := self._opened()):
                    rows = [(self._path, change, time.time()) for change in self._unwritten]
                    database.executemany("INSERT INTO changes (path, change, time) VALUES (?, ?, ?)", rows)
            except sqlite3.Error:
                if not failed_before:
                    self._log.exception("kernelmcp: what has changed a notebook could not be kept")
                while sum(map(len, self._unwritten)) > MAX_UNWRITTEN_BYTES:
                    del self._unwritten[0]
                return
            self._bytes += sum(len(change) + ROW_BYTES for change in self._unwritten)
            self._unwritten.clear()
        if self._squashing is None and self._bytes > max(SQUASH_BYTES, SQUASH_TIMES * self._squashed):
            self._squashing = asyncio.create_task(self._squash())

    async def read(self) -> AsyncIterator[tuple[bytes, bytes, float]]:
        """Raises `YDocNotFound`."""
        try:
            found = self._opened().execute(
                "SELECT change, time FROM changes WHERE path = ? ORDER BY number", [self._path]
            )
            rows: list[tuple[bytes, float]] = found.fetchall()
        except sqlite3.Error:
            self._log.exception("kernelmcp: what has changed a notebook could not be read")
            rows = []
        if not rows:
            raise YDocNotFound
        self._bytes = sum(len(change) + ROW_BYTES for change, _ in rows)
        for change, when in rows:
            yield change, b"", when

    async def _squash(self) -> None:
        try:
            last, whole = await asyncio.to_thread(squashed, self.file, self._path)
            async with self._writing:
                await asyncio.to_thread(replace_changes, self.file, self._path, last, whole)
            self._squashed = self._bytes = len(whole) + ROW_BYTES
        except sqlite3.Error:
            self._log.exception("kernelmcp: the history of a notebook could not be made smaller")
            self._squashed = self._bytes  # not again at the next change
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
    return database


def squashed(file: Path, path: str) -> tuple[int, bytes]:
    """The changes that a document has so far as one, in which what was deleted is gone; and the number of the last."""
    with closing(connect(file)) as database:
        found = database.execute("SELECT number, change FROM changes WHERE path = ? ORDER BY number", [path])
        document: Doc[Any] = Doc()
        last = 0
        for number, change in found:
            document.apply_update(change)
            last = number
        return last, document.get_update()


def replace_changes(file: Path, path: str, last: int, whole: bytes) -> None:
    """Have one change in place of those up to the last one."""
    with closing(connect(file)) as database, database:
        database.execute("DELETE FROM changes WHERE path = ? AND number <= ?", (path, last))
        database.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (last, path, whole, time.time()))


def complete_files(file: Path, file_ids: Path, notebooks: Path) -> None:
    """Save what a killed Lab had not: where a file and its history differ, jupyter-collaboration takes the file, and
    what a person has typed would go from open tabs too. Before there are any. Raises `sqlite3.Error`, `OSError`."""
    if not file.exists() or not file_ids.exists():
        return
    with closing(sqlite3.connect(file_ids)) as database:
        names = dict(database.execute("SELECT id, path FROM Files").fetchall())
    with closing(connect(file)) as database:
        for path, last in database.execute("SELECT path, max(time) FROM changes GROUP BY path").fetchall():
            kind, _, file_id = path.removeprefix(".").removesuffix(".y").partition(":")
            notebook = Path(names.get(file_id, ""))
            if kind != "notebook" or not notebook.is_relative_to(notebooks) or not notebook.is_file():
                continue
            if last > notebook.stat().st_mtime - LONGEST_SAVE_SECONDS:
                content = _content(database, path)
                if content["nbformat"] == 4 and content["cells"]:  # killed when it was loaded, it has none yet
                    replace_text(notebook, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _content(database: sqlite3.Connection, path: str) -> dict[str, Any]:
    document: Doc[Any] = Doc()
    for (change,) in database.execute("SELECT change FROM changes WHERE path = ? ORDER BY number", [path]):
        document.apply_update(change)
    notebook: Any = YNotebook(document)
    return notebook.get()
