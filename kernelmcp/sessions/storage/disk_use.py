"""The disk space that a principal's sessions use together, and how much each of them may still use.

`policy.storage_max_mb` bounds the sum over a principal's sessions, stopped ones too. Sizes are measured again when they
may have changed: after a cell that reports changed files, and all of them periodically, for guests that do not report.
Must not know kernels or MCP.
"""

import itertools
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.errors import ResourceLimitExceeded, ServerError
from kernelmcp.files.home import Home
from kernelmcp.files.listing import stored_bytes
from kernelmcp.files.workspace import Quota
from kernelmcp.sessions.storage.record import CHECKPOINTS, Record, read_record
from kernelmcp.sessions.storage.stored import StoredSessions

CHECK_SECONDS = 60.0
# Every file counts as at least one disk block: otherwise empty files would be free.
BLOCK_BYTES = 4096
# A session that can store less than this is useless.
MIN_ROOM_BYTES = 2**20

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """The size of one session: `file_bytes` as its quota counts them, `disk_bytes` for all its data on disk."""

    principal: str
    last_used_at: str
    file_bytes: int = 0
    disk_bytes: int = 0


class DiskUse:
    """Sizes of all sessions in a home, by their directory. Belongs to the event loop; measures in worker threads."""

    def __init__(self, settings: Settings, home: Home, stored: StoredSessions) -> None:
        self._settings = settings
        self._home = home
        self._stored = stored
        self._sessions: dict[Path, Taken] = {}
        self._totals: dict[str, int] = {}
        self._changed: dict[Path, tuple[str, int]] = {}
        """Their principals, and the numbers of the notes."""
        self._notes = itertools.count()
        self._live: dict[Path, str] = {}
        self._running = Counter[str]()
        """How many live sessions each principal has."""

    # -- notes of changes ---------------------------------------------------------------------------------------

    def note_changed(self, directory: Path, principal: str) -> None:
        """Note that a session's files may have changed."""
        self._changed[directory] = principal, next(self._notes)

    def note_live(self, directory: Path, principal: str, *, live: bool) -> None:
        """Note that a session has a kernel, or no longer has one."""
        self._end_live(directory)
        if live:
            self._live[directory] = principal
            self._running[principal] += 1
        else:
            self.note_changed(directory, principal)  # tasks that outlived their cell may have written without a report

    def forget(self, directory: Path) -> None:
        """Note that a session was deleted."""
        self._changed.pop(directory, None)
        self._end_live(directory)
        self._set(directory, None)

    def _end_live(self, directory: Path) -> None:
        if (principal := self._live.pop(directory, None)) is not None:
            self._running[principal] -= 1
            if not self._running[principal]:
                del self._running[principal]

    # -- answers ------------------------------------------------------------------------------------------------

    async def quota(self, directory: Path, principal: str) -> Quota:
        """The space for the files of one session: what the principal has left, shared by the running sessions.

        It is never less than they already use, so that a cell can always run, read and delete.
        """
        await self._measure_again(principal)
        policy = self._settings.policy
        running = self._running[principal] + (directory not in self._live)
        own = self._sessions[directory].file_bytes if directory in self._sessions else 0
        allowed = own + self._left(principal) // running
        return Quota(min(policy.workspace_max_mb * 2**20, allowed), policy.max_files)

    async def room(self, principal: str) -> int:
        """The bytes that a principal may still store."""
        await self._measure_again(principal)
        return self._left(principal)

    async def check_room(self, principal: str) -> None:
        """Raises `ResourceLimitExceeded` if there is no room for a new session."""
        await self._measure_again(principal)
        if self._left(principal) >= MIN_ROOM_BYTES:
            return
        limit = self._settings.policy.storage_max_mb
        taken_mb = self._totals.get(principal, 0) / 2**20
        raise ResourceLimitExceeded(
            f"your sessions take {taken_mb:,.0f} MB on disk in total, and {limit:,} MB are allowed",
            "Delete what you no longer need: get_sessions lists your sessions with their sizes, destroy_session "
            "deletes one.",
            limit_mb=limit,
        )

    def beyond(self, keep: int) -> list[tuple[Path, str]]:
        """Per principal, the sessions beyond the `keep` most recently used, and when each was used."""
        owned: dict[str, list[tuple[Path, str]]] = {}
        for path, taken in self._sessions.items():
            owned.setdefault(taken.principal, []).append((path, taken.last_used_at))
        found: list[tuple[Path, str]] = []
        for sessions in owned.values():
            if len(sessions) > keep:
                sessions.sort(key=lambda session: datetime.fromisoformat(session[1]), reverse=True)
                found += [(path, used) for path, used in sessions[keep:] if path not in self._live]
        return found

    def unused_since(self, limit: datetime) -> list[tuple[Path, str]]:
        """All sessions without a kernel that were last used before `limit`, and when each was used; the oldest
        first."""
        used = [(path, taken.last_used_at) for path, taken in self._sessions.items() if path not in self._live]
        unused = [(path, at) for path, at in used if datetime.fromisoformat(at) < limit]
        return sorted(unused, key=lambda session: datetime.fromisoformat(session[1]))

    def _left(self, principal: str) -> int:
        return max(0, self._settings.policy.storage_max_mb * 2**20 - self._totals.get(principal, 0))

    # -- measuring ----------------------------------------------------------------------------------------------

    async def measure_all(self) -> None:
        """Measure the sessions that may have changed without a note: those with a kernel, or in another server."""
        noted, before = dict(self._changed), dict(self._sessions)
        found = await anyio.to_thread.run_sync(self._measure_home, before, {*self._live, *noted})
        for directory, note in noted.items():
            if self._changed.get(directory) == note:
                del self._changed[directory]
        for directory in before.keys() | found.keys():
            # Changes and deletions since then are newer than this measurement.
            if self._sessions.get(directory) is before.get(directory):
                self._set(directory, found.get(directory))

    async def _measure_again(self, principal: str) -> None:
        """Measure the changed sessions and, near the limit, all running ones: deleted files are not reported."""
        for directory in [directory for directory, (owner, _) in self._changed.items() if owner == principal]:
            await self._measure_one(directory)
        if self._left(principal) < self._settings.policy.workspace_max_mb * 2**20:
            for directory in [directory for directory, owner in self._live.items() if owner == principal]:
                await self._measure_one(directory)

    async def _measure_one(self, directory: Path) -> None:
        self._changed.pop(directory, None)
        self._set(directory, await anyio.to_thread.run_sync(self._measure, directory))

    def _set(self, directory: Path, taken: Taken | None) -> None:
        before = self._sessions.pop(directory, None)
        if before is not None:
            self._totals[before.principal] -= before.disk_bytes
            if not self._totals[before.principal]:
                del self._totals[before.principal]
        if taken is not None:
            self._sessions[directory] = taken
            self._totals[taken.principal] = self._totals.get(taken.principal, 0) + taken.disk_bytes

    def _measure_home(self, known: dict[Path, Taken], again: set[Path]) -> dict[Path, Taken]:
        """Measure all sessions of the home. A stopped session that was not used since keeps its known size, unless it
        is in `again`."""
        found: dict[Path, Taken] = {}
        try:
            records = self._stored.all_records()
        except (ServerError, OSError) as exc:
            log.error("the sessions on disk could not be listed", error=str(exc))
            return known
        for directory, record in records.items():
            before = known.get(directory)
            unused = before is not None and before.last_used_at == record.last_used_at and directory not in again
            taken = before if unused else self._measure(directory)
            if taken is not None:
                found[directory] = taken
        return found

    def _measure(self, directory: Path) -> Taken | None:
        record = _record(directory)
        if record is None:
            return None
        most = self._settings.policy.workspace_max_mb * 2**20
        trees = [measure(self._home.sandbox(name).path, most) for name in record.sandboxes]
        other = measure(directory, apart=CHECKPOINTS)
        checkpoints = sum(each.size_bytes for each in record.checkpoints)  # they do not change, and are many files
        return Taken(
            record.principal,
            record.last_used_at,
            sum(size for size, _ in trees),
            other[1] + checkpoints + sum(on_disk for _, on_disk in trees),
        )


def _record(directory: Path) -> Record | None:
    try:
        return read_record(directory)
    except (ServerError, OSError):
        return None  # damaged: counts for no principal


def measure(folder: Path, unreadable_bytes: int = 0, apart: str | None = None) -> tuple[int, int]:
    """Sizes of the files below a directory, as their quota counts them and in whole blocks. Links are not followed. A
    directory that a guest made uncountable counts as `unreadable_bytes`. What is `apart`, by its name, does not
    count."""
    size = on_disk = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name == apart:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        on_disk += BLOCK_BYTES
                        continue
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found = stored_bytes(entry.stat(follow_symlinks=False))
                        size += found
                        on_disk += -(-max(found, 1) // BLOCK_BYTES) * BLOCK_BYTES
        except FileNotFoundError:  # the directory itself
            continue
        except OSError:
            size += unreadable_bytes
            on_disk += unreadable_bytes
    return size, on_disk
