"""A session's files and, while it is used, its kernel: taking one from the pool, moving the files to it, letting it go.

Must not know executions or MCP.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config.models import OWN_KERNELSPEC, Settings
from kernelmcp.errors import KernelStartFailed, ServerError, SessionDamaged
from kernelmcp.files.home import Home, SandboxDirectory
from kernelmcp.files.workspace import Entry, Quota, Workspace
from kernelmcp.kernel.client import Kernel
from kernelmcp.kernel.pool import Pool, PooledKernel
from kernelmcp.sessions import background
from kernelmcp.sessions.disk_use import DiskUse
from kernelmcp.sessions.life import Event, Life, State
from kernelmcp.sessions.packages import restore, with_installed
from kernelmcp.sessions.record import Record

# Until a killed kernel's files may be removed; it is only tidiness.
DISPOSE_SECONDS = 5.0

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


class Binding:
    """Where a session lives. The lock is held by whatever moves, empties or reads the files; `kill` needs none."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        pool: Pool,
        disk: DiskUse,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        record: Record,
        life: Life,
    ) -> None:
        self._settings = settings
        self._home = home
        self._pool = pool
        self._disk = disk
        self._tasks = tasks
        self._directory = directory
        self._record = record
        self._life = life
        self._lock = asyncio.Lock()
        self._bound: PooledKernel | None = None
        self.sandbox = find_sandbox(home, record.sandboxes)
        # A session of an earlier server has its files, and no longer its variables.
        self._variables: Literal["none", "present", "lost"] = "lost" if record.has_run else "none"
        """Present once the kernel has run something; lost until an execution has said so."""
        self._packages_missing = False
        """The kernel is fresh: what the session had installed is not there yet."""

    @property
    def kernel(self) -> Kernel | None:
        """The live kernel, if there is one."""
        bound = self._bound
        return bound.kernel if bound is not None and not bound.kernel.ended.is_set() else None

    def holds(self, kernel: Kernel) -> bool:
        """This kernel is still the session's own: if it has ended, then by itself."""
        return self._bound is not None and self._bound.kernel is kernel

    def begin(self) -> bool:
        """An execution goes to the kernel. True: it is the one to say that earlier variables are lost.

        The record says so first: a server that is killed from now on leaves a session whose variables are gone.
        """
        if not self._record.has_run:
            self._record.has_run = True
            self.save_record()
        before, self._variables = self._variables, "present"
        return before == "lost"

    async def bind(self) -> Kernel:
        """The kernel, with the session's files in its workspace; a fresh one when there is none any more."""
        if (kernel := self.kernel) is not None:
            return kernel
        async with self._lock:
            if (kernel := self.kernel) is not None:
                return kernel
            if self._bound is not None:
                # It died between two executions: one that dies within an execution is killed there.
                self.kill()
            return await self._take()

    async def with_workspace(self, work: Callable[[Workspace | None], Result]) -> Result:
        """Run blocking work on the session's files; it gets None when there are none yet. Starts no kernel, and the
        files do not move meanwhile."""
        quota = await self.quota()
        async with self._lock:
            self._check_files()
            sandbox = self.sandbox
            return await anyio.to_thread.run_sync(work, Workspace(sandbox.path, quota) if sandbox else None)

    async def find_changed_files(self, paths: list[str]) -> list[Entry]:
        """The regular files among what the guest says it has written."""
        self.note_changed_files()
        try:
            return await self.with_workspace(lambda files: files.look(paths) if files else [])
        except ServerError as exc:
            log.warning("changed files could not be looked at", session=self._record.session_id, error=exc.message)
            return []

    async def make_files(self) -> None:
        """A workspace, when there is none."""
        async with self._lock:
            self._check_files()
            if self.sandbox is None:
                self.sandbox = self._home.new_sandbox()
                self._write_record(self.sandbox)

    async def quota(self) -> Quota:
        """What the files may take from now on."""
        return await self._disk.quota(self._directory, self._record.principal)

    def note_changed_files(self) -> None:
        """Something was written or deleted."""
        self._disk.note_changed(self._directory, self._record.principal)

    def _check_files(self) -> None:
        if self.sandbox is None:
            self.sandbox = find_sandbox(self._home, self._record.sandboxes)
        if self._record.sandboxes and (self.sandbox is None or not self.sandbox.is_whole):
            raise SessionDamaged(
                f"the workspace of session {self._record.session_id!r} is gone from the disk, or is no directory",
                "Bring it back, or start with an empty one: reset_workspace(scope='files').",
                expected=[str(self._home.sandbox(name).workspace) for name in self._record.sandboxes],
            )

    async def _take(self) -> Kernel:
        self._want_kernel()
        try:
            self._check_files()
            return await self._enter(await self._pool.take(self._record.flavor))
        finally:
            self.give_up_start()

    def _want_kernel(self) -> None:
        if self._life.state is State.STOPPED:
            self._life.note(Event.KERNEL_WANTED)

    def give_up_start(self) -> None:
        """A kernel that was wanted, and is not there, is wanted no more."""
        if self._life.state is State.STARTING:
            self._life.note(Event.KERNEL_NOT_STARTED)

    async def _enter(self, fresh: PooledKernel) -> Kernel:
        try:
            await self._move_in(fresh)
        except OSError as exc:
            fresh.kernel.kill()
            if self.sandbox is not fresh.sandbox:
                self._delete(fresh.sandbox, fresh.kernel)
            raise KernelStartFailed(f"the session's files could not be moved: {exc}", "Free disk space.") from exc
        self._packages_missing = True
        return fresh.kernel

    async def restore_packages(self, kernel: Kernel) -> str | None:
        """Before the first cell of a fresh kernel: what the session had installed comes back. Returns what the cell has
        to say besides when that failed."""
        missing, self._packages_missing = self._packages_missing, False
        return await restore(kernel, self._record.packages) if missing and self._record.packages else None

    def note_packages(self, content: dict[str, Any]) -> None:
        """Remember what an output of a cell says was installed."""
        self._record.packages = with_installed(content, self._record.packages)

    @property
    def is_busy(self) -> bool:
        """Somebody works on the files."""
        return self._lock.locked()

    async def _move_in(self, fresh: PooledKernel) -> None:
        old = self.sandbox
        if old is not None:
            # Both are named while the files move, so that a crash in between loses nothing.
            self._write_record(old, fresh.sandbox)
            fresh.sandbox.take_workspace_of(old)
            if self._settings.config.kernels.kernelspec != OWN_KERNELSPEC and self._record.language == "python":
                # Any other kernel sits in the directory that the rename just replaced.
                await fresh.kernel.execute(
                    f"__import__('os').chdir({str(fresh.sandbox.workspace)!r})", None, silent=True
                )
        self._bound, self.sandbox = fresh, fresh.sandbox
        self._want_kernel()
        self._life.note(Event.KERNEL_READY)
        background.start(self._tasks, "watching a kernel", lambda: self._watch(fresh.kernel))
        self._disk.note_live(self._directory, self._record.principal, live=True)
        self.save_record()
        if old is not None:
            self._delete(old)

    async def _watch(self, kernel: Kernel) -> None:
        """Notice when an idle kernel dies; an execution notices by itself that its kernel has died."""
        await kernel.ended.wait()
        if self.holds(kernel) and self._life.state is State.IDLE:
            self.kill()

    def _delete(self, sandbox: SandboxDirectory, kernel: Kernel | None = None) -> None:
        """Soon, and once the kernel that may still write there has ended."""

        async def delete() -> None:
            if kernel is not None:
                await kernel.ended.wait()
            await anyio.to_thread.run_sync(sandbox.delete)

        background.start(self._tasks, "deleting a sandbox directory", delete)

    async def replace(self, *, files: bool) -> None:
        """Take a fresh kernel, and with `files` an empty workspace. If none can be had, nothing changes."""
        async with self._lock:
            if not files:
                self._check_files()
            fresh = await self._pool.take(self._record.flavor)
            old = self.kernel
            self.kill()
            if old is not None:
                old.fail("the workspace was reset")
            if files:
                self.note_changed_files()
                abandoned, self.sandbox = self.sandbox, None
                self._record.sandboxes, self._record.packages = [], []
                if abandoned is not None:
                    self._delete(abandoned, old)
            self._record.has_run = False
            await self._enter(fresh)
            self._variables = "none"

    async def empty_files(self) -> None:
        """An empty workspace, and nothing else changed."""
        async with self._lock:
            self.note_changed_files()
            if self.sandbox is None:
                self._record.sandboxes = []  # what was there is gone, and that is what is wanted now
            else:
                await anyio.to_thread.run_sync(self.sandbox.empty_workspace)

    async def stop(self) -> bool:
        """End the kernel and wait until it has ended; the files stay. False when there was none."""
        async with self._lock:
            kernel = self.kernel
            self.kill()
            self.give_up_start()
            if kernel is not None:
                with anyio.move_on_after(DISPOSE_SECONDS):
                    await kernel.ended.wait()
            self.save_record()
            return kernel is not None

    def kill(self, *, reported: bool = False) -> None:
        """End the kernel now, without waiting for its end. The next execution says that variables are lost, if there
        were any and no other execution has `reported` it."""
        bound, self._bound = self._bound, None
        if bound is not None:
            if self._variables == "present":
                self._variables = "lost"
            if reported:
                self._variables = "none"
            self._life.note(Event.KERNEL_ENDED)
            self._disk.note_live(self._directory, self._record.principal, live=False)
            bound.kernel.kill()

    def save_record(self) -> None:
        """Write the record. A full disk costs the newest times and counts, not the session."""
        try:
            if self.sandbox is not None:
                self._write_record(self.sandbox)
            else:
                self._record.write(self._directory)
        except OSError as exc:
            log.error("a session's record could not be written", session=self._record.session_id, error=str(exc))

    def _write_record(self, *sandboxes: SandboxDirectory) -> None:
        self._record.sandboxes = [sandbox.path.name for sandbox in sandboxes]
        self._record.write(self._directory)


def find_sandbox(home: Home, names: list[str]) -> SandboxDirectory | None:
    """Where the files are: while they move, the old sandbox directory has a workspace until the rename is done."""
    for name in names:
        sandbox = home.sandbox(name)
        if sandbox.is_whole:
            return sandbox
    return None
