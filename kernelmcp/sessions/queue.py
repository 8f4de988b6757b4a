"""The executions of one session, one after the other: bound to a kernel, sent, interrupted, ended.

Sessions do not wait for each other. Must not know MCP.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelDied, ServerError
from kernelmcp.executions.execution import Execution, Interruption
from kernelmcp.kernel.client import Kernel
from kernelmcp.sessions.kernel_binding import Binding

log = structlog.get_logger(__name__)


class ExecutionQueue:
    """All methods run in the event loop; `run` is one task for the session's life.

    `on_end` is told of each execution that has reached a kernel, `after_end` when it ended well enough to go on (the
    server does not end); `look` sees what a reply says of changed files.
    """

    def __init__(
        self,
        settings: Settings,
        binding: Binding,
        session_id: str,
        *,
        on_end: Callable[[Execution], None],
        after_end: Callable[[], None],
        look: Callable[[Execution, dict[str, Any]], Awaitable[None]],
    ) -> None:
        self.current: Execution | None = None
        self.starting = False
        """A kernel was asked for."""
        self.turn = asyncio.Lock()
        """Held while a kernel is bound for an execution, and by whoever stops or resets the session."""
        self._settings = settings
        self._binding = binding
        self._session_id = session_id
        self._on_end = on_end
        self._after_end = after_end
        self._look = look
        self._restoring = False
        """What the session had installed is being installed again, on behalf of the current execution."""
        self._queue: deque[Execution] = deque()
        self._work = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._ended = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_empty(self) -> bool:
        """Nothing runs or waits."""
        return self.current is None and not self._queue

    @property
    def first(self) -> Execution | None:
        """What runs, or else is the next."""
        return self.current or (self._queue[0] if self._queue else None)

    @property
    def last(self) -> Execution | None:
        """What waits behind all others, or else runs."""
        return self._queue[-1] if self._queue else self.current

    def start(self) -> None:
        """Have a kernel, soon."""
        self.starting = True
        self._work.set()

    def add(self, execution: Execution) -> None:
        self._queue.append(execution)
        self.start()

    def cancel(self) -> None:
        """End the task, soon."""
        self._scope.cancel()

    async def close(self) -> None:
        """End the task. What runs is ended as far as it is."""
        self.cancel()
        if self.current is not None:
            await self._ended.wait()

    async def run(self) -> None:
        """Started once; ends with `close`, or with the server."""
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
                        self.starting = self._work.is_set()
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
                if self.starting:
                    await self._binding.bind()
        except ServerError as exc:
            log.error("no kernel for a new session", session=self._session_id, error=exc.message, **exc.context)

    async def _run_one(self, execution: Execution) -> None:
        async with self.turn:
            if execution.interruption is not None:
                execution.finish_unstarted()
                return
            try:
                kernel = await self._binding.bind()
            except ServerError as exc:
                execution.failed_to_start(exc)
                return
            if execution.interruption is not None:
                execution.finish_unstarted()
                return
            execution.started = time.monotonic()
            execution.lost_before = self._binding.begin()
        timer = asyncio.get_running_loop().call_later(execution.timeout_seconds, self.interrupt, execution, "timeout")
        reply = None
        try:
            await self._restore_packages(kernel, execution)
            if execution.interruption is not None:
                execution.finish_interrupted()
            else:
                reply = await self._send(kernel, execution)
                timer.cancel()
                await self._look(execution, reply)
                execution.finish_with_reply(reply)
        except KernelDied as exc:
            if self._binding.holds(kernel):
                self._binding.discard()
                self._binding.lost = False  # this execution says it
            execution.finish_killed(exc.message)
        except asyncio.CancelledError:
            # The server ends, or the session: what the cell has put out so far is kept.
            if reply is not None:
                execution.finish_with_reply(reply)
            else:
                execution.finish_with_server()
            self._on_end(execution)
            raise
        finally:
            timer.cancel()
            if execution.grace_timer is not None:
                execution.grace_timer.cancel()
        self._on_end(execution)
        self._after_end()

    async def _restore_packages(self, kernel: Kernel, execution: Execution) -> None:
        self._restoring = True
        try:
            if note := await self._binding.restore_packages(kernel):
                execution.outputs.feed("stream", {"name": "stderr", "text": note})
        finally:
            self._restoring = False

    async def _send(self, kernel: Kernel, execution: Execution) -> dict[str, Any]:
        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "execute_input":
                # An interrupt sent before the cell began may have hit nothing: it goes by another channel.
                execution.begun = True
                if execution.interruption is not None:
                    kernel.interrupt()
            else:
                if kind == "display_data":
                    self._binding.note_packages(content)
                execution.outputs.feed(kind, content)

        # With the request, so that a changed limit applies to the next execution (docs/design.md 3).
        quota = await self._binding.quota()
        limits = {
            "kernelmcp": {
                "cpu_seconds": self._settings.policy.cpu_seconds,
                "workspace_bytes": quota.max_bytes,
                "max_files": quota.max_files,
            }
        }
        return await kernel.execute(
            execution.code, on_output, user_expressions=execution.expressions(), metadata=limits
        )

    def interrupt(self, execution: Execution, why: Interruption = "interrupted") -> bool:
        """Interrupt a running execution, or take a waiting one from the queue. False when it is over already."""
        if execution.done.is_set() or execution.interruption is not None:
            return False
        execution.interruption = why
        if execution is not self.current:
            with suppress(ValueError):
                self._queue.remove(execution)
            execution.finish_unstarted()
        elif execution.started is not None and (kernel := self._binding.kernel) is not None:
            if execution.begun or self._restoring:
                kernel.interrupt()
            execution.grace_timer = asyncio.get_running_loop().call_later(
                self._settings.config.kernels.interrupt_grace_seconds, kernel.kill
            )
        return True

    def interrupt_all(self) -> None:
        """What runs, and what waits."""
        for execution in [*self._queue, *([self.current] if self.current else [])]:
            self.interrupt(execution)

    def abort(self, *, files_deleted: bool = False) -> None:
        """End everything that runs or waits: its kernel is about to go, and perhaps the files with it."""
        for execution in [*self._queue, *([self.current] if self.current else [])]:
            execution.files_deleted = files_deleted
            if execution is not self.current or execution.started is None:
                self.interrupt(execution)
            elif execution.interruption is None:
                execution.interruption = "interrupted"
        self._queue.clear()
        self.starting = False
