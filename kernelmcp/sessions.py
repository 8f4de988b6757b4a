"""Sessions: one workspace plus one kernel each, found by `(principal, handle)`; and the queue of each.

A session is its directory (record, transcript), its berth (files) and, while it is used, a kernel taken from the pool.
Its executions run in order; sessions do not wait for each other. Above: tools, resources. Below: pool, executions,
transcript, home. Must not know MCP.
"""

import asyncio
import json
import shutil
import time
from collections import OrderedDict, deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config import Flavor, Settings
from kernelmcp.errors import KernelDied, KernelStartFailed, ResourceLimitExceeded, ServerError
from kernelmcp.executions import Execution, Interruption
from kernelmcp.home import Berth, Home, Lock, write_private
from kernelmcp.outputs import Outputs
from kernelmcp.pool import OWN_KERNELSPEC, BerthedKernel, Pool
from kernelmcp.transcript import Transcript

State = Literal["starting", "idle", "busy", "stopped"]
# The transcript is written this long after the last cell: a burst of cells costs one write.
TRANSCRIPT_DELAY_SECONDS = 0.5
# Until a killed kernel's files may be removed; it is only tidiness.
DISPOSE_SECONDS = 5.0

log = structlog.get_logger(__name__)


class Session:
    """One session. All methods run in the event loop; `run` is its queue, one task for the session's life."""

    def __init__(
        self,
        *,
        settings: Settings,
        home: Home,
        pool: Pool,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        lock: Lock,
        record: dict[str, Any],
    ) -> None:
        self.id: str = record["session_id"]
        self.principal: str = record["principal"]
        self.language: str = record["language"]
        self.flavor: Flavor = record["flavor"]
        self.created_at: str = record["created_at"]
        self.last_used_at: str = record["last_used_at"]
        self.execution_count: int = record["execution_count"]
        self.executions: OrderedDict[str, Execution] = OrderedDict()
        self.transcript = Transcript(directory / "notebook.ipynb")
        self.last_used = time.monotonic()
        self._settings = settings
        self._home = home
        self._pool = pool
        self._tasks = tasks
        self._directory = directory
        self._lock = lock
        self._scope = anyio.CancelScope()
        self._queue: deque[Execution] = deque()
        self._work = asyncio.Event()
        self._binding = asyncio.Lock()
        self._bound: BerthedKernel | None = None
        self._berth: Berth | None = _find_berth(home, record["berths"])
        self._current: Execution | None = None
        self._save_timer: asyncio.TimerHandle | None = None
        # A session from before has files but no variables; the next execution says so.
        self._lost = self.execution_count > 0
        self.wanted = True

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._current is not None and self._current.started is not None:
            return "busy"
        if self.is_live:
            return "idle" if self._current is None else "busy"
        return "starting" if self.wanted else "stopped"

    @property
    def is_live(self) -> bool:
        return self._bound is not None and not self._bound.kernel.ended.is_set()

    @property
    def is_idle(self) -> bool:
        return self._current is None and not self._queue

    @property
    def current(self) -> Execution | None:
        return self._current or (self._queue[0] if self._queue else None)

    @property
    def workspace(self) -> Path | None:
        return self._berth.workspace if self._berth else None

    @property
    def kernel_pid(self) -> int | None:
        return self._bound.kernel.pid if self.is_live and self._bound else None

    # -- the queue ----------------------------------------------------------------------------------------------

    def submit(self, code: str, timeout_seconds: float) -> Execution:
        """Queue an execution. It runs whether or not anybody waits for it."""
        limit = self._settings.config.sessions.max_queued
        if len(self._queue) >= limit:
            raise ResourceLimitExceeded(
                f"{limit} executions are waiting in session {self.id!r} already",
                "Wait for them (get_execution), cancel_execution, or use another session.",
                session_id=self.id,
            )
        outputs = Outputs(self._settings.policy, update_elsewhere=self._update_display)
        execution = Execution(self.id, self.principal, code, timeout_seconds, outputs)
        self._remember(execution)
        self._queue.append(execution)
        self.touch()
        self.wanted = True
        self._work.set()
        return execution

    def _remember(self, execution: Execution) -> None:
        self.executions[execution.id] = execution
        for old in list(self.executions.values())[: -self._settings.config.sessions.kept_executions]:
            if old.done.is_set():
                old.outputs.close()
                del self.executions[old.id]

    def touch(self) -> None:
        self.last_used = time.monotonic()
        self.last_used_at = datetime.now(UTC).isoformat()

    async def run(self) -> None:
        """The queue. Started once; ends when the session is destroyed or the server ends."""
        with self._scope:
            await self._warm_up()
            while True:
                await self._work.wait()
                while self._queue:
                    execution = self._current = self._queue.popleft()
                    try:
                        if not execution.done.is_set():
                            await self._run_one(execution)
                    except Exception:
                        log.exception("execution failed", session=self.id)
                        execution.finish_killed("internal error")
                    finally:
                        self._current = None
                self._work.clear()

    async def _warm_up(self) -> None:
        try:
            await self._bind()
        except ServerError as exc:
            log.error("no kernel for a new session", session=self.id, error=exc.message, **exc.context)

    async def _run_one(self, execution: Execution) -> None:
        try:
            kernel = (await self._bind()).kernel
        except ServerError as exc:
            execution.failed_to_start(exc)
            return
        if execution.interruption is not None:
            execution.finish_unstarted()
            return
        execution.started = time.monotonic()
        lost, self._lost = self._lost, False
        timer = asyncio.get_running_loop().call_later(execution.timeout_seconds, self.interrupt, execution, "timeout")

        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "execute_input":
                # An interrupt sent before the cell began may have hit nothing: it goes by another channel.
                execution.begun = True
                if execution.interruption is not None:
                    kernel.interrupt()
            else:
                execution.outputs.feed(kind, content)

        try:
            reply = await kernel.execute(execution.code, on_output)
            execution.finish_with_reply(reply)
        except KernelDied as exc:
            if self._bound is not None and self._bound.kernel is kernel:
                self._discard_kernel()
            execution.finish_killed(exc.message)
        finally:
            timer.cancel()
            if execution.grace_timer is not None:
                execution.grace_timer.cancel()
        execution.state_lost |= lost
        self.execution_count += 1
        self.touch()
        self.transcript.append(execution)
        self._save_soon()

    def interrupt(self, execution: Execution, why: Interruption = "interrupted") -> bool:
        """Interrupt a running execution, or take a waiting one from the queue. False when it is over already."""
        if execution.done.is_set() or execution.interruption is not None:
            return False
        execution.interruption = why
        if execution is not self._current:
            execution.finish_unstarted()
        elif execution.started is not None and self._bound is not None:
            kernel = self._bound.kernel
            if execution.begun:
                kernel.interrupt()
            execution.grace_timer = asyncio.get_running_loop().call_later(
                self._settings.config.kernels.interrupt_grace_seconds, kernel.kill
            )
        return True

    def _abort(self) -> None:
        """End everything that runs or waits: its kernel is about to go."""
        for execution in [*self._queue, *([self._current] if self._current else [])]:
            if execution is not self._current or execution.started is None:
                self.interrupt(execution)
            elif execution.interruption is None:
                execution.interruption = "interrupted"
        self._queue.clear()

    def _update_display(self, display_id: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        for execution in self.executions.values():
            execution.outputs.update_display(display_id, data, metadata)

    # -- its kernel ---------------------------------------------------------------------------------------------

    async def _bind(self) -> BerthedKernel:
        """The kernel, with the session's files in its workspace; a fresh one when there is none any more."""
        if self.is_live and self._bound is not None:
            return self._bound
        async with self._binding:
            if self.is_live and self._bound is not None:
                return self._bound
            if self._bound is not None:
                # It died between two executions: one that dies within an execution is discarded there.
                self._lost = True
                self._discard_kernel()
            fresh = await self._pool.take(self.flavor)
            try:
                await self._move_in(fresh)
            except OSError as exc:
                fresh.kernel.kill()
                raise KernelStartFailed(f"the session's files could not be moved: {exc}", "Free disk space.") from exc
            return fresh

    async def _move_in(self, fresh: BerthedKernel) -> None:
        old = self._berth
        if old is not None:
            # Both are named while the files move, so that a crash in between loses nothing.
            self._write_record(old, fresh.berth)
            fresh.berth.take_workspace_of(old)
            if self._settings.config.kernels.kernelspec != OWN_KERNELSPEC and self.language == "python":
                # Any other kernel sits in the directory that the rename just replaced.
                await fresh.kernel.execute(f"__import__('os').chdir({str(fresh.berth.workspace)!r})", None, silent=True)
        self._bound, self._berth = fresh, fresh.berth
        self._write_record(fresh.berth)
        if old is not None:
            self._tasks.start_soon(anyio.to_thread.run_sync, old.delete)

    def _discard_kernel(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.kernel.kill()

    def _write_record(self, *berths: Berth) -> None:
        record = {
            "session_id": self.id,
            "principal": self.principal,
            "language": self.language,
            "flavor": self.flavor,
            "created_at": self.created_at,
            "last_used_at": self.last_used_at,
            "execution_count": self.execution_count,
            "berths": [berth.path.name for berth in berths],
        }
        write_private(self._directory / "session.json", json.dumps(record))

    async def reset(self, *, variables: bool, files: bool) -> None:
        """Fresh variables (a kernel from the pool) and, or, an empty workspace. What runs or waits is cancelled."""
        self.touch()
        if variables:
            self._abort()
            async with self._binding:
                old = self._bound
                self._discard_kernel()
                if old is not None:
                    old.kernel.fail("the workspace was reset")
                fresh = await self._pool.take(self.flavor)
                if files and self._berth is not None:
                    abandoned, self._berth = self._berth, None
                    self._tasks.start_soon(anyio.to_thread.run_sync, abandoned.delete)
                await self._move_in(fresh)
                self._lost = False
        elif files and self._berth is not None:
            await anyio.to_thread.run_sync(self._berth.empty_workspace)

    async def stop(self) -> bool:
        """End the kernel; files and transcript stay. False when there was none."""
        self._abort()
        self.wanted = False
        async with self._binding:
            was_live = self.is_live
            bound = self._bound
            self._discard_kernel()
            if bound is not None:
                with anyio.move_on_after(DISPOSE_SECONDS):
                    await bound.kernel.ended.wait()
            self._lost = self._lost or was_live
            if self._berth is not None:
                self._write_record(self._berth)
        await self.save()
        return was_live

    async def destroy(self) -> None:
        """End it and delete everything it has."""
        await self.stop()
        self._scope.cancel()
        if self._save_timer is not None:
            self._save_timer.cancel()
        for execution in self.executions.values():
            execution.outputs.close()
        if self._berth is not None:
            await anyio.to_thread.run_sync(self._berth.delete)
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._directory, ignore_errors=True))
        self._lock.close()

    # -- its transcript -----------------------------------------------------------------------------------------

    def _save_soon(self) -> None:
        if self._save_timer is None:
            self._save_timer = asyncio.get_running_loop().call_later(
                TRANSCRIPT_DELAY_SECONDS, lambda: self._tasks.start_soon(self.save)
            )

    async def save(self) -> None:
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self.transcript.changed and self._directory.exists():
            try:
                await anyio.to_thread.run_sync(self.transcript.save)
                if self._berth is not None:
                    self._write_record(self._berth)
            except OSError as exc:
                log.error("the transcript could not be written", session=self.id, error=str(exc))


def _find_berth(home: Home, names: list[str]) -> Berth | None:
    """Where the files are: while they move, the old berth has a workspace until the rename is done."""
    for name in names:
        berth = home.berth(name)
        if berth.workspace.is_dir():
            return berth
    return None
