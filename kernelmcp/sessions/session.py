"""A session: its record, transcript and files on disk and, while it is used, a kernel that runs its executions.

Must not know MCP.
"""

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.cells import event
from kernelmcp.cells.log import CellLog
from kernelmcp.cells.lookup import LOG
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ResourceLimitExceeded, StorageFailed
from kernelmcp.executions import recorded
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.handler_call import HandlerCall
from kernelmcp.executions.ids import mark_of, mint_id
from kernelmcp.executions.kept_executions import OUTPUTS, KeptExecutions
from kernelmcp.files.epochs import session_directory
from kernelmcp.files.home import RECORD_FILES
from kernelmcp.files.locks import LOCK_FILE, Lock
from kernelmcp.kernel.pool import Pool
from kernelmcp.kernel.process import Kernel
from kernelmcp.notebook.transcript import NOTEBOOK, Transcript
from kernelmcp.output.sanitize import counted
from kernelmcp.sessions import background
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.life import Event, PublicState, State
from kernelmcp.sessions.past import Past
from kernelmcp.sessions.queue import ExecutionQueue
from kernelmcp.sessions.storage.record import Record, now
from kernelmcp.sessions.storage.saver import Saver
from kernelmcp.sessions.storage.session_files import SessionFiles

log = structlog.get_logger(__name__)


class Observer:
    """Follows the sessions of a server. Here each event is ignored."""

    def session_changed(self, session: "Session") -> None:
        """The session was created, used, stopped or destroyed."""

    def kernel_changed(self, session: "Session") -> None:
        """The session was opened, is gone, or has another kernel."""

    def execution_submitted(self, execution: Execution) -> None:
        """An execution was submitted. Called in the context of the request that submitted it."""

    async def before_cell(self, kernel: Kernel) -> None:
        """A kernel is about to get a cell, and waits for this."""


class Observers(Observer):
    """All observers of a server, in the order in which they were added."""

    def __init__(self) -> None:
        self._all: list[Observer] = []

    def add(self, observer: Observer) -> None:
        self._all.append(observer)

    def session_changed(self, session: "Session") -> None:
        for observer in self._all:
            observer.session_changed(session)

    def kernel_changed(self, session: "Session") -> None:
        for observer in self._all:
            observer.kernel_changed(session)

    def execution_submitted(self, execution: Execution) -> None:
        for observer in self._all:
            observer.execution_submitted(execution)

    async def before_cell(self, kernel: Kernel) -> None:
        for observer in self._all:
            await observer.before_cell(kernel)


class Session:
    """One session. Methods run in the event loop."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        tasks: anyio.abc.TaskGroup,
        place: Path,
        lock: Lock,
        record: Record,
        files: SessionFiles,
        observers: Observers,
    ) -> None:
        self.place = place
        """The directory that has the session's record, log and states (files.epochs)."""
        self.record = record
        self.files = files
        self.executions = KeptExecutions(settings, place / OUTPUTS)
        self.log = CellLog(place / LOG)
        self.transcript = Transcript(place / NOTEBOOK, self.log)
        self.last_used = time.monotonic()
        self.deleted: asyncio.Future[StorageFailed | None] = asyncio.get_running_loop().create_future()
        """Resolved when it is destroyed and its name is free; the result says why not everything could be deleted."""
        self._settings = settings
        self._tasks = tasks
        self.lock = lock
        self.is_saving = False
        """The server ends, and the variables are not on disk yet."""
        self.is_named = False
        """A call that tells of losses has named it: one that runs a cell, goes back or resets. Reading does not."""
        self._observers = observers
        saved = SavedVariables(settings.home, place, record, enabled=settings.config.sessions.hibernate)
        self.queue = ExecutionQueue(settings, pool, tasks, record, files, saved, self.executions, self.log, self)
        self.life = self.queue.life
        self.past = Past(settings, tasks, place, record, self.queue, self)
        self.queue.on_other_use = self.past.note_other_use
        self._saver = Saver(tasks, place, self.log, self.transcript, self.files)
        self.log.on_late = self._saver.save_soon
        self._recover()

    # -- properties ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.record.session_id

    @property
    def principal(self) -> str:
        return self.record.principal

    @property
    def state(self) -> PublicState:
        is_busy = self.life.state is State.IDLE and not self.queue.persons.idle.is_set()
        return "busy" if is_busy else self.life.public

    @property
    def is_idle(self) -> bool:
        return self.queue.is_empty and self.queue.persons.idle.is_set()

    @property
    def kernel(self) -> Kernel | None:
        return self.queue.binding.kernel

    # -- the queue ----------------------------------------------------------------------------------------------

    def submit(
        self,
        code: str,
        timeout_seconds: float | None = None,
        call: HandlerCall | None = None,
        *,
        longest_seconds: float | None = None,
        is_queued_anyway: bool = False,
        request_id: str | None = None,
    ) -> Execution:
        """Queue an execution; it runs whether or not anybody waits for it. `call` is made after it. `request_id`: of
        the HTTP request, if a load balancer may repeat it.

        Its time limit is at most `longest_seconds` or, without that, the policy's. Raises `SessionNotFound` and, unless
        it `is_queued_anyway`, `ResourceLimitExceeded`.
        """
        self.queue.start()
        limit = self._settings.config.sessions.max_queued
        if self.queue.waiting >= limit and not is_queued_anyway:
            raise ResourceLimitExceeded(
                f"{counted(limit, 'execution is', 'executions are')} already waiting in session {self.id!r}",
                "Wait for them (get_execution), cancel_execution, or use another session.",
                session_id=self.id,
            )
        longest = longest_seconds or self._settings.policy.execution_timeout_seconds
        seconds = min(timeout_seconds or longest, longest)
        own_id = mint_id(mark_of(session_directory(self.place).name), self._settings.config.server.slot)
        fold = self.executions.new_fold(own_id, self.log.submitted(own_id, event.now(), code, request_id).add)
        execution = Execution(self.id, self.principal, code, seconds, fold.outputs, fold, own_id)
        execution.request_id = request_id
        execution.on_finish.append(self._note_unstarted)
        execution.on_announced = self._note_announced
        execution.call, execution.asked_timeout_seconds = call, timeout_seconds
        self._observers.execution_submitted(execution)
        self.executions.add(execution)
        self.touch()
        self.queue.add(execution)
        return execution

    def touch(self) -> None:
        self.last_used = time.monotonic()
        self.record.last_used_at = now()

    async def run(self) -> None:
        """Run its executions until the session is destroyed or unloaded, or the server ends. Started once."""
        if self.log.size or self.transcript.exists:
            self._saver.save_soon()  # the notebook may be incomplete, older, or somebody else's
        await self.queue.run()

    def _recover(self) -> None:
        """End what ran when an earlier server was killed. Raises `StorageFailed`."""
        try:
            left = self.log.open()
        except OSError as exc:
            raise StorageFailed(
                f"the log of session {self.id!r} cannot be read: {exc.strerror}",
                "The operator must check the disk and the permissions of its home directory.",
                session_id=self.id,
            ) from exc
        for execution_id, lines in left.items():
            found = recorded.from_events(lines, execution_id, self.id, self.principal, self.log.last_at)
            self.log.ended(execution_id, recorded.to_line(found))
            self.record.execution_count += 1

    def _note_announced(self) -> None:
        """A client may ask other servers, and later ones, for an execution, also before the first kernel has come."""
        if not os.path.exists(self.place / RECORD_FILES[0]):
            self.files.save_record()
        self.log.flush()

    def _note_unstarted(self, execution: Execution) -> None:
        if execution.started is None:
            self.log.cancelled(execution.id, as_task=execution.cancelled_as_task)
            current = self.queue.current
            # Otherwise the current one's end is about to be written, and trims.
            if current in (None, execution) or not current.done.is_set():
                self.executions.trim()
            self._saver.save_soon()

    # -- events of the queue (queue.Owner) ----------------------------------------------------------------------

    async def before_cell(self, kernel: Kernel) -> None:
        await self._observers.before_cell(kernel)

    def execution_ended(self, execution: Execution) -> None:
        self.record.execution_count += 1
        if execution.started is not None and not execution.has_left:
            self.record.last_execution = execution.id
        self.touch()
        self.log.ended(execution.id, recorded.to_line(execution))
        self.executions.trim()
        self._saver.save_soon()
        self.past.note_changed()
        self._observers.session_changed(self)

    def kernel_changed(self) -> None:
        self._observers.kernel_changed(self)

    def past_asked_for(self, execution: Execution, content: dict[str, Any]) -> None:
        self.past.answer(execution, content)

    def changed(self) -> None:
        self.touch()
        self._observers.session_changed(self)

    # -- its life -----------------------------------------------------------------------------------------------

    async def reset(self, *, variables: bool, files: bool) -> None:
        """Reset the variables (with a fresh kernel if it has one, which cancels running and waiting executions), the
        workspace, or both."""
        self.touch()
        self.is_named = True
        if variables:
            await background.complete(self._tasks, lambda: self._replace_kernel(files=files))
        elif files:
            await background.complete(self._tasks, self.files.empty)
        self._observers.session_changed(self)

    async def _replace_kernel(self, *, files: bool) -> None:
        async with self.queue.turn:
            cancel = partial(self.queue.cancel, self.queue.unfinished, files_deleted=files)
            if self.queue.binding.kernel is not None:
                await self.queue.binding.replace(files=files, before_end=cancel)
                return
            if files:
                await self.files.empty()
                self.record.packages = []  # as a reset with a kernel does
            cancel()
            self.queue.binding.variables.reset()
            self.files.save_record()

    async def stop(self, *, save: bool = True) -> bool:
        """End the kernel; files and transcript stay, and with `save` the variables. False if there was none."""
        return await background.complete(self._tasks, lambda: self._stop(save=save))

    async def stop_if_idle(self, *, must_end: bool, must_save: bool = False) -> None:
        """End the kernel and save its variables, unless something runs or waits by then. Without `must_end`, it goes on
        if they could not be saved now, and may be later: the disk is full, or a person's cell has come. With
        `must_save`, it goes on whyever they could not, and this raises `StateNotSaved`."""
        stop = partial(self._stop_if_idle, must_end=must_end, must_save=must_save)
        await background.complete(self._tasks, stop)

    async def _stop_if_idle(self, *, must_end: bool, must_save: bool) -> None:
        async with self.queue.turn:
            has_ended = self.is_idle and await self.queue.binding.stop(must_end=must_end, must_save=must_save)
        if has_ended or (self.life.state is State.STOPPED and not self._saver.is_done):
            await self._stopped()

    async def _stop(self, *, save: bool) -> bool:
        was_live = await self._end_kernel(save=save)
        await self._stopped()
        return was_live

    async def _stopped(self) -> None:
        self.executions.trim(stopped=True)
        await self._saver.save()
        self._observers.session_changed(self)

    async def _end_kernel(self, *, save: bool, files_deleted: bool = False) -> bool:
        async with self.queue.turn:
            self.queue.cancel(self.queue.unfinished, files_deleted=files_deleted)
            return await self.queue.binding.stop(save=save)

    async def destroy(self, *, is_taken: bool = False) -> None:
        """End the kernel and delete all data of the session; of one that `is_taken` over by another server, what that
        server has copied. Only the registry calls it, after `life` has noted that the session is ending. Raises
        `StorageFailed`."""
        self.past.close()
        if (running := self.queue.current) is not None:
            running.checkpoint = None  # nobody can go back to it
        await self._end_kernel(save=False, files_deleted=not is_taken)
        self.queue.close()
        await self.queue.wait_closed()
        self._saver.close()
        self.log.abandon()
        self.executions.clear()
        try:
            if not is_taken or self.lock.is_at(self.place / LOCK_FILE):
                await anyio.to_thread.run_sync(self.files.delete_session)
            elif self.files.sandbox is not None:  # that server has deleted the session, but knows nothing of these
                await anyio.to_thread.run_sync(self.files.sandbox.delete_for_good)
        except OSError as exc:
            raise StorageFailed(
                f"session {self.id!r} was stopped, but its files could not be deleted: {exc.strerror}",
                "The operator must make its home directory writable; then destroy the session again.",
                session_id=self.id,
            ) from exc
        finally:
            self.lock.close()

    @property
    def is_settled(self) -> bool:
        """True if it is stopped, everything is on disk, and no work is pending."""
        busy = not self.is_idle or self.queue.turn.locked() or self.files.lock.locked()
        return self.life.state is State.STOPPED and not busy and self._saver.is_done and self.log.is_calm

    def unload(self) -> None:
        """Drop a settled session and its executions from memory. It stays on disk, and any server may open it again."""
        self.past.close()
        self.life.note(Event.UNLOAD)
        self.queue.close()
        self.executions.clear()
        self.transcript.close()
        self.lock.close()

    async def close(self) -> None:
        """Close the queue and write all unsaved data. Called when the server ends. A failure is only logged: other
        sessions are closed meanwhile."""
        try:
            await self._close()
        except Exception:
            log.exception("a session could not be closed", session=self.id)
        finally:
            self.is_saving = False

    async def _close(self) -> None:
        self.past.close()
        self.is_saving = self.queue.binding.variables.are_unsaved
        self.queue.close()
        await self.queue.wait_closed()
        self.log.flush()
        await self._saver.save()
        await self.queue.binding.hibernate()
        self._saver.close()
        self.executions.clear()
        await anyio.to_thread.run_sync(self.transcript.close)
