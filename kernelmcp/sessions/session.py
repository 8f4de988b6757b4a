"""A session: its record, transcript and files on disk and, while it is used, a kernel that runs its executions.

Must not know MCP.
"""

import asyncio
import time
from pathlib import Path
from typing import Any, Protocol

import anyio.abc
import anyio.to_thread

from kernelmcp.cells import event
from kernelmcp.cells.log import CellLog
from kernelmcp.cells.lookup import LOG
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ResourceLimitExceeded, StorageFailed
from kernelmcp.executions import recorded
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.handler_call import HandlerCall
from kernelmcp.executions.ids import mark_of, mint_id
from kernelmcp.executions.kept_executions import KeptExecutions
from kernelmcp.files.home import Lock
from kernelmcp.kernel.process import Kernel
from kernelmcp.notebook.transcript import Transcript
from kernelmcp.sessions import background
from kernelmcp.sessions.kernel_binding import KernelBinding
from kernelmcp.sessions.life import Event, Life, PublicState, State
from kernelmcp.sessions.persons_cells import PersonsCells
from kernelmcp.sessions.queue import ExecutionQueue
from kernelmcp.sessions.storage.record import Record, now
from kernelmcp.sessions.storage.saver import Saver


class Listener(Protocol):
    """Receives the events of all sessions: the registry."""

    def session_changed(self, session: "Session") -> None:
        """The session was created, used, stopped or destroyed."""

    def kernel_changed(self, session: "Session") -> None:
        """The session got a kernel, or no longer has one."""

    def execution_submitted(self, execution: Execution) -> None:
        """An execution was submitted. Called in the context of the request that submitted it."""


class Session:
    """One session. Methods run in the event loop."""

    def __init__(
        self,
        settings: Settings,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        lock: Lock,
        record: Record,
        binding: KernelBinding,
        life: Life,
        listener: Listener,
    ) -> None:
        self.record = record
        self.life = life
        self.executions = KeptExecutions(settings, directory / "outputs")
        self.log = CellLog(directory / LOG)
        self.transcript = Transcript(directory / "notebook.ipynb", self.log)
        self.files = binding.files
        self.last_used = time.monotonic()
        self.deleted: asyncio.Future[StorageFailed | None] = asyncio.get_running_loop().create_future()
        """Resolved when it is destroyed and its name is free; the result says why not everything could be deleted."""
        self._settings = settings
        self._tasks = tasks
        self._directory = directory
        self._lock = lock
        self._binding = binding
        self._listener = listener
        self.persons = PersonsCells(record, binding, self.executions, self.log, on_end=self._execution_ended)
        binding.on_late = self._hear_late
        binding.on_kernel = self._kernel_changed
        self._queue = ExecutionQueue(
            settings, binding, life, self.persons, self.log, self.id, on_end=self._execution_ended
        )
        self._saver = Saver(tasks, directory, self.log, self.transcript, self.files)
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
        is_busy = self.life.state is State.IDLE and not self.persons.idle.is_set()
        return "busy" if is_busy else self.life.public

    @property
    def is_idle(self) -> bool:
        return self._queue.is_empty and self.persons.idle.is_set()

    @property
    def current(self) -> Execution | None:
        return self._queue.first

    @property
    def kernel(self) -> Kernel | None:
        return self._binding.kernel

    # -- the queue ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Request a kernel. Raises `SessionNotFound` when the session is being destroyed."""
        self._queue.start()

    def submit(
        self,
        code: str,
        timeout_seconds: float | None = None,
        call: HandlerCall | None = None,
        *,
        longest_seconds: float | None = None,
        is_queued_anyway: bool = False,
    ) -> Execution:
        """Queue an execution; it runs whether or not anybody waits for it. `call` is made after it.

        Its time limit is at most `longest_seconds` or, without that, the policy's. Raises `SessionNotFound` and, unless
        it `is_queued_anyway`, `ResourceLimitExceeded`.
        """
        self.start()
        limit = self._settings.config.sessions.max_queued
        if self._queue.waiting >= limit and not is_queued_anyway:
            raise ResourceLimitExceeded(
                f"{limit} executions are already waiting in session {self.id!r}",
                "Wait for them (get_execution), cancel_execution, or use another session.",
                session_id=self.id,
            )
        longest = longest_seconds or self._settings.policy.execution_timeout_seconds
        seconds = min(timeout_seconds or longest, longest)
        own_id = mint_id(mark_of(self._directory.name))
        fold = self.executions.new_fold(self.log.submitted(own_id, event.now(), code).add)
        execution = Execution(self.id, self.principal, code, seconds, fold.outputs, fold, own_id)
        execution.on_finish.append(self._note_unstarted)
        execution.call, execution.asked_timeout_seconds = call, timeout_seconds
        self._listener.execution_submitted(execution)
        self.executions.add(execution)
        self.touch()
        self._queue.add(execution)
        return execution

    def touch(self) -> None:
        self.last_used = time.monotonic()
        self.record.last_used_at = now()

    async def run(self) -> None:
        """Run its executions until the session is destroyed or unloaded, or the server ends. Started once."""
        if self.log.size or self.transcript.exists:
            self._saver.save_soon()  # the notebook may be incomplete, older, or somebody else's
        await self._queue.run()

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

    def _note_unstarted(self, execution: Execution) -> None:
        if execution.started is None:
            self.log.cancelled(execution.id)

    def _hear_late(self, execution_id: str, kind: str, content: dict[str, Any]) -> None:
        """Handle the output of a task that outlives its cell: it belongs to that cell."""
        if (execution := self.executions.get(execution_id)) is not None:
            execution.hear(kind, content)

    def interrupt(self, execution: Execution) -> bool:
        """Interrupt a running execution, or remove a waiting one from the queue. False if it has already ended."""
        return self._queue.interrupt(execution)

    def interrupt_all(self) -> None:
        """Interrupt the running execution, and cancel the waiting ones."""
        self._queue.interrupt_all()

    async def until_idle(self) -> None:
        """Wait until all executions that run or wait now have ended."""
        while (execution := self._queue.last) is not None:
            await execution.done.wait()
            await asyncio.sleep(0)  # let the queue's task continue first

    def _execution_ended(self, execution: Execution) -> None:
        self.record.execution_count += 1
        self.touch()
        self.log.ended(execution.id, recorded.to_line(execution))
        self.executions.trim()
        self._saver.save_soon()
        self._listener.session_changed(self)

    def _kernel_changed(self) -> None:
        if self.kernel is None:
            self.persons.kernel_ended()
        self._listener.kernel_changed(self)

    # -- its life -----------------------------------------------------------------------------------------------

    async def reset(self, *, variables: bool, files: bool) -> None:
        """Reset the variables (with a fresh kernel, which cancels running and waiting executions), the workspace, or
        both."""
        self.touch()
        if variables:
            await background.complete(self._tasks, lambda: self._replace_kernel(files=files))
        elif files:
            await background.complete(self._tasks, self.files.empty)
        self._listener.session_changed(self)

    async def _replace_kernel(self, *, files: bool) -> None:
        async with self._queue.turn:
            self._queue.cancel_all(files_deleted=files)
            await self._binding.replace(files=files)

    async def stop(self) -> bool:
        """End the kernel; files and transcript stay. False if there was none."""
        return await background.complete(self._tasks, self._stop)

    async def _stop(self) -> bool:
        was_live = await self._end_kernel()
        await self._saver.save()
        self._listener.session_changed(self)
        return was_live

    async def _end_kernel(self, *, files_deleted: bool = False) -> bool:
        async with self._queue.turn:
            self._queue.cancel_all(files_deleted=files_deleted)
            was_live = await self._binding.stop()
        self.executions.trim(stopped=True)
        return was_live

    def kill(self) -> None:
        """End the kernel of an idle session at once, without waiting for its exit. Files and transcript stay."""
        self._binding.kill()
        self.executions.trim(stopped=True)
        self._saver.save_soon()
        self._listener.session_changed(self)

    async def destroy(self) -> None:
        """End the kernel and delete all data of the session. Only the registry calls it, after `life` has noted that
        the session is ending. Raises `StorageFailed`."""
        await self._end_kernel(files_deleted=True)
        self._queue.close()
        await self._queue.wait_closed()
        self._saver.cancel()
        self.log.abandon()
        self.executions.clear()
        try:
            await anyio.to_thread.run_sync(self.files.delete_session)
        except OSError as exc:
            raise StorageFailed(
                f"session {self.id!r} was stopped, but its files could not be deleted: {exc.strerror}",
                "The operator must make its home directory writable; then destroy the session again.",
                session_id=self.id,
            ) from exc
        finally:
            self._lock.close()

    @property
    def is_settled(self) -> bool:
        """True if it is stopped, everything is on disk, and no work is pending."""
        busy = not self.is_idle or self._queue.turn.locked() or self.files.lock.locked()
        return self.life.state is State.STOPPED and not busy and self._saver.is_done and self.log.is_calm

    def unload(self) -> None:
        """Drop a settled session and its executions from memory. It stays on disk, and any server may open it again."""
        self.life.note(Event.UNLOAD)
        self._queue.close()
        self.executions.clear()
        self.transcript.close()
        self._lock.close()

    async def close(self) -> None:
        """Close the queue and write all unsaved data. Called when the server ends."""
        self._queue.close()
        await self._queue.wait_closed()
        self.log.flush()
        await self._saver.save()
        self._saver.cancel()
        self.executions.clear()
        await anyio.to_thread.run_sync(self.transcript.close)
