"""Deletes old sessions from the disk: those unused for `keep_days`, and a principal's oldest beyond `max_stored`. First
it deletes, once, the sandbox directories that ended servers left behind.

It deletes only sessions that no server has open: each is locked and checked again before the deletion. A clock may be
wrong, so a session that is too old goes to the trash first. It is restored when a caller asks for it or when it is no
longer too old, and deleted after it was seen there on `TRASH_DATES` dates: a clock that jumps shows only a few of them.
"""

import json
import os
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.to_thread
import structlog

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.cells.lookup import LOG
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ServerError
from kernelmcp.files.epochs import delete_place, is_superseded, place_of, revoke, session_directory
from kernelmcp.files.home import RECORD_FILES, Home
from kernelmcp.files.locks import LOCK_FILE, free_place, lock_session
from kernelmcp.sessions.storage.disk_use import CHECK_SECONDS, DiskUse
from kernelmcp.sessions.storage.record import Record, read_record

# The first kernels start before the disk is searched.
FIRST_SWEEP_SECONDS = 3.0
# A week, plus the date on which it was moved.
TRASH_DATES = 8
# Sessions moved to the trash per sweep.
MAX_TRASHED = 10
DATES_FILE = "trashed.json"

# What a session has before its record.
BEGUN = frozenset({LOCK_FILE, LOG})

log = structlog.get_logger(__name__)


class OldSessions:
    """The sessions on disk that may be deleted."""

    def __init__(self, settings: Settings, home: Home, disk: DiskUse) -> None:
        self._settings = settings
        self._home = home
        self._disk = disk

    async def run(self) -> None:
        """Sweep periodically."""
        await self._carefully(lambda: anyio.to_thread.run_sync(self.sweep_trash))
        await anyio.sleep(FIRST_SWEEP_SECONDS)
        await self._carefully(lambda: anyio.to_thread.run_sync(self._home.sweep_sandboxes))
        while True:
            await self._carefully(self.sweep)
            await anyio.sleep(CHECK_SECONDS)

    async def _carefully(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:  # a disk in any state must not stop the server
            log.exception("old sessions could not be looked for")

    async def sweep(self) -> None:
        """Measure all sessions on disk, delete those beyond the limit, and process those that are too old."""
        await self._disk.measure_all()
        for directory, last_used_at in self._disk.beyond(self._settings.config.sessions.max_stored):
            if await anyio.to_thread.run_sync(self._take, directory, last_used_at, self._delete):
                self._disk.forget(directory)
        if (oldest := self._oldest()) is not None:
            for directory, last_used_at in self._disk.unused_since(oldest)[:MAX_TRASHED]:
                if await anyio.to_thread.run_sync(self._take, directory, last_used_at, self._trash):
                    self._disk.forget(directory)
        await anyio.to_thread.run_sync(self.sweep_trash)
        await anyio.to_thread.run_sync(self._sweep_begun)

    def _sweep_begun(self) -> None:
        """Delete directories with nothing but a lock and a log, from servers that were killed, or got no kernel, while
        they made a session: nobody was told of it. And empty epochs, which a deleted session has left."""
        for directory in self._home.sessions.iterdir():
            with suppress(ServerError, OSError):
                if not _is_begun(place := place_of(directory)):
                    continue
                with closing(lock_session(place, directory.name, make=False)):
                    if _is_begun(place):  # nobody has finished it meanwhile
                        delete_place(place, (LOG, LOCK_FILE), free_place)

    def sweep_trash(self) -> None:
        """Restore or delete the sessions in the trash. Blocking."""
        today = datetime.now(UTC).date().isoformat()
        for directory in self._home.trashed():
            try:
                self._look_at(directory, today)
            except (ServerError, OSError) as exc:
                log.error("a session in the trash cannot be looked at", directory=directory.name, error=str(exc))

    def _look_at(self, directory: Path, today: str) -> None:
        record, oldest = read_record(directory), self._oldest()
        if record is None:
            return
        if oldest is None or datetime.fromisoformat(record.last_used_at) >= oldest:
            if self._home.restore(directory.name):
                log.warning(
                    "a session is back from the trash: it is not too old",
                    session=record.session_id,
                    principal=record.principal,
                )
            return
        before = _dates(directory)
        dates = before | {today}
        if len(dates) >= TRASH_DATES:
            self._take(directory, record.last_used_at, self._delete)
        elif dates != before:
            replace_text(directory / DATES_FILE, json.dumps(sorted(dates)))

    def _oldest(self) -> datetime | None:
        """Sessions last used before this are too old."""
        days = self._settings.config.sessions.keep_days
        return datetime.now(UTC) - timedelta(days=days) if days else None

    def _take(self, directory: Path, last_used_at: str, act: Callable[[Path, Record], None]) -> bool:
        """Trash or delete a session, unless it is open or was used since. Blocking."""
        if not directory.is_dir():
            return False
        try:
            lock = lock_session(place := place_of(directory), directory.name, make=False)
        except (ServerError, OSError):
            return False
        try:
            revoke(directory)
            if is_superseded(place):
                return False
            record = read_record(directory)
            if record is None or record.last_used_at != last_used_at:
                return False
            act(directory, record)
        except (ServerError, OSError) as exc:
            log.error("an old session could not be deleted", directory=directory.name, error=str(exc))
            return False
        finally:
            lock.close()
        return True

    def _trash(self, directory: Path, record: Record) -> None:
        log.info(
            "an old session goes to the trash",
            session=record.session_id,
            principal=record.principal,
            last_used_at=record.last_used_at,
        )
        self._home.trash.mkdir(mode=0o700, exist_ok=True)
        replace_text(directory / DATES_FILE, "[]")
        os.rename(directory, self._home.trash / directory.name)

    def _delete(self, directory: Path, record: Record) -> None:
        log.info(
            "deleting an old session",
            session=record.session_id,
            principal=record.principal,
            last_used_at=record.last_used_at,
        )
        for name in record.sandboxes:
            self._home.sandbox(name).delete()
        (directory / DATES_FILE).unlink(missing_ok=True)
        # What is partly deleted has a record, and a lock.
        delete_place(place_of(directory), (*RECORD_FILES, LOCK_FILE), free_place)


def _is_begun(place: Path) -> bool:
    found = os.listdir(place)
    return BEGUN.issuperset(found) and (LOCK_FILE in found or session_directory(place) != place)


def _dates(directory: Path) -> set[str]:
    """The dates on which a session was seen in the trash."""
    try:
        return set(map(str, json.loads(read_small(directory / DATES_FILE))))
    except (OSError, ValueError, TypeError, RecursionError):
        return set()
