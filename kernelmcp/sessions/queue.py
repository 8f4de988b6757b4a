"""Runs the executions of one session one at a time: gets a kernel, sends the code, interrupts it, ends it. What the
kernel says beyond that arrives here, too: the cells of persons, and the output of tasks that outlive their cell.

Must not know MCP.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
import structlog

from kernelmcp.cells.log import CellLog
from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelDied, ServerError, SessionInUse
from kernelmcp.executions.execution import Execution, Interruption, ask, changed_paths, take_persons_seconds
from kernelmcp.executions.kept_executions import KeptExecutions
from kernelmcp.kernel.pool import Pool
from kernelmcp.kernel.process import PAST_REQUEST, Kernel
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.kernel_binding import KernelBinding
from kernelmcp.sessions.life import Event, Life, State
from kernelmcp.sessions.persons_cells import PersonsCells
from kernelmcp.sessions.storage.record import Record
from kernelmcp.sessions.storage.session_files import SessionFiles

# For the word that a person's cell or request has ended, before variables are saved.
SETTLE_SECONDS = 2.0
# Share of the grace period after which the guest is ended. The rest is for the answer.
GUEST_SHARE = 5 / 6
log = structlog.get_logger(__name__)


class Owner(Protocol):
    """The session of a queue."""

    async def before_cell(self, kernel: Kernel) -> None:
        """Prepare the kernel for a cell of the queue. Awaited before each."""

    def execution_ended(self, execution: Execution) -> None:
        """An execution that reached a kernel, the model's or a person's, has ended."""

    def kernel_changed(self) -> None:
        """The session got a kernel, or no longer has one."""

    def past_asked_for(self, execution: Execution, content: dict[str, Any]) -> None:
        """A cell asks for a checkpoint, or to go back to one. Its kernel waits for the answer."""


class ExecutionQueue:
    """The queue of one session, and its kernel. All methods run in the event loop; `run` is one task for the session's
    life."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        tasks: anyio.abc.TaskGroup,
        record: Record,
        files: SessionFiles,
        saved: SavedVariables,
        executions: KeptExecutions,
        log: CellLog,
        owner: Owner,
    ) -> None:
        self.life = Life(record.session_id)
        self.binding = KernelBinding(settings, pool, tasks, record, self.life, files, saved, self)
        self.persons = PersonsCells(
            record, self.binding, executions, log, end=owner.execution_ended, ask=owner.past_asked_for
        )
        self.on_other_use: Callable[[], None] = lambda: None
        """Called when another client of the kernel has run something."""
        self.current: Execution | None = None
        self.asking: Execution | None = None
        """The running cell, while its kernel waits for what it asks of this server and runs nothing."""
        self.turn = asyncio.Lock()
        """Held while an execution gets its kernel, and while the session is stopped or reset."""
        self._settings = settings
        self._record = record
        self._executions = executions
        self._log = log
        self._owner = owner
        self._queue: deque[Execution] = deque()
        self._work = asyncio.Event()
        self._cancelled = asyncio.Event()
        """Set when the current execution is cancelled before it has begun."""
        self._is_here = False
        """The current execution has begun, and its kernel has got nothing for it yet, or has answered."""
        self._has_waited = False
        """The kernel has run something of another client since the current execution was sent."""
        self._is_ending = False
        """The server, or the session, ends."""
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_empty(self) -> bool:
        """True if nothing runs or waits."""
        return self.current is None and not self._queue

    @property
    def unfinished(self) -> list[Execution]:
        """The waiting executions, then the running one."""
        return [*self._queue, *([self.current] if self.current else [])]

    @property
    def first(self) -> Execution | None:
        """The running execution, or else the next one."""
        return self.current or (self._queue[0] if self._queue else None)

    def start(self) -> None:
        """Request a kernel. Raises `SessionNotFound` when the session is being destroyed."""
        self.life.note(Event.KERNEL_WANTED)
        self._work.set()

    def add(self, execution: Execution) -> None:
        """Queue this execution after all others. Raises `SessionNotFound` when the session is being destroyed."""
        self.start()
        execution.persons_idle = self.persons.idle
        execution.running = lambda: self.current
        self._queue.append(execution)

    async def until_idle(self) -> None:
        """Wait until all executions that run or wait now have ended."""
        while (execution := self._queue[-1] if self._queue else self.current) is not None:
            await execution.done.wait()
            await asyncio.sleep(0)  # let `run` continue first

    # -- events of the kernel (kernel_binding.KernelUser) --------------------------------------------------------

    def hear_late(self, execution_id: str, kind: str, content: dict[str, Any]) -> None:
        if (execution := self._executions.get(execution_id)) is not None:
            execution.hear(kind, content)

    def hear_other(self, request: dict[str, Any], kind: str, content: dict[str, Any]) -> None:
        self.persons.hear(request, kind, content)

    def hear_other_use(self, request: dict[str, Any], *, begins: bool, is_cell: bool) -> None:
        if not is_cell:  # of which `hear_other` tells, too
            self.persons.note_use(request, begins=begins)
        self._has_waited |= begins
        if begins or not (is_cell and self.persons.has_asked):
            self.binding.variables.note_used(begins=begins)
            if not begins:
                self.on_other_use()

    @property
    def is_running(self) -> bool:
        if self.asking is not None:
            return False
        has_begun = self.current is not None and self.current.started is not None
        return has_begun or not self.persons.idle.is_set()

    async def settle(self) -> None:
        with anyio.move_on_after(SETTLE_SECONDS):
            await self.persons.idle.wait()

    def kernel_changed(self) -> None:
        if self.binding.kernel is None:
            self.persons.kernel_ended()
        self._owner.kernel_changed()

    # -- its task -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ask the task to end. The running execution finishes with its output so far."""
        self._scope.cancel()

    async def wait_closed(self) -> None:
        """Wait until no execution runs."""
        if self.current is not None:
            await self._ended.wait()

    async def run(self) -> None:
        """Run executions until `close` is called or the server ends. Started once."""
        try:
            with self._scope:
                while True:
                    await self._work.wait()
                    self._work.clear()
                    try:
                        if not self._queue:
                            await self._warm_up()
                        await self._run_queue()
                    finally:
                        if not self._work.is_set():
                            self.binding.give_up_start()
        finally:
            self._ended.set()

    async def _run_queue(self) -> None:
        while self._queue:
            execution = self.current = self._queue.popleft()
            try:
                if not execution.done.is_set():
                    await self._run_one(execution)
            except asyncio.CancelledError:
                if execution.interruption is not None and not execution.done.is_set():
                    execution.finish_unstarted()  # it had been cancelled, and waited for its turn
                raise
            except Exception:
                log.exception("execution failed", session=self._record.session_id)
                if not execution.done.is_set():
                    execution.finish_killed("internal error")
            finally:
                self.current = None

    async def _warm_up(self) -> None:
        try:
            async with self.turn:
                if self.life.state is State.STARTING:
                    await self.binding.bind()
        except ServerError as exc:
            log.error("no kernel for a new session", session=self._record.session_id, error=exc.message, **exc.context)
        except Exception:
            log.exception("no kernel for a new session", session=self._record.session_id)

    async def _run_one(self, execution: Execution) -> None:
        """Run an execution until it, its kernel or the server ends."""
        kernel = await self._bind(execution)
        if kernel is None:
            return
        self._set_limit(execution)
        try:
            await self._run_with(kernel, execution)
        finally:
            self._is_here = False
            execution.timers.end()
            if (
                execution.done.is_set()
            ):  # its result says what it lost, and not what is lost with the kernel from here on
                ended = self.binding.variables.ended
                execution.on_told = ended(guest_lost=execution.guest_lost, language=execution.language)
            self._note_end(kernel)
            if execution.done.is_set():
                if execution.callers:
                    execution.told()
                self._owner.execution_ended(execution)

    async def _bind(self, execution: Execution) -> Kernel | None:
        """Return the kernel for this execution and begin it. None if it has ended instead: it was cancelled, or no
        kernel could start."""
        self._cancelled.clear()
        if execution.interruption is None:
            await self.persons.wait_idle(self._cancelled)
        async with self.turn:
            if execution.interruption is not None:
                execution.finish_unstarted()
                return None
            try:
                kernel = await self.binding.bind()
                while execution.confirm is not None:
                    await execution.confirm()
                    if self.life.is_ending:
                        raise SessionInUse(
                            f"session {self._record.session_id!r} has been taken over by another server, or is being "
                            "deleted",
                            "Call again.",
                        )
                    if self.binding.kernel is kernel:
                        break
                    kernel = await self.binding.bind()  # the other one has died meanwhile
            except ServerError as exc:
                execution.failed_to_start(exc)
                return None
            if execution.interruption is not None:
                execution.finish_unstarted()
                return None
            self.life.note(Event.EXECUTION_BEGAN)
            execution.started = time.monotonic()
            self._log.began(execution.id, may_be_repeated=execution.confirm is not None)
            execution.take = partial(self.binding.variables.take, self.binding.variables.begin())
            execution.checkpoint = self._record.newest_with_variables
            execution.persons_cells = self.persons.take_count()
            execution.losses_said = self.binding.losses_said
            return kernel

    async def _run_with(self, kernel: Kernel, execution: Execution) -> None:
        reply, is_sent = None, False
        try:
            limits = await self._limits(execution)
            if execution.interruption is None:
                await self._restore_packages(kernel, execution)
            if execution.interruption is not None:
                execution.finish_interrupted()
                return
            is_sent = True
            reply = await self._send(kernel, execution, limits)
            self._is_here = True
            execution.timers.end()
            self.binding.note_image(reply)
            if paths := changed_paths(reply):
                execution.files_changed = await self.binding.files.find_changed(paths)
            execution.finish_with_reply(reply)
        except KernelDied as exc:
            if self.binding.holds(kernel):
                self.binding.kill()
            elif self.binding.kernel is not None and self.binding.went_back_to is not None:
                execution.finish_left(self.binding.went_back_to)
                return
            execution.finish_killed(exc.message)
        except asyncio.CancelledError:
            # The server or the session ends: keep the cell's output so far.
            if reply is not None:
                execution.finish_with_reply(reply)
            else:
                self._is_ending = True
                self.interrupt(execution)
                execution.finish_with_server()
            raise
        finally:
            if self._is_ending and is_sent and execution.status not in ("ok", "error"):
                self.binding.variables.end_cell()

    def _note_end(self, kernel: Kernel) -> None:
        if self.binding.kernel is kernel:
            self.life.note(Event.EXECUTION_ENDED)
        elif self.binding.holds(kernel):
            self.binding.kill(kernel.why_ended)  # it died just after its reply

    async def _restore_packages(self, kernel: Kernel, execution: Execution) -> None:
        execution.interruptible = True
        try:
            await self._owner.before_cell(kernel)
            note = await self.binding.restore_packages(kernel)
            if execution.interruption is not None:
                self.binding.packages_missing = True  # the next cell tries again
            elif note:
                execution.hear("stream", {"name": "stderr", "text": note})
        finally:
            execution.interruptible = False

    async def _limits(self, execution: Execution) -> dict[str, Any]:
        """The limits that are sent with each request, so that a changed one applies to the next execution
        (docs/design.md 3)."""
        self._is_here = True
        try:
            quota = await self.binding.files.quota()
        finally:
            self._is_here = False
        return {
            "kernelmcp": {
                "cpu_seconds": self._settings.policy.cpu_seconds,
                "workspace_bytes": quota.max_bytes,
                "max_files": quota.max_files,
                "views": execution.viewed is not None,
            }
        }

    async def _send(self, kernel: Kernel, execution: Execution, limits: dict[str, Any]) -> dict[str, Any]:
        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "execute_input":
                # Interrupts use another channel: one sent before the cell began may have had no effect.
                execution.interruptible = True
                if self._has_waited:
                    self._set_limit(execution)
                if execution.interruption is not None:
                    self._interrupt(execution, kernel)
            elif kind == PAST_REQUEST:
                self._owner.past_asked_for(execution, content)
            else:
                if kind == "display_data":
                    self.binding.note_packages(content)
                execution.hear(kind, content)

        self._has_waited = not self.persons.idle.is_set()
        return await kernel.execute(
            execution.code,
            on_output,
            user_expressions=execution.expressions(),
            metadata=limits,
            msg_id=execution.id,
            on_question=partial(ask, execution, execution.questions) if execution.questions is not None else None,
        )

    # -- interrupts ---------------------------------------------------------------------------------------------

    def interrupt(self, execution: Execution, why: Interruption = "interrupted") -> bool:
        """Interrupt a running execution, or remove a waiting one from the queue. False if it has already ended."""
        if execution.done.is_set() or execution.interruption is not None or execution is self.asking:
            return False
        if execution is not self.current and execution not in self._queue:
            return False  # another session's
        waits = execution is self.current and execution.started is not None and self._waits_in_kernel(execution)
        if why == "timeout" and (more := execution.timeout_seconds if waits else take_persons_seconds(execution)):
            self._set_limit(execution, more)
            return False
        execution.interruption = why
        if execution is not self.current:
            self._queue.remove(execution)
            execution.finish_unstarted()
        elif execution.started is None:
            self._cancelled.set()
        elif not waits and not self._is_here and (kernel := self.binding.kernel) is not None:
            self._interrupt(execution, kernel)
        return True

    def _set_limit(self, execution: Execution, seconds: float | None = None) -> None:
        seconds = execution.timeout_seconds if seconds is None else seconds
        execution.timers.set_limit(seconds, partial(self.interrupt, execution, "timeout"))

    def _waits_in_kernel(self, execution: Execution) -> bool:
        """True if it was sent while the kernel still runs something of another client."""
        return not execution.interruptible and not self.persons.idle.is_set()

    def _interrupt(self, execution: Execution, kernel: Kernel) -> None:
        """Interrupt the cell, then end its guest, then kill the whole kernel.

        The kernel process does the first two: it repeats the interrupt within its share of the grace period, then ends
        the guest that still runs, and answers; guests of other languages keep their variables. So the kill ends only a
        kernel process that hangs or is not ours."""
        grace_seconds = self._settings.config.kernels.interrupt_grace_seconds
        if execution.interruptible:
            kernel.interrupt(GUEST_SHARE * grace_seconds)
        execution.timers.set_kill(grace_seconds, kernel.kill)

    def interrupt_all(self) -> None:
        """Interrupt the running execution, and cancel the waiting ones."""
        for execution in self.unfinished:
            self.interrupt(execution)

    def end(self) -> None:
        """Interrupt the running execution, and cancel the waiting ones, because the server ends."""
        self._is_ending = True
        for execution in self.unfinished:
            execution.interrupted_by_end = execution.interruption is None  # a waiting one ends at once
            execution.interrupted_by_end &= self.interrupt(execution)

    def cancel(self, executions: list[Execution], *, files_deleted: bool = False) -> None:
        """Cancel those of these that wait, and mark the running one as interrupted: its kernel is about to end, and
        perhaps its files are deleted too."""
        for execution in executions:
            if execution.done.is_set():
                continue
            execution.files_deleted = files_deleted
            if execution is not self.current or execution.started is None:
                self.interrupt(execution)
            elif execution.interruption is None:
                execution.interruption = "interrupted"
