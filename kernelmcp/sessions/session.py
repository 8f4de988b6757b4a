"""Sessions: one workspace plus one kernel each, found by `(principal, handle)`.

A session is its directory (record, transcript), its files and, while it is used, a kernel. Must not know MCP.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config.models import Flavor
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ResourceLimitExceeded, ServerError, SessionNotFound, StorageFailed
from kernelmcp.executions.execution import Execution, changed_paths
from kernelmcp.executions.history import History
from kernelmcp.files.home import RECORD_FILES, Lock
from kernelmcp.files.safe_open import delete_for_good
from kernelmcp.files.workspace import Quota, Workspace
from kernelmcp.notebook.transcript import Transcript
from kernelmcp.sessions import background
from kernelmcp.sessions.kernel_binding import Binding
from kernelmcp.sessions.queue import ExecutionQueue
from kernelmcp.sessions.record import Record, now

Result = TypeVar("Result")
State = Literal["starting", "idle", "busy", "stopped"]
# The transcript is written this long after the last cell: a burst of cells costs one write.
TRANSCRIPT_DELAY_SECONDS = 0.5

log = structlog.get_logger(__name__)


class Session:
    """One session. All methods run in the event loop."""

    def __init__(
        self,
        settings: Settings,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        lock: Lock,
        record: Record,
        binding: Binding,
        on_change: Callable[["Session"], None],
    ) -> None:
        self.record = record
        self.executions = History(settings, directory / "outputs")
        self.transcript = Transcript(directory / "notebook.ipynb")
        self.last_used = time.monotonic()
        self.destroyed = False
        """Its end has begun: nothing new begins in it."""
        self.remains: StorageFailed | None = None
        """Why not everything of it could be deleted."""
        self.gone = asyncio.Event()
        """Its end is complete: its name is free."""
        self.on_submit: Callable[[Execution], None] | None = None
        """Told of each new execution, in the context of the request that asks for it."""
        self._settings = settings
        self._tasks = tasks
        self._directory = directory
        self._lock = lock
        self._binding = binding
        self._on_change = on_change
        self._queue = ExecutionQueue(
            settings, binding, self.id, on_end=self._record_end, after_end=self._after_end, look=self._look_at_changes
        )
        self._save_timer: asyncio.TimerHandle | None = None

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.record.session_id

    @property
    def principal(self) -> str:
        return self.record.principal

    @property
    def flavor(self) -> Flavor:
        return self.record.flavor

    @property
    def state(self) -> State:
        if self.is_live:
            return "idle" if self._queue.current is None else "busy"
        return "starting" if self.wanted else "stopped"

    @property
    def wanted(self) -> bool:
        """It has, or is about to have, a kernel."""
        return self.is_live or self._queue.starting or not self.is_idle

    @property
    def is_live(self) -> bool:
        return self._binding.kernel is not None

    @property
    def is_idle(self) -> bool:
        return self._queue.is_empty

    @property
    def current(self) -> Execution | None:
        return self._queue.first

    @property
    def workspace(self) -> Path | None:
        return self._binding.sandbox.workspace if self._binding.sandbox else None

    @property
    def kernel_pid(self) -> int | None:
        return self._binding.kernel.pid if self._binding.kernel else None

    # -- the queue ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Have a kernel, soon."""
        self._queue.start()

    def submit(
        self,
        code: str,
        timeout_seconds: float | None = None,
        event: dict[str, Any] | None = None,
        *,
        longest_seconds: float | None = None,
    ) -> Execution:
        """Queue an execution. It runs whether or not anybody waits for it. Its time limit is at most `longest_seconds`,
        else the policy's."""
        if self.destroyed:
            raise SessionNotFound(f"session {self.id!r} is being destroyed", "Use another one.", session_id=self.id)
        limit = self._settings.config.sessions.max_queued
        if self._queue.waiting >= limit:
            raise ResourceLimitExceeded(
                f"{limit} executions are waiting in session {self.id!r} already",
                "Wait for them (get_execution), cancel_execution, or use another session.",
                session_id=self.id,
            )
        outputs = self.executions.new_outputs()
        longest = longest_seconds or self._settings.policy.execution_timeout_seconds
        seconds = min(timeout_seconds or longest, longest)
        execution = Execution(self.id, self.principal, code, seconds, outputs, event=event)
        execution.asked_timeout_seconds = timeout_seconds
        if self.on_submit is not None:
            self.on_submit(execution)
        self.executions.add(execution)
        self.touch()
        self._queue.add(execution)
        return execution

    def touch(self) -> None:
        self.last_used = time.monotonic()
        self.record.last_used_at = now()

    async def run(self) -> None:
        """Its queue. Started once; ends when the session is destroyed or the server ends."""
        background.start(self._tasks, "opening a transcript", lambda: anyio.to_thread.run_sync(self.transcript.open))
        await self._queue.run()

    def interrupt(self, execution: Execution) -> bool:
        """Interrupt a running execution, or take a waiting one from the queue. False when it is over already."""
        return self._queue.interrupt(execution)

    def interrupt_all(self) -> None:
        """What runs, and what waits."""
        self._queue.interrupt_all()

    async def until_idle(self) -> None:
        """Until everything that runs or waits now has ended."""
        while (execution := self._queue.last) is not None:
            await execution.done.wait()
            await asyncio.sleep(0)  # the queue's task lets go of it

    def _record_end(self, execution: Execution) -> None:
        self.record.execution_count += 1
        self.touch()
        self.transcript.append(execution)
        self.executions.trim()

    def _after_end(self) -> None:
        self._save_soon()
        self._on_change(self)

    # -- its files ----------------------------------------------------------------------------------------------

    async def quota(self) -> Quota:
        """What its files may take from now on."""
        return await self._binding.quota()

    async def with_workspace(self, work: Callable[[Workspace | None], Result], *, make: bool = False) -> Result:
        """Run blocking work on the session's files, which a stopped session has, too. With `make`, there are some."""
        if make:
            await self._binding.make_files()
        quota = await self._binding.quota()
        try:
            return await self._binding.with_files(lambda sandbox: work(sandbox and Workspace(sandbox.path, quota)))
        finally:
            if make:
                self._binding.note_changed_files()

    async def _look_at_changes(self, execution: Execution, reply: dict[str, Any]) -> None:
        """What the guest says it has written, as far as it is there."""
        paths = changed_paths(reply)
        if paths:
            self._binding.note_changed_files()
            try:
                execution.files_changed = await self.with_workspace(lambda files: files.look(paths) if files else [])
            except ServerError as exc:
                log.warning("changed files could not be looked at", session=self.id, error=exc.message)

    # -- its life -----------------------------------------------------------------------------------------------

    async def reset(self, *, variables: bool, files: bool) -> None:
        """Fresh variables (a kernel from the pool) and, or, an empty workspace. What runs or waits is cancelled."""
        self.touch()
        if variables:
            await background.complete(self._tasks, lambda: self._renew(files=files))
        elif files:
            await background.complete(self._tasks, self._binding.empty_files)
        self._on_change(self)

    async def _renew(self, *, files: bool) -> None:
        async with self._queue.turn:
            self._queue.abort(files_deleted=files)
            await self._binding.renew(files=files)

    async def stop(self) -> bool:
        """End the kernel; files and transcript stay. False when there was none."""
        return await background.complete(self._tasks, self._stop)

    async def _stop(self) -> bool:
        was_live = await self._end_kernel()
        await self.save()
        self._on_change(self)
        return was_live

    async def _end_kernel(self, *, files_deleted: bool = False) -> bool:
        async with self._queue.turn:
            self._queue.abort(files_deleted=files_deleted)
            was_live = await self._binding.release()
        self.executions.trim(stopped=True)
        return was_live

    def retire(self) -> None:
        """End the kernel of an idle session at once, to make room."""
        self._binding.discard()
        self.executions.trim(stopped=True)
        self._save_soon()
        self._on_change(self)

    async def destroy(self) -> None:
        """End it and delete everything it has. For the registry, which has set `destroyed` and will set `gone`."""
        await self._end_kernel(files_deleted=True)
        await self._queue.close()
        if self._save_timer is not None:
            self._save_timer.cancel()
        self.executions.clear()
        try:
            await anyio.to_thread.run_sync(self._delete)
        except OSError as exc:
            raise StorageFailed(
                f"session {self.id!r} was stopped, but its files could not be deleted: {exc.strerror}",
                "Whoever runs the server must make its home writable; then destroy the session once more.",
                session_id=self.id,
            ) from exc
        finally:
            self._lock.close()

    def _delete(self) -> None:
        """The record goes last: what could not be deleted still has its owner. Raises OSError. Blocking."""
        if self._binding.sandbox is not None:
            self._binding.sandbox.delete_for_good()
        for entry in self._directory.iterdir():
            if entry.name not in RECORD_FILES:
                delete_for_good(entry)
        delete_for_good(self._directory)

    @property
    def is_settled(self) -> bool:
        """Stopped, with everything on disk and nobody at work on it."""
        busy = self.wanted or self.destroyed or self._queue.turn.locked() or self._binding.is_busy
        return not busy and self._save_timer is None and not self.transcript.changed

    def let_go(self) -> None:
        """Forget a settled session: its files stay, its executions do not, and another server may have it."""
        self._queue.cancel()
        self.executions.clear()
        self._lock.close()

    async def close(self) -> None:
        """The server ends: what runs is written as far as it is, and everything that is not on disk yet."""
        await self._queue.close()
        await self.save()
        self.executions.clear()

    # -- its transcript -----------------------------------------------------------------------------------------

    def _save_soon(self) -> None:
        if self._save_timer is None:
            self._save_timer = asyncio.get_running_loop().call_later(
                TRANSCRIPT_DELAY_SECONDS,
                lambda: background.start(self._tasks, "saving a session", self.save),
            )

    async def save(self) -> None:
        """Write the transcript, when it has changed, and the record."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if not self._directory.exists():
            return  # destroyed meanwhile
        if self.transcript.changed:
            try:
                await anyio.to_thread.run_sync(self.transcript.save, abandon_on_cancel=True)
            except OSError as exc:
                log.error("the transcript could not be written", session=self.id, error=str(exc))
        self._binding.save_record()
