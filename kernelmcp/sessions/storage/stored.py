"""The sessions on disk, including those that no server has open: their directories and records.

Blocking, and safe in a thread. Must not know kernels or MCP.
"""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from kernelmcp.atomic import Stamp, stamp_of
from kernelmcp.cells import event, line
from kernelmcp.cells.lookup import LOG, find
from kernelmcp.errors import SessionDamaged
from kernelmcp.executions import recorded
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.ids import is_id, mark_in, mark_of
from kernelmcp.files.epochs import place_of
from kernelmcp.files.home import RECORD_FILES, Home
from kernelmcp.sessions.caller import LOCAL, Caller, Origin, check_name, is_name, mint_handle
from kernelmcp.sessions.storage.record import Record, read_record
from kernelmcp.shares import Shares

# A file that changed more recently may change again undetected: file systems count time in steps of up to two seconds.
SETTLED_SECONDS = 3.0
# Searches at the same time, one for each principal: the event loop competes with their threads for the interpreter.
MAX_SEARCHES = 2


class StoredSessions:
    """The sessions folder of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[Path, tuple[tuple[int, ...], Record]] = {}
        """The records as last read, and the identity of their files."""
        self.searches = Shares(lambda: MAX_SEARCHES, 1)
        """For callers, in the event loop: of a whole log, or through all files of sessions."""

    def directory(self, principal: str, handle: str) -> Path:
        """The directory of a principal's session of this name, whether it exists or not."""
        # No session name contains "~", so one principal's name cannot be another's directory.
        prefix = "" if principal == LOCAL else f"{hashlib.sha256(principal.encode()).hexdigest()[:16]}~"
        return self._home.sessions / f"{prefix}{handle}"

    def record(self, caller: Caller, handle: str) -> Record | None:
        """The record of one of the caller's sessions, restored from the trash if it is there. Raises `InvalidArgument`
        and `SessionDamaged`."""
        check_name(handle)
        directory = self.directory(caller.principal, handle)
        record = read_record(directory)
        if record is None and self._home.restore(directory.name):
            record = read_record(directory)
        is_own = record is not None and (record.principal, record.session_id) == (caller.principal, handle)
        return record if is_own else None

    def records(self, caller: Caller) -> Iterator[Record]:
        """The records of all of the caller's sessions, read-only; damaged ones are omitted."""
        for _, record in sorted(self.all_records().items()):
            if record.principal == caller.principal:
                yield record

    def all_records(self) -> dict[Path, Record]:
        """The records of all sessions by their directories, read-only; damaged ones are omitted. Unchanged files are
        not read again. Raises OSError and `StorageFailed`."""
        before, known = self._known, dict[Path, tuple[tuple[int, ...], Record]]()
        for directory in self._home.sessions.iterdir():
            try:
                file = _identity(place_of(directory) / RECORD_FILES[0])
            except OSError:
                file = ()
            if file and directory in before and before[directory][0] == file:
                known[directory] = before[directory]
                continue
            try:
                record = read_record(directory)
            except SessionDamaged:
                continue
            if record is not None:
                known[directory] = file, record
        self._known = known
        return {directory: record for directory, (_, record) in known.items()}

    def defaults(self, origin: Origin) -> Iterator[tuple[str, Record | SessionDamaged]]:
        """The default sessions of this origin by name: their records, or an error if unreadable. Raises
        `StorageFailed`."""
        for directory in self._home.sessions.glob(f"{origin.mark}*"):
            if len(directory.name) != len(mint_handle(origin.mark)):
                continue  # a name that a caller chose, or another principal's
            try:
                record = self.record(Caller(LOCAL, lambda: None), directory.name)
            except SessionDamaged as exc:
                yield directory.name, exc
                continue
            if record is not None and record.default_of == origin:
                yield directory.name, record

    def find_execution(self, caller: Caller, execution_id: str) -> Execution | Record | None:
        """An execution that has ended, from the logs of the caller's sessions; or the session where it was still
        running. Raises `OSError` and `StorageFailed`."""
        if not is_id(execution_id):
            return None
        for directory in list(self._home.sessions.iterdir()):
            handle = directory.name.rpartition("~")[2]
            if mark_of(directory.name) != mark_in(execution_id) or not is_name(handle):
                continue
            try:
                record = self.record(caller, handle) if directory == self.directory(caller.principal, handle) else None
            except SessionDamaged:
                continue
            if record is None:
                continue
            ended, events = find(place_of(directory) / LOG, execution_id)
            if ended is not None:
                if events:
                    ended = line.with_changes(ended, [op for one in events for op in event.ops_of(one)])
                return recorded.from_line(ended, execution_id, handle, caller.principal)
            if events and event.kind_of(events[-1])[0] == "cancelled":
                return recorded.cancelled(events, execution_id, handle, caller.principal)
            if events:
                return record
        return None

    def stamp_of_log(self, record: Record) -> Stamp:
        """Changes with the log of a session. Raises `OSError`."""
        return stamp_of(place_of(self.directory(record.principal, record.session_id)) / LOG)

    def find_running(self, record: Record, execution_id: str) -> Execution | None:
        """An execution that runs in another server, with its output so far; None if it has ended. Raises `OSError`."""
        directory = self.directory(record.principal, record.session_id)
        ended, events = find(place_of(directory) / LOG, execution_id)
        if ended is not None or not events:
            return None
        return recorded.running(events, execution_id, record.session_id, record.principal)

    def workspaces(self, record: Record) -> list[Path]:
        """The directories that may have the files of a session."""
        return [self._home.sandbox(name).workspace for name in record.sandboxes]


def _identity(file: Path) -> tuple[int, ...]:
    """A value that differs for a replaced file; empty if that is not certain yet, or there is no file."""
    try:
        found = file.stat()
    except OSError:
        return ()
    if abs(time.time() - found.st_mtime) < SETTLED_SECONDS:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
