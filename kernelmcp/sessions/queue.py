"""Runs the executions of one session one at a time: gets a kernel, sends the code, interrupts it, ends it.

Must not know MCP.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import structlog

from kernelmcp.cells.log import CellLog
from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelDied, ServerError
from kernelmcp.executions.execution import Execution, Interruption, changed_paths
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions.kernel_binding import KernelBinding
from kernelmcp.sessions.life import Event, Life, State
from kernelmcp.sessions.persons_cells import PersonsCells

# Minimum interval between checks of a time limit while a cell waits for an answer.
MIN_MORE_SECONDS = 0.5
# Share of the grace period after which the guest is ended. The rest is for the answer.
GUEST_SHARE = 5 / 6
log = structlog.get_logger(__name__)


class ExecutionQueue:
    """The queue of one session. All methods run in the event loop; `run` is one task for the session's life.

    `on_end` is called with each execution that reached a kernel, after it has ended.
    """

    def __init__(
        self,
        settings: Settings,
        binding: KernelBinding,
        life: Life,
        persons: PersonsCells,
        log: CellLog,
        session_id: str,
        *,
        on_end: Callable[[Execution], None],
    ) -> None:
        self.current: Execution | None = None
        self.turn = asyncio.Lock()
        """Held while an execution gets its kernel, and while the session is stopped or reset."""
        self._settings = settings
        self._binding = binding
        self._life = life
        self._persons = persons
        self._log = log
        self._session_id = session_id
        self._on_end = on_end
        self._queue: deque[Execution] = deque()
        self._work = asyncio.Event()
        self._cancelled = asyncio.Event()
        """Set when the current execution is cancelled before it has begun."""
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
    def first(self) -> Execution | None:
        """The running execution, or else the next one."""
        return self.current or (self._queue[0] if self._queue else None)

    @property
    def last(self) -> Execution | None:
        """The last waiting execution, or else the running one."""
        return self._queue[-1] if self._queue else self.current

    def start(self) -> None:
        """Request a kernel. Raises `SessionNotFound` when the session is being destroyed."""
        self._life.note(Event.KERNEL_WANTED)
        self._work.set()

    def add(self, execution: Execution) -> None:
        """Queue this execution after all others. Raises `SessionNotFound` when the session is being destroyed."""
        self.start()
        self._queue.append(execution)

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
                            self._binding.give_up_start()
        finally:
            self._ended.set()

    async def _run_queue(self) -> None:
        while self._queue:
            execution = self.current = self._queue.popleft()
            try:
                if not execution.done.is_set():
                    await self._run_one(execution)
            except Exception:
                log.exception("execution failed", session=self._session_id)
                if not execution.done.is_set():
                    execution.finish_killed("internal error")
            finally:
                self.current = None

    async def _warm_up(self) -> None:
        try:
            async with self.turn:
                if self._life.state is State.STARTING:
                    await self._binding.bind()
        except ServerError as exc:
            log.error("no kernel for a new session", session=self._session_id, error=exc.message, **exc.context)

    async def _run_one(self, execution: Execution) -> None:
        """Run an execution until it, its kernel or the server ends."""
        kernel = await self._bind(execution)
        if kernel is None:
            return
        loop = asyncio.get_running_loop()
        limit = loop.call_later(execution.timeout_seconds, self.interrupt, execution, "timeout")
        try:
            await self._run_with(kernel, execution, limit)
        finally:
            limit.cancel()
            if execution.grace_timer is not None:
                execution.grace_timer.cancel()
            self._note_end(kernel)
            if execution.done.is_set():
                self._on_end(execution)

    async def _bind(self, execution: Execution) -> Kernel | None:
        """Return the kernel for this execution and begin it. None if it has ended instead: it was cancelled, or no
        kernel could start."""
        self._cancelled.clear()
        if execution.interruption is None:
            await self._persons.wait_idle(self._cancelled)
        async with self.turn:
            if execution.interruption is not None:
                execution.finish_unstarted()
                return None
            try:
                kernel = await self._binding.bind()
            except ServerError as exc:
                execution.failed_to_start(exc)
                return None
            if execution.interruption is not None:
                execution.finish_unstarted()
                return None
            self._life.note(Event.EXECUTION_BEGAN)
            execution.started = time.monotonic()
            self._log.began(execution.id)
            execution.lost_before = self._binding.begin()
            execution.loss_is_said = self._binding.take_loss_is_said()
            execution.persons_cells = self._persons.take_count()
            if execution.persons_cells:
                self._binding.losses_said.clear()  # this execution must report guests that ended in a person's cell
            execution.losses_said = self._binding.losses_said
            return kernel

    async def _run_with(self, kernel: Kernel, execution: Execution, limit: asyncio.TimerHandle) -> None:
        reply = None
        try:
            await self._restore_packages(kernel, execution)
            if execution.interruption is not None:
                execution.finish_interrupted()
                return
            reply = await self._send(kernel, execution)
            limit.cancel()
            self._binding.note_image(reply)
            if paths := changed_paths(reply):
                execution.files_changed = await self._binding.files.find_changed(paths)
            execution.finish_with_reply(reply)
        except KernelDied as exc:
            if self._binding.holds(kernel):
                self._binding.kill(reported=True)
            execution.finish_killed(exc.message)
        except asyncio.CancelledError:
            # The server or the session ends: keep the cell's output so far.
            if reply is not None:
                execution.finish_with_reply(reply)
            else:
                execution.finish_with_server()
            raise

    def _note_end(self, kernel: Kernel) -> None:
        if self._binding.kernel is kernel:
            self._life.note(Event.EXECUTION_ENDED)
        elif self._binding.holds(kernel):
            self._binding.kill()  # it died just after its reply

    async def _restore_packages(self, kernel: Kernel, execution: Execution) -> None:
        execution.interruptible = True
        try:
            if note := await self._binding.restore_packages(kernel):
                execution.hear("stream", {"name": "stderr", "text": note})
        finally:
            execution.interruptible = False

    async def _send(self, kernel: Kernel, execution: Execution) -> dict[str, Any]:
        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "execute_input":
                # Interrupts use another channel: one sent before the cell began may have had no effect.
                execution.interruptible = True
                if execution.interruption is not None:
                    self._interrupt(execution, kernel)
            else:
                if kind == "display_data":
                    self._binding.note_packages(content)
                execution.hear(kind, content)

        # Sent with each request, so that a changed limit applies to the next execution (docs/design.md 3).
        quota = await self._binding.files.quota()
        limits = {
            "kernelmcp": {
                "cpu_seconds": self._settings.policy.cpu_seconds,
                "workspace_bytes": quota.max_bytes,
                "max_files": quota.max_files,
            }
        }
        return await kernel.execute(
            execution.code,
            on_output,
            user_expressions=execution.expressions(),
            metadata=limits,
            msg_id=execution.id,
            on_question=execution.questions.ask if execution.questions is not None else None,
        )

    def interrupt(self, execution: Execution, why: Interruption = "interrupted") -> bool:
        """Interrupt a running execution, or remove a waiting one from the queue. False if it has already ended."""
        if execution.done.is_set() or execution.interruption is not None:
            return False
        waits = execution is self.current and execution.started is not None and self._waits_in_kernel(execution)
        if why == "timeout" and (more := self._more_time(execution, waits)):
            asyncio.get_running_loop().call_later(more, self.interrupt, execution, why)
            return False
        execution.interruption = why
        if execution is not self.current:
            with suppress(ValueError):
                self._queue.remove(execution)
            execution.finish_unstarted()
        elif execution.started is None:
            self._cancelled.set()
        elif not waits and (kernel := self._binding.kernel) is not None:
            self._interrupt(execution, kernel)
        return True

    def _more_time(self, execution: Execution, waits: bool) -> float:
        """Seconds of its time that a person used and not the execution."""
        if waits:
            return execution.timeout_seconds
        asks = (execution.questions, execution.approvals)
        asked = sum(each.take_seconds() for each in asks if each is not None)
        return max(asked, MIN_MORE_SECONDS) if asked else 0.0

    def _waits_in_kernel(self, execution: Execution) -> bool:
        """True if it was sent while the kernel still runs a person's cell."""
        return not execution.interruptible and not self._persons.idle.is_set()

    def _interrupt(self, execution: Execution, kernel: Kernel) -> None:
        """Interrupt the cell, then end its guest, then kill the whole kernel.

        The kernel process does the first two: it repeats the interrupt within its share of the grace period, then ends
        the guest that still runs, and answers; guests of other languages keep their variables. So the kill ends only a
        kernel process that hangs or is not ours. The code that ends the execution cancels `grace_timer`."""
        grace_seconds = self._settings.config.kernels.interrupt_grace_seconds
        if execution.interruptible:
            kernel.interrupt(GUEST_SHARE * grace_seconds)
        if execution.grace_timer is None:
            execution.grace_timer = asyncio.get_running_loop().call_later(grace_seconds, kernel.kill)

    def interrupt_all(self) -> None:
        """Interrupt the running execution, and cancel the waiting ones."""
        for execution in [*self._queue, *([self.current] if self.current else [])]:
            self.interrupt(execution)

    def cancel_all(self, *, files_deleted: bool = False) -> None:
        """Cancel the waiting executions, and mark the running one as interrupted: its kernel is about to end, and
        perhaps its files are deleted too."""
        for execution in [*self._queue, *([self.current] if self.current else [])]:
            execution.files_deleted = files_deleted
            if execution is not self.current or execution.started is None:
                self.interrupt(execution)
            elif execution.interruption is None:
                execution.interruption = "interrupted"
        self._queue.clear()
