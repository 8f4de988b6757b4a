"""A session's files and, while it is used, its kernel: taking one from the pool, moving the files to it, letting it go.

Above: sessions. Below: pool, home, records. Must not know executions or MCP.
"""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config import Settings
from kernelmcp.errors import KernelStartFailed
from kernelmcp.home import Berth, Home
from kernelmcp.kernel import Kernel
from kernelmcp.packages import newly_installed, restore
from kernelmcp.pool import OWN_KERNELSPEC, BerthedKernel, Pool
from kernelmcp.records import Record

# Until a killed kernel's files may be removed; it is only tidiness.
DISPOSE_SECONDS = 5.0

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

    async def _take(self) -> Kernel:
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
            if files and self.berth is not None:
                abandoned, self.berth = self.berth, None
                self._record.packages = []
                self._tasks.start_soon(anyio.to_thread.run_sync, abandoned.delete)
            await self._take()
            self.lost = False

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
            self._write_record(*([self.berth] if self.berth else []))
        except OSError as exc:
            log.error("a session's record could not be written", session=self._record.session_id, error=str(exc))

    def _write_record(self, *berths: Berth) -> None:
        self._record.berths = [berth.path.name for berth in berths]
        self._record.write(self._directory)


def find_berth(home: Home, names: list[str]) -> Berth | None:
    """Where the files are: while they move, the old berth has a workspace until the rename is done."""
    for name in names:
        berth = home.berth(name)
        if berth.workspace.is_dir():
            return berth
    return None
