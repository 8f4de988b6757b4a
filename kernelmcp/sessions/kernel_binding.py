"""Binds a kernel to a session: takes one from the pool, moves in the session's files, replaces it and ends it.

Must not know executions or MCP.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import anyio
import anyio.abc

from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelStartFailed
from kernelmcp.kernel.connection import OnLate, OnOther
from kernelmcp.kernel.pool import Pool, PooledKernel
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions import background
from kernelmcp.sessions.installed_packages import in_image, restore, with_installed
from kernelmcp.sessions.life import Event, Life, State
from kernelmcp.sessions.storage.record import Record
from kernelmcp.sessions.storage.session_files import SessionFiles

# Time that a stop waits for the killed kernel to exit. Only tidiness: nothing depends on it.
STOP_SECONDS = 5.0


def _ignore() -> None:
    """The default of `on_kernel`."""


class KernelBinding:
    """The kernel of one session, if it has one. All methods except `kill` hold the lock of the session's files."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        tasks: anyio.abc.TaskGroup,
        record: Record,
        life: Life,
        files: SessionFiles,
    ) -> None:
        self.files = files
        self.on_kernel: Callable[[], None] = _ignore
        """Called when a kernel has been bound or has ended."""
        self.on_other: OnOther | None = None
        """Called with what other clients execute in the kernel."""
        self.on_late: OnLate | None = None
        """Called with the output of tasks that outlive their cell."""
        self.before_cell: Callable[[Kernel], Awaitable[None]] | None = None
        """Awaited before each cell."""
        self._settings = settings
        self._pool = pool
        self._tasks = tasks
        self._record = record
        self._life = life
        self._bound: PooledKernel | None = None
        # A session of an earlier server has its files, but no longer its variables.
        self._variables: Literal["none", "present", "lost"] = "lost" if record.has_run else "none"
        """Present once the kernel has run something; lost until an execution has reported the loss."""
        self.losses_said: set[str | None] = set()
        """Languages whose guest ended in an execution that reported it; None is the main language. The first execution
        in the next guest does not report it again."""
        self._packages_missing = False
        """The kernel is fresh: the session's packages are not installed in it yet."""

    @property
    def kernel(self) -> Kernel | None:
        """The live kernel, if any."""
        bound = self._bound
        return bound.kernel if bound is not None and not bound.kernel.ended.is_set() else None

    def holds(self, kernel: Kernel) -> bool:
        """True if this kernel is still the session's own: if it has ended, it ended by itself."""
        return self._bound is not None and self._bound.kernel is kernel

    # -- start --------------------------------------------------------------------------------------------------

    async def bind(self) -> Kernel:
        """Return the session's kernel, with its files in the workspace; a fresh kernel if there is none."""
        if (kernel := self.kernel) is not None and kernel.lives:
            return kernel
        async with self.files.lock:
            if (kernel := self.kernel) is not None and kernel.lives:
                return kernel
            if self._bound is not None:
                # It died between two executions; one that dies during an execution is killed there.
                self.kill()
            return await self._start()

    async def _start(self) -> Kernel:
        self._want_kernel()
        try:
            self.files.check()
            return await self._enter(await self._pool.take(self._record.flavor))
        finally:
            self.give_up_start()

    def _want_kernel(self) -> None:
        if self._life.state is State.STOPPED:
            self._life.note(Event.KERNEL_WANTED)

    def give_up_start(self) -> None:
        """Note that a requested kernel could not start or is no longer wanted."""
        if self._life.state is State.STARTING:
            self._life.note(Event.KERNEL_NOT_STARTED)

    async def replace(self, *, files: bool) -> None:
        """Switch to a fresh kernel, with `files` to an empty workspace too. If none is available, nothing changes."""
        async with self.files.lock:
            if not files:
                self.files.check()
            fresh = await self._pool.take(self._record.flavor)
            if not files:
                # Steps that a full disk can refuse come before the end of the old kernel.
                with self._discarding(fresh):
                    self.files.announce_move(fresh.sandbox)
            old = self.kernel
            self.kill()
            if old is not None:
                old.fail("the workspace was reset")
            if files:
                self.files.abandon(old)
            self._record.has_run = False
            await self._enter(fresh)
            self._variables = "none"

    async def _enter(self, fresh: PooledKernel) -> Kernel:
        """Move the session's files to a fresh kernel."""
        with self._discarding(fresh):
            await self._move_files(fresh)
        self._bound = fresh
        self.losses_said = set()
        self._packages_missing = True
        self._want_kernel()
        self._life.note(Event.KERNEL_READY)
        self.files.note_live(live=True)
        fresh.kernel.connection.on_other = self.on_other
        fresh.kernel.connection.on_late = self.on_late
        self.on_kernel()
        background.start(self._tasks, "watching a kernel", lambda: self._watch(fresh.kernel))
        return fresh.kernel

    @contextmanager
    def _discarding(self, fresh: PooledKernel) -> Iterator[None]:
        """Discard a fresh kernel if the session's files cannot be moved to it. Raises `KernelStartFailed`."""
        try:
            yield
        except OSError as exc:
            fresh.kernel.kill()
            if self.files.sandbox is not fresh.sandbox:
                self.files.delete_soon(fresh.sandbox, fresh.kernel)
            raise KernelStartFailed(f"the session's files could not be moved: {exc}", "Free disk space.") from exc

    async def _move_files(self, fresh: PooledKernel) -> None:
        has_files = self.files.sandbox is not None
        self.files.move_to(fresh.sandbox)
        own = self._settings.config.kernels.kernelspec == OWN_KERNELSPEC
        if has_files and not own:
            # The rename has just replaced the working directory of any other kernel.
            await fresh.kernel.execute(f"__import__('os').chdir({str(fresh.sandbox.workspace)!r})", None, silent=True)
        self.files.settle_in(fresh.sandbox)

    async def _watch(self, kernel: Kernel) -> None:
        """Notice the death of an idle kernel; an execution notices by itself that its kernel has died."""
        await kernel.ended.wait()
        if self.holds(kernel) and self._life.state is State.IDLE:
            self.kill()

    # -- run ----------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Note that an execution is about to be sent. True if earlier variables are lost and no execution has reported
        it yet.

        The record is written first: if the server is killed after this, the session has lost its variables.
        """
        if not self._record.has_run:
            self._record.has_run = True
            self.files.save_record()
        before, self._variables = self._variables, "present"
        return before == "lost"

    def take_loss_is_said(self) -> bool:
        """True if another result already reports the loss that `begin` found. Only once."""
        said, self._record.loss_is_said = self._record.loss_is_said, False
        return said

    def note_used(self) -> None:
        """Note that another client has executed something, so there are variables."""
        if not self._record.has_run:
            self._record.has_run = True
            self.files.save_record()
        if self._variables == "none":
            self._variables = "present"

    async def restore_packages(self, kernel: Kernel) -> str | None:
        """Reinstall the session's packages in a fresh kernel, before a cell. Returns a warning for the cell's stderr if
        that failed."""
        if self.before_cell is not None:
            await self.before_cell(kernel)
        missing, self._packages_missing = self._packages_missing, False
        return await restore(kernel, self._record.packages) if missing and self._record.packages else None

    def note_packages(self, content: dict[str, Any]) -> None:
        """Remember the installed packages if this output of a cell reports any."""
        self._record.packages = with_installed(content, self._record.packages)

    def note_image(self, reply: dict[str, Any]) -> None:
        """Remember the boot-image packages of the guest that answered."""
        self._record.in_image = in_image(reply)

    # -- end ----------------------------------------------------------------------------------------------------

    async def stop(self) -> bool:
        """End the kernel and wait for its exit; the files stay. False if there was none."""
        async with self.files.lock:
            kernel = self.kernel
            self.kill()
            self.give_up_start()
            if kernel is not None:
                with anyio.move_on_after(STOP_SECONDS):
                    await kernel.ended.wait()
            self.files.save_record()
            return kernel is not None

    def kill(self, *, reported: bool = False) -> None:
        """End the kernel now, without waiting for its exit. The next execution reports lost variables, if there were
        any and no other execution has `reported` the loss."""
        bound, self._bound = self._bound, None
        self._record.in_image = []
        if bound is not None:
            if self._variables == "present":
                self._variables = "lost"
            if reported:
                self._variables = "none"
            self._life.note(Event.KERNEL_ENDED)
            self.files.note_live(live=False)
            bound.kernel.kill()
            self.on_kernel()
