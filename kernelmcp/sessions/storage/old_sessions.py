"""Deletes old sessions from the disk: those not used for `keep_days`, and a principal's oldest beyond `max_stored`.

Only sessions that no server has open: each is locked and checked once more before anything is deleted.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.to_thread
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.errors import ServerError
from kernelmcp.files.home import Home, lock_session
from kernelmcp.files.safe_open import delete_tree
from kernelmcp.sessions.storage.disk_use import CHECK_SECONDS, DiskUse
from kernelmcp.sessions.storage.record import read_record

# Disks are searched only after the first kernels had time to start.
FIRST_SWEEP_SECONDS = 3.0

log = structlog.get_logger(__name__)


class OldSessions:
    """The sessions on disk that may be deleted."""

    def __init__(self, settings: Settings, home: Home, disk: DiskUse) -> None:
        self._settings = settings
        self._home = home
        self._disk = disk

    async def run(self) -> None:
        """Sweep again and again."""
        await anyio.sleep(FIRST_SWEEP_SECONDS)
        while True:
            try:
                await self.sweep()
            except Exception:  # a disk in any state must not end the server
                log.exception("old sessions could not be looked for")
            await anyio.sleep(CHECK_SECONDS)

    async def sweep(self) -> None:
        """Measure all sessions on disk, and delete those that are too old or too many."""
        await self._disk.measure_all()
        sessions = self._settings.config.sessions
        doomed = self._disk.beyond(sessions.max_stored)
        if sessions.keep_days:
            doomed += self._disk.unused_since(datetime.now(UTC) - timedelta(days=sessions.keep_days))
        for directory, last_used_at in dict(doomed).items():
            if await anyio.to_thread.run_sync(self._delete, directory, last_used_at):
                self._disk.forget(directory)

    def _delete(self, directory: Path, last_used_at: str) -> bool:
        """Unless somebody has it, or has used it since. Blocking."""
        if not directory.is_dir():
            return False
        try:
            lock = lock_session(directory, directory.name)
        except (ServerError, OSError):
            return False
        try:
            record = read_record(directory)
            if record is None or record.last_used_at != last_used_at:
                return False
            log.info("deleting an old session", session=record.session_id, last_used_at=last_used_at)
            for name in record.sandboxes:
                self._home.sandbox(name).delete()
            delete_tree(directory)
        except (ServerError, OSError) as exc:
            log.error("an old session could not be deleted", directory=directory.name, error=str(exc))
            return False
        finally:
            lock.close()
        return True
