"""All sessions of a server: finds or creates them for a caller, limits their number, stops idle ones.

Every lookup is by `(principal, handle)`, never by connection; another principal's session is simply not found. Must not
know MCP.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import structlog

from kernelmcp.atomic import NO_FILE
from kernelmcp.config.models import Flavor
from kernelmcp.config.settings import Settings
from kernelmcp.errors import (
    ExecutionNotFound,
    InvalidArgument,
    ResourceLimitExceeded,
    SessionInUse,
    SessionNotFound,
    StorageFailed,
)
from kernelmcp.executions.beginning import Beginning
from kernelmcp.executions.execution import Execution
from kernelmcp.files import epochs
from kernelmcp.files.home import Home
from kernelmcp.files.locks import LOCK_FILE, free_place, lock_session
from kernelmcp.files.volume_files import VolumeFiles
from kernelmcp.kernel.pool import Pool
from kernelmcp.sessions import background
from kernelmcp.sessions.caller import Caller, check_name, mint_handle
from kernelmcp.sessions.fleet.fleet import Fleet
from kernelmcp.sessions.hibernation.state_files import StateNotSaved
from kernelmcp.sessions.life import Event
from kernelmcp.sessions.past import PlaceLost
from kernelmcp.sessions.session import Observers, Session
from kernelmcp.sessions.storage.disk_use import DiskUse
from kernelmcp.sessions.storage.old_sessions import OldSessions
from kernelmcp.sessions.storage.record import MAIN_LANGUAGE, Checkpoint, Record, now, read_record
from kernelmcp.sessions.storage.session_files import SessionFiles
from kernelmcp.sessions.storage.stored import StoredSessions

# Stopped sessions that stay in memory: each has a lock, and so a descriptor. The next call finds others on disk.
MAX_STOPPED = 64
# Between two looks at an execution that runs in another server.
ELSEWHERE_SECONDS = 0.25
# To open a session that another server opens at the same moment, and lets go.
ATTEMPTS = 3

log = structlog.get_logger(__name__)


class Registry:
    """The sessions of one server process."""

    def __init__(self, settings: Settings, home: Home, pool: Pool, tasks: anyio.abc.TaskGroup) -> None:
        self.observers = Observers()
        self.draining = False
        """The server is about to end: results can be read, but no new work begins."""
        self.stored = StoredSessions(home)
        self._settings = settings
        self._home = home
        self._pool = pool
        self._tasks = tasks
        self._disk = DiskUse(settings, home, self.stored)
        self._volumes = VolumeFiles(settings)
        self._sessions: dict[tuple[str, str], Session] = {}
        self._pinned: tuple[str, str] | None = None
        slot = settings.config.server.slot
        self.fleet = Fleet(slot, home, self.stored, self, tasks) if slot is not None else None
        """None: this is the only server that matters."""

    # -- find ---------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, session_id: str | None) -> Session:
        """Return an existing session, running or stopped. Raises `SessionNotFound`."""
        handle = caller.default_handle if session_id is None else session_id
        if handle is not None:
            check_name(handle)
            session = self._sessions.get((caller.principal, handle)) or self._reopen(caller, handle)
            if session is not None and not session.life.is_ending:
                return session
        if handle is None:
            raise SessionNotFound(
                "no session_id was given, and this connection has no session of its own",
                "Pass session_id: results contain it, and get_sessions lists yours.",
                session_id=None,
            )
        raise SessionNotFound(
            "you have no session yet" if session_id is None else f"there is no session {session_id!r}",
            "List yours with get_sessions, or create one with execute_code or create_session.",
            session_id=session_id,
        )

    async def find_or_create(
        self, caller: Caller, session_id: str | None, flavor: Flavor | None = None, language: str = MAIN_LANGUAGE
    ) -> tuple[Session, bool]:
        """Return the caller's session, whose kernel is at least being started, and whether the session is new.

        Flavor and language apply to a new session; an existing one keeps its own."""
        self._check_open()
        handle = session_id if session_id is not None else caller.default_handle or await self.mint(caller)
        check_name(handle)
        await self._check_room(caller, handle)
        attempts, kept = ATTEMPTS, set[Session]()
        while True:
            while (session := self._sessions.get((caller.principal, handle))) is not None and session.life.is_ending:
                await asyncio.shield(session.deleted)
            # No await from here on: two calls must not create the same session twice.
            try:
                session = session or self._reopen(caller, handle)
            except SessionInUse:
                if self.fleet is None or (attempts := attempts - 1) < 0:
                    raise
                await self.fleet.bring(caller.principal, handle)
                continue
            if session is not None and session_id is not None:
                session.is_named = True
            if session is not None and _has_kernel(session):
                return session, False
            if (longest_idle := self._crowded_out(caller, kept)) is None:
                break
            await self._make_room(caller, longest_idle, kept)
        created = session is None
        if session is None:
            record = Record(
                session_id=handle,
                principal=caller.principal,
                language=language,
                flavor=flavor or self._settings.policy.default_flavor,
                created_at=now(),
                last_used_at=now(),
                default_of=caller.origin if session_id is None else None,
            )
            session = self._open(self.stored.directory(caller.principal, handle), record, is_new=True)
        session.queue.start()
        return session, created

    async def mint(self, caller: Caller) -> str:
        """A name for a new session of the caller."""
        return mint_handle() if self.fleet is None else await self.fleet.mint_handle(caller)

    async def fork(
        self, caller: Caller, source: Session, checkpoint: str | None, handle: str, flavor: Flavor | None
    ) -> tuple[Session, Beginning]:
        """A new session with the variables and files of another one: as they are now or, with a name, as they were at
        that checkpoint. Raises `InvalidArgument`, `ResourceLimitExceeded`, `StorageFailed` and `KernelStartFailed`."""
        check_name(handle)
        self._check_open()
        source.touch()  # so that it is not unloaded
        if checkpoint is not None:
            source.past.checkpoints.find(checkpoint, argument="from_checkpoint")
        await self._disk.check_room(caller.principal)
        while True:
            while (ending := self._sessions.get((caller.principal, handle))) is not None and ending.life.is_ending:
                await asyncio.shield(ending.deleted)
            # No await from here on, as in `find_or_create`.
            if ending is not None or self.stored.record(caller, handle) is not None:
                raise InvalidArgument(
                    f"there is a session {handle!r} already",
                    "A fork is a new session: use another session_id, or omit it.",
                )
            if checkpoint is None:
                source.past.check_idle()
            if (longest_idle := self._crowded_out(caller, {source})) is None:
                break
            await self._make_room_kept(caller, longest_idle, spared=source)
        record = Record(
            session_id=handle,
            principal=caller.principal,
            language=source.record.language,
            flavor=flavor or source.record.flavor,
            created_at=now(),
            last_used_at=now(),
        )
        session = self._open(self.stored.directory(caller.principal, handle), record, is_new=True)
        session.life.note(Event.KERNEL_WANTED)  # it counts from now on
        try:
            return session, await session.past.fork_from(source.past, checkpoint)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.destroy(session)
            raise

    async def go_back(self, caller: Caller, session: Session, name: str | None) -> tuple[Checkpoint, Beginning]:
        """`Past.go_back`, once there is room for its kernel."""
        session.touch()
        session.past.find(name)
        session.is_named = True
        while True:
            self._check_open()
            while not _has_kernel(session) and (longest_idle := self._crowded_out(caller)) is not None:
                await self._make_room_kept(caller, longest_idle)
            if not _has_kernel(session):
                session.life.note(Event.KERNEL_WANTED)
            with suppress(PlaceLost):
                return await session.past.go_back(name)

    def open_stored(self, record: Record) -> Session:
        """Open a session from disk. Raises `ServerError`, such as when another server has it, and OSError."""
        opened = self._sessions.get((record.principal, record.session_id))
        return opened or self._open(self.stored.directory(record.principal, record.session_id), record)

    def pin(self, principal: str, handle: str) -> None:
        """Never unload this session after it is opened: its lock keeps other servers away."""
        self._pinned = principal, handle

    def all(self, caller: Caller) -> list[Session]:
        """The caller's sessions that this server has opened."""
        return [session for session in self._sessions.values() if session.principal == caller.principal]

    def every(self) -> list[Session]:
        """The sessions of all principals that this server has opened; for the operator, never for a caller."""
        return list(self._sessions.values())

    def find_open(self, principal: str, session_id: str) -> Session | None:
        """The session, if this server has opened it."""
        return self._sessions.get((principal, session_id))

    async def execution(self, caller: Caller, execution_id: str, wait_seconds: float = 0.0) -> Execution:
        """Return one of the caller's executions, from memory or from its session's transcript. If it runs in another
        server of a fleet, wait for its end; after that time, what it has put out is returned, `is_elsewhere`. Raises
        `ExecutionNotFound` and, when it runs in a server outside the fleet, `SessionInUse`."""
        for session in self.all(caller):
            found = session.executions.get(execution_id)
            if found is not None and not (self.fleet is not None and session.life.is_ending):
                return found
        search, fleet = self.stored.searches.in_thread, self.fleet
        find = partial(self.stored.find_execution, caller, execution_id)
        past = await search(caller.principal, find)
        end, seen = time.monotonic() + wait_seconds, NO_FILE
        while isinstance(past, Record) and fleet is not None and await fleet.owner_of(past.principal, past.session_id):
            if time.monotonic() >= end:
                running = await search(caller.principal, partial(self.stored.find_running, past, execution_id))
                past = running or await search(caller.principal, find)  # it has just ended
                break
            await anyio.sleep(ELSEWHERE_SECONDS)
            if (stamp := await anyio.to_thread.run_sync(self.stored.stamp_of_log, past)) != seen:
                seen, past = stamp, await search(caller.principal, find)
        if isinstance(past, Record) and fleet is not None:
            await fleet.bring(past.principal, past.session_id)
            past = await search(caller.principal, find)
        if isinstance(past, Record):
            self.open_stored(past)  # which ends it
            past = await search(caller.principal, find)
        if past is None or isinstance(past, Record):
            raise ExecutionNotFound(
                f"there is no execution {execution_id!r}",
                "Use an execution_id of an earlier result. Older cells are in kernelmcp://sessions/ID/notebook.",
                execution_id=execution_id,
            )
        return past

    # -- make and end -------------------------------------------------------------------------------------------

    def _crowded_out(self, caller: Caller, spared: Collection[Session] = ()) -> Session | None:
        """At a limit, the session that was idle longest; of `spared` only if there is no other. Raises
        `ResourceLimitExceeded` if all are busy."""
        limits = self._settings.config.sessions
        held = [session for session in self._sessions.values() if _has_kernel(session)]
        own = [session for session in held if session.principal == caller.principal]
        longest_idle = self._choose(own, limits.max_sessions_per_client, "you have", spared)
        return longest_idle or self._choose(held, limits.max_sessions, "the server has", spared)

    def _choose(self, held: list[Session], limit: int, whose: str, spared: Collection[Session]) -> Session | None:
        if len(held) < limit:
            return None
        idle = [session for session in held if session.is_idle and session.kernel is not None]
        if not idle:
            raise ResourceLimitExceeded(
                f"{whose} {len(held)} of {limit} running sessions, and all of them are busy",
                "Wait for one of them (get_sessions lists yours), or end one with destroy_session or stop_session.",
                limit=limit,
            )
        return min(idle, key=lambda session: (session in spared, session.last_used))

    def _check_open(self) -> None:
        """Raises `ResourceLimitExceeded` if no new work may begin."""
        if self.draining:
            raise ResourceLimitExceeded("the server is shutting down", "Try again in a minute.")

    async def _make_room(self, caller: Caller, longest_idle: Session, kept: set[Session]) -> None:
        """End this session, or add it to `kept` if it goes on until its variables can be saved (a full disk). After
        some of these, one of the caller's own loses them. Raises `ResourceLimitExceeded`: there is none."""
        must_end = longest_idle in kept or len(kept) >= ATTEMPTS
        if must_end:
            own = [session for session in self.all(caller) if session.is_idle and session.kernel is not None]
            if not own:
                raise _no_room()
            longest_idle = min(own, key=lambda session: session.last_used)
        log.info("stopping an idle session to make room", session=longest_idle.id, principal=longest_idle.principal)
        await longest_idle.stop_if_idle(must_end=must_end)
        if longest_idle.kernel is not None and longest_idle.is_idle:
            if longest_idle.queue.binding.variables.saved.has_no_room:
                kept.add(longest_idle)
            else:  # its kernel is at work for a client that nobody knows
                await longest_idle.stop_if_idle(must_end=True)

    async def _make_room_kept(self, caller: Caller, longest_idle: Session, *, spared: Session | None = None) -> None:
        """Make room for a fork or a return, which fails if the variables of that session cannot be saved: it is not
        worth them. Raises `InvalidArgument`, `StorageFailed`, `ResourceLimitExceeded`."""
        must_save = longest_idle is spared or self._settings.config.sessions.hibernate
        log.info("stopping an idle session to make room", session=longest_idle.id, principal=longest_idle.principal)
        try:
            with longest_idle.past.storing():
                await longest_idle.stop_if_idle(must_end=True, must_save=must_save)
        except (InvalidArgument, StorageFailed) as exc:
            if longest_idle.principal == caller.principal:
                raise
            raise _no_room() from exc  # of another principal's session nothing is said

    async def _check_room(self, caller: Caller, handle: str) -> None:
        """Raises `ResourceLimitExceeded` if the session is new and the caller's disk space is used up."""
        is_open = (caller.principal, handle) in self._sessions
        if not is_open and read_record(self.stored.directory(caller.principal, handle)) is None:
            await self._disk.check_room(caller.principal)

    def _reopen(self, caller: Caller, handle: str) -> Session | None:
        """Open a session of an earlier server process: it has its files, its transcript, and perhaps its variables."""
        record = self.stored.record(caller, handle)
        try:
            return None if record is None else self._open(self.stored.directory(caller.principal, handle), record)
        except SessionNotFound:
            return None

    def _unload_settled(self) -> None:
        """Unload stopped sessions that have been unused for long, and the oldest if there are many."""
        others = [one for key, one in self._sessions.items() if key != self._pinned]
        settled = sorted((one for one in others if one.is_settled), key=lambda one: one.last_used)
        oldest = time.monotonic() - 2 * self._settings.config.sessions.default_timeout_seconds
        for number, session in enumerate(settled):
            if number < len(settled) - MAX_STOPPED or session.last_used < oldest:
                self._unload(session)

    def _unload(self, session: Session) -> None:
        del self._sessions[session.principal, session.id]
        session.unload()
        self.observers.kernel_changed(session)

    def _open(self, directory: Path, record: Record, *, is_new: bool = False) -> Session:
        self._unload_settled()
        place = epochs.place_of(directory)
        lock = lock_session(place, record.session_id, make=place == directory, slot=self._settings.config.server.slot)
        try:
            # A server may have been about to take it over from one that has just ended. No await from the lock to the
            # entry in `_sessions`: a beat in between would not look at this session.
            has_old = epochs.revoke(directory) or place != directory
            if has_old:
                background.start(self._tasks, "deleting epochs", lambda: anyio.to_thread.run_sync(_delete_old, place))
            if epochs.is_superseded(place):
                raise SessionInUse(f"another server has just taken over session {record.session_id!r}", "Call again.")
            # Read it again: another server may have moved or deleted the files before it released the lock.
            found = read_record(directory)
            if found is None and not is_new:
                with suppress(OSError):
                    epochs.delete_place(place, (LOCK_FILE,), free_place)
                raise SessionNotFound(f"there is no session {record.session_id!r} any more", "Use another one.")
            record = found or record
            files = SessionFiles(self._home, self._disk, self._tasks, place, record, self._volumes)
            session = Session(self._settings, self._pool, self._tasks, place, lock, record, files, self.observers)
        except BaseException:
            lock.close()
            raise
        self._sessions[session.principal, session.id] = session
        self._tasks.start_soon(session.run)
        self.observers.session_changed(session)
        self.observers.kernel_changed(session)
        return session

    # -- among other servers (fleet.Sessions) ---------------------------------------------------------------------

    async def release(self, session: Session, is_used: Callable[[], bool]) -> None:
        key = session.principal, session.id
        next_attempt = session.queue.binding.variables.saved.next_attempt
        if not session.is_idle or key == self._pinned or time.monotonic() < next_attempt:
            return
        with suppress(StateNotSaved):
            await session.stop_if_idle(must_end=False, must_save=True)
        if session.is_settled and not is_used() and self._sessions.get(key) is session:
            self._unload(session)

    def give_up(self, session: Session) -> None:
        if not session.life.is_ending:
            session.life.note(Event.DESTROY)
            background.start(self._tasks, "giving up a session", partial(self._destroy, session, is_taken=True))

    async def destroy(self, session: Session) -> None:
        """Delete a session and all its data, even if the caller stops waiting. Raises `StorageFailed`."""
        if not session.life.is_ending:
            session.life.note(Event.DESTROY)
            background.start(self._tasks, "destroying a session", lambda: self._destroy(session))
        if (failure := await asyncio.shield(session.deleted)) is not None:
            raise failure

    async def _destroy(self, session: Session, *, is_taken: bool = False) -> None:
        failure = None
        try:
            await session.destroy(is_taken=is_taken)
            self._disk.forget(self.stored.directory(session.principal, session.id))
        except StorageFailed as exc:
            failure = exc
        except Exception:
            log.exception("a session could not be destroyed", session=session.id, principal=session.principal)
            failure = StorageFailed(
                f"session {session.id!r} could not be deleted completely; the server's log says why",
                "Destroy it again, or ask the operator of the server.",
                session_id=session.id,
            )
        finally:
            self._sessions.pop((session.principal, session.id), None)
            session.life.note(Event.DESTROYED)
            session.deleted.set_result(failure)
            self.observers.session_changed(session)
            self.observers.kernel_changed(session)

    # -- background ---------------------------------------------------------------------------------------------

    async def sweep_disk(self) -> None:
        """Delete old sessions from the disk periodically. Runs for the server's life."""
        await OldSessions(self._settings, self._home, self._disk).run()

    async def close(self) -> None:
        """Close all sessions at once, so that everything is on disk. The kernels end with their task group."""
        async with anyio.create_task_group() as tasks:
            for session in self._sessions.values():
                tasks.start_soon(session.close)


def _delete_old(place: Path) -> None:
    """Delete what servers that have ended have left of a session that was taken over. Blocking."""
    epochs.sweep(epochs.session_directory(place))
    epochs.delete_older(place, free_place)


def _no_room() -> ResourceLimitExceeded:
    return ResourceLimitExceeded(
        "the server has no room for another running session now",
        "Try again later, or end one of yours with stop_session.",
    )


def _has_kernel(session: Session) -> bool:
    """True if it has a kernel, or is about to have one."""
    return session.kernel is not None or session.state == "starting" or not session.is_idle
