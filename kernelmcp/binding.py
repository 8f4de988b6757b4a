"""A session's files and, while it is used, its kernel: taking one from the pool, moving the files to it, letting it go.

Above: sessions. Below: pool, home, records. Must not know executions or MCP.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config import Settings
from kernelmcp.errors import KernelStartFailed, SessionDamaged
from kernelmcp.home import Berth, Home
from kernelmcp.kernel import Kernel
from kernelmcp.packages import newly_installed, restore
from kernelmcp.pool import OWN_KERNELSPEC, BerthedKernel, Pool
from kernelmcp.records import Record

# Until a killed kernel's files may be removed; it is only tidiness.
DISPOSE_SECONDS = 5.0

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


class Binding:
    """Where a session lives. One at a time binds, renews or releases."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        pool: Pool,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        record: Record,
    ) -> None:
        self._settings = settings
        self._home = home
        self._pool = pool
        self._tasks = tasks
        self._directory = directory
        self._record = record
        self._lock = asyncio.Lock()
        self._bound: BerthedKernel | None = None
        self.berth = find_berth(home, record.berths)
        # A session from before has files but no variables.
        self.lost = record.execution_count > 0
        """Variables are gone, and no execution has said so yet."""
        self._note: str | None = None

    @property
    def kernel(self) -> Kernel | None:
        """The live kernel, if there is one."""
        bound = self._bound
        return bound.kernel if bound is not None and not bound.kernel.ended.is_set() else None

    async def bind(self) -> Kernel:
        """The kernel, with the session's files in its workspace; a fresh one when there is none any more."""
        if (kernel := self.kernel) is not None:
            return kernel
        async with self._lock:
            if (kernel := self.kernel) is not None:
                return kernel
            if self._bound is not None:
                # It died between two executions: one that dies within an execution is discarded there.
                self.discard()
            return await self._take()

    async def with_files(self, work: Callable[[Berth | None], Result]) -> Result:
        """Run blocking work on the session's files, wherever they lie; None when it has none yet. Starts no kernel,
        and none takes the files elsewhere meanwhile."""
        async with self._lock:
            self._check_files()
            return await anyio.to_thread.run_sync(work, self.berth)

    async def make_files(self) -> None:
        """A workspace, when there is none."""
        async with self._lock:
            self._check_files()
            if self.berth is None:
                self.berth = self._home.new_berth()
                self._write_record(self.berth)

    def _check_files(self) -> None:
        if self.berth is None:
            self.berth = find_berth(self._home, self._record.berths)
        if self._record.berths and (self.berth is None or not self.berth.is_whole):
            raise SessionDamaged(
                f"the workspace of session {self._record.session_id!r} is gone from the disk, or is no directory",
                "Bring it back, or start with an empty one: reset_workspace(scope='files').",
                expected=[str(self._home.berth(name).workspace) for name in self._record.berths],
            )

    async def _take(self) -> Kernel:
        self._check_files()
        fresh = await self._pool.take(self._record.flavor)
        try:
            await self._move_in(fresh)
        except OSError as exc:
            fresh.kernel.kill()
            raise KernelStartFailed(f"the session's files could not be moved: {exc}", "Free disk space.") from exc
        if self._record.packages:
            self._note = await restore(fresh.kernel, self._record.packages)
        return fresh.kernel

    def take_note(self) -> str | None:
        """What the next execution has to say besides."""
        note, self._note = self._note, None
        return note

    def note_packages(self, content: dict[str, Any]) -> None:
        """Remember what an output of a cell says was installed."""
        self._record.packages += newly_installed(content, self._record.packages)

    async def _move_in(self, fresh: BerthedKernel) -> None:
        old = self.berth
        if old is not None:
            # Both are named while the files move, so that a crash in between loses nothing.
            self._write_record(old, fresh.berth)
            fresh.berth.take_workspace_of(old)
            if self._settings.config.kernels.kernelspec != OWN_KERNELSPEC and self._record.language == "python":
                # Any other kernel sits in the directory that the rename just replaced.
                await fresh.kernel.execute(f"__import__('os').chdir({str(fresh.berth.workspace)!r})", None, silent=True)
        self._bound, self.berth = fresh, fresh.berth
        self.save_record()
        if old is not None:
            self._tasks.start_soon(anyio.to_thread.run_sync, old.delete)

    async def renew(self, *, files: bool) -> None:
        """A fresh kernel; with `files`, an empty workspace too."""
        async with self._lock:
            old = self.kernel
            self.discard()
            if old is not None:
                old.fail("the workspace was reset")
            if files:
                abandoned, self.berth = self.berth, None
                self._record.berths, self._record.packages = [], []
                if abandoned is not None:
                    self._tasks.start_soon(anyio.to_thread.run_sync, abandoned.delete)
            await self._take()
            self.lost = False

    async def empty_files(self) -> None:
        """An empty workspace, and nothing else changed."""
        async with self._lock:
            if self.berth is None:
                self._record.berths = []  # what was there is gone, and that is what is wanted now
            else:
                await anyio.to_thread.run_sync(self.berth.empty_workspace)

    async def release(self) -> bool:
        """End the kernel and wait until it has ended; the files stay. False when there was none."""
        async with self._lock:
            kernel = self.kernel
            self.discard()
            if kernel is not None:
                with anyio.move_on_after(DISPOSE_SECONDS):
                    await kernel.ended.wait()
            self.save_record()
            return kernel is not None

    def discard(self) -> None:
        """End the kernel now. Variables are lost."""
        bound, self._bound = self._bound, None
        if bound is not None:
            self.lost = True
            bound.kernel.kill()

    def save_record(self) -> None:
        """Write the record. A full disk costs the newest times and counts, not the session."""
        try:
            if self.berth is not None:
                self._write_record(self.berth)
            else:
                self._record.write(self._directory)
        except OSError as exc:
            log.error("a session's record could not be written", session=self._record.session_id, error=str(exc))

    def _write_record(self, *berths: Berth) -> None:
        self._record.berths = [berth.path.name for berth in berths]
        self._record.write(self._directory)


def find_berth(home: Home, names: list[str]) -> Berth | None:
    """Where the files are: while they move, the old berth has a workspace until the rename is done."""
    for name in names:
        berth = home.berth(name)
        if berth.is_whole:
            return berth
    return None
