"""All sessions of a server: finds or creates them for a caller, limits their number, stops idle ones.

Every lookup is by `(principal, handle)`, never by connection; another principal's session is simply not found. Must not
know MCP.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
import structlog

from kernelmcp.config.models import Flavor
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ExecutionNotFound, ResourceLimitExceeded, SessionNotFound, StorageFailed
from kernelmcp.executions.execution import Execution
from kernelmcp.files.home import Home, lock_session
from kernelmcp.files.safe_open import delete_tree
from kernelmcp.files.volume_files import VolumeFiles
from kernelmcp.kernel.pool import Pool
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions import background
from kernelmcp.sessions.caller import Caller, check_name, mint_handle
from kernelmcp.sessions.kernel_binding import KernelBinding
from kernelmcp.sessions.life import Event, Life
from kernelmcp.sessions.session import Session
from kernelmcp.sessions.storage.disk_use import DiskUse
from kernelmcp.sessions.storage.old_sessions import OldSessions
from kernelmcp.sessions.storage.record import MAIN_LANGUAGE, Record, now, read_record
from kernelmcp.sessions.storage.session_files import SessionFiles
from kernelmcp.sessions.storage.stored import StoredSessions

# Checks for idle sessions per idle lifetime.
EXPIRY_CHECKS_PER_LIFE = 20
MAX_EXPIRY_CHECK_SECONDS = 30.0
# Stopped sessions that stay in memory with their executions. Each has a lock, and so a file descriptor. The next call
# to an unloaded session finds it on disk.
MAX_STOPPED = 64

log = structlog.get_logger(__name__)


class Registry:
    """The sessions of one server process. `on_change` is called with every session that was created, used or ended."""

    def __init__(self, settings: Settings, home: Home, pool: Pool, tasks: anyio.abc.TaskGroup) -> None:
        self.on_change: Callable[[Session], None] = lambda session: None
        self.on_kernel: Callable[[Session], None] = lambda session: None
        """Called with a session that was opened, is gone, or has another kernel."""
        self.on_submit: list[Callable[[Execution], None]] = []
        """Each is called with every new execution."""
        self.before_cell: Callable[[Kernel], Awaitable[None]] | None = None
        """Awaited before each cell, once it has a kernel."""
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
        if self.draining:
            raise ResourceLimitExceeded("the server is shutting down", "Try again in a minute.")
        handle = session_id if session_id is not None else caller.default_handle or mint_handle()
        check_name(handle)
        await self._check_room(caller, handle)
        while (session := self._sessions.get((caller.principal, handle))) is not None and session.life.is_ending:
            await asyncio.shield(session.deleted)
        # No await from here on: two calls must not create the same session twice.
        session = session or self._reopen(caller, handle)
        if session is not None and _has_kernel(session):
            return session, False
        self._make_room(caller)
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
        session.start()
        return session, created

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

    async def execution(self, caller: Caller, execution_id: str) -> Execution:
        """Return one of the caller's executions, from memory or from its session's transcript. Raises
        `ExecutionNotFound` and, when it runs in another server, `ResourceLimitExceeded`."""
        for session in self.all(caller):
            if (found := session.executions.get(execution_id)) is not None:
                return found
        find = self.stored.find_execution
        past = await anyio.to_thread.run_sync(find, caller, execution_id)
        if isinstance(past, Record):
            self.open_stored(past)  # which ends it
            past = await anyio.to_thread.run_sync(find, caller, execution_id)
        if past is None or isinstance(past, Record):
            raise ExecutionNotFound(
                f"there is no execution {execution_id!r}",
                "Ids come from execute_code. A session keeps its newest executions, and its transcript.",
                execution_id=execution_id,
            )
        return past

    # -- make and end -------------------------------------------------------------------------------------------

    def _make_room(self, caller: Caller) -> None:
        """At a limit, stop the session that was idle longest. Raises `ResourceLimitExceeded` if all are busy."""
        limits = self._settings.config.sessions
        held = [session for session in self._sessions.values() if _has_kernel(session)]
        own = [session for session in held if session.principal == caller.principal]
        longest_idle = self._choose(own, limits.max_sessions_per_client, "you have")
        if longest_idle is None:
            longest_idle = self._choose(held, limits.max_sessions, "the server has")
        if longest_idle is not None:
            log.info("stopping the longest idle session to make room", session=longest_idle.id)
            longest_idle.kill()

    def _choose(self, held: list[Session], limit: int, whose: str) -> Session | None:
        if len(held) < limit:
            return None
        idle = [session for session in held if session.is_idle and session.kernel is not None]
        if not idle:
            raise ResourceLimitExceeded(
                f"{whose} {len(held)} running sessions, all of them busy, and {limit} are allowed",
                "Wait for one of them (get_sessions lists yours), or end one with destroy_session or stop_session.",
                limit=limit,
            )
        return min(idle, key=lambda session: session.last_used)

    async def _check_room(self, caller: Caller, handle: str) -> None:
        """Raises `ResourceLimitExceeded` if the session is new and the caller's disk space is used up."""
        is_open = (caller.principal, handle) in self._sessions
        if not is_open and read_record(self.stored.directory(caller.principal, handle)) is None:
            await self._disk.check_room(caller.principal)

    def _reopen(self, caller: Caller, handle: str) -> Session | None:
        """Open a session of an earlier server process: it has its files and its transcript, but no variables."""
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
                del self._sessions[session.principal, session.id]
                session.unload()
                self.on_kernel(session)

    def _open(self, directory: Path, record: Record, *, is_new: bool = False) -> Session:
        self._unload_settled()
        lock = lock_session(directory, record.session_id)
        try:
            # Read it again: another server may have moved or deleted the files before it released the lock.
            found = read_record(directory)
            if found is None and not is_new:
                delete_tree(directory)
                raise SessionNotFound(f"there is no session {record.session_id!r} any more", "Use another one.")
            record = found or record
            life = Life(record.session_id)
            files = SessionFiles(self._home, self._disk, self._tasks, directory, record, self._volumes)
            binding = KernelBinding(self._settings, self._pool, self._tasks, record, life, files)
            binding.before_cell = self.before_cell
            session = Session(self._settings, self._tasks, directory, lock, record, binding, life, self)
        except BaseException:
            lock.close()
            raise
        self._sessions[session.principal, session.id] = session
        self._tasks.start_soon(session.run)
        self.on_change(session)
        self.on_kernel(session)
        return session

    # -- events of sessions (session.Listener) ------------------------------------------------------------------

    def session_changed(self, session: Session) -> None:
        self.on_change(session)

    def kernel_changed(self, session: Session) -> None:
        self.on_kernel(session)

    def execution_submitted(self, execution: Execution) -> None:
        for call in self.on_submit:
            call(execution)

    async def destroy(self, session: Session) -> None:
        """Delete a session and all its data, even if the caller stops waiting. Raises `StorageFailed`."""
        if not session.life.is_ending:
            session.life.note(Event.DESTROY)
            background.start(self._tasks, "destroying a session", lambda: self._destroy(session))
        if (failure := await asyncio.shield(session.deleted)) is not None:
            raise failure

    async def _destroy(self, session: Session) -> None:
        failure = None
        try:
            await session.destroy()
            self._disk.forget(self.stored.directory(session.principal, session.id))
        except StorageFailed as exc:
            failure = exc
        except Exception:
            log.exception("a session could not be destroyed", session=session.id)
            failure = StorageFailed(
                f"session {session.id!r} could not be deleted completely; the server's log says why",
                "Destroy it again, or ask the operator of the server.",
                session_id=session.id,
            )
        finally:
            self._sessions.pop((session.principal, session.id), None)
            session.life.note(Event.DESTROYED)
            session.deleted.set_result(failure)
            self.on_change(session)
            self.on_kernel(session)

    # -- background ---------------------------------------------------------------------------------------------

    async def sweep_disk(self) -> None:
        """Delete old sessions from the disk periodically. Runs for the server's life."""
        await OldSessions(self._settings, self._home, self._disk).run()

    async def stop_idle(self) -> None:
        """Stop sessions that have been idle for too long. Runs for the server's life."""
        while True:
            life = self._settings.config.sessions.default_timeout_seconds
            await anyio.sleep(min(life / EXPIRY_CHECKS_PER_LIFE, MAX_EXPIRY_CHECK_SECONDS))
            for session in list(self._sessions.values()):
                if _has_kernel(session) and session.is_idle and time.monotonic() - session.last_used > life:
                    log.info("stopping an idle session", session=session.id)
                    background.start(self._tasks, "stopping an idle session", session.stop)

    async def close(self) -> None:
        """Close all sessions at once, so that everything is on disk. The kernels end with their task group."""
        async with anyio.create_task_group() as tasks:
            for session in self._sessions.values():
                tasks.start_soon(session.close)


def _has_kernel(session: Session) -> bool:
    """True if it has a kernel, or is about to have one."""
    return session.kernel is not None or session.state == "starting" or not session.is_idle
