"""A session's files: where they are, reading and writing them, moving them to another kernel, emptying them.

They survive every kernel, and the record on disk names their sandbox directory. Must not know executions or MCP.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.errors import ServerError, SessionDamaged
from kernelmcp.files.epochs import delete_place, session_directory
from kernelmcp.files.home import RECORD_FILES, Home, SandboxDirectory
from kernelmcp.files.listing import Entry
from kernelmcp.files.locks import LOCK_FILE, free_place
from kernelmcp.files.tree_copy import Copied
from kernelmcp.files.volume_files import VolumeFiles, is_in_volume
from kernelmcp.files.workspace import MAX_CHANGED, Quota, Workspace
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions import background
from kernelmcp.sessions.storage.disk_use import DiskUse
from kernelmcp.sessions.storage.record import Record

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


class SessionFiles:
    """The files of one session. Code that moves, empties or reads them holds `lock`."""

    def __init__(
        self,
        home: Home,
        disk: DiskUse,
        tasks: anyio.abc.TaskGroup,
        place: Path,
        record: Record,
        volumes: VolumeFiles,
    ) -> None:
        """`place`: where the session's record, log and states are."""
        self.lock = asyncio.Lock()
        self.sandbox = find_sandbox(home, record.sandboxes)
        """None if the session has no files yet."""
        self.volumes = volumes
        self.writes = 0
        """How often they were written or emptied, other than by a cell."""
        self._home = home
        self._disk = disk
        self._tasks = tasks
        self._place = place
        self._directory = session_directory(place)
        self._record = record

    @property
    def workspace(self) -> Path | None:
        """The directory that the guest sees as /workspace; None if the session has no files yet."""
        return self.sandbox.workspace if self.sandbox else None

    # -- read and write -----------------------------------------------------------------------------------------

    async def with_workspace(self, work: Callable[[Workspace | None], Result], *, make: bool = False) -> Result:
        """Run blocking work on the files, of a stopped session too; the files do not move meanwhile.

        `work` gets None if there are no files yet; with `make`, an empty workspace is created first, for what it
        writes. Raises `SessionDamaged`, and what `work` raises.
        """
        if make:
            await self._make()
        async with self.lock:
            quota = await self.quota()
            self.check()
            if make:
                self._note_written()
            sandbox = self.sandbox
            try:
                return await anyio.to_thread.run_sync(work, Workspace(sandbox.path, quota) if sandbox else None)
            finally:
                if make:
                    self.note_changed()  # afterwards: a measurement may happen in between

    async def find_changed(self, paths: list[str]) -> list[Entry]:
        """The regular files among the paths that a guest reports as written."""
        self.note_changed()
        in_volumes = [path for path in paths if is_in_volume(path)]
        own = [path for path in paths if not is_in_volume(path)]
        try:
            found = await self.with_workspace(lambda files: files.look(own) if files else []) if own else []
            if in_volumes:
                found += await anyio.to_thread.run_sync(self.volumes.look, in_volumes)
            return found[:MAX_CHANGED]
        except ServerError as exc:
            log.warning("changed files could not be looked at", session=self._record.session_id, error=exc.message)
            return []

    async def quota(self) -> Quota:
        """The space and number of files that the session may use from now on."""
        return await self._disk.quota(self._directory, self._record.principal)

    async def room(self) -> int:
        """The bytes that may be stored besides what all the principal's sessions have."""
        return await self._disk.room(self._record.principal)

    async def save_checkpoint(self, folder: Path, earlier: Path | None) -> Copied:
        """Copy the files to a folder; unchanged ones are shared with an `earlier` copy. The caller holds the lock.
        Raises OSError, `ResourceLimitExceeded`."""
        if (sandbox := self.sandbox) is None:
            return Copied()
        return await anyio.to_thread.run_sync(sandbox.save_checkpoint, folder, await self._room(), earlier)

    async def bring_checkpoint(self, folder: Path, sandbox: SandboxDirectory) -> None:
        """Copy the files that such a folder has to a fresh sandbox directory. Raises as `save_checkpoint` does."""
        if (folder / "workspace").is_dir():  # otherwise the session had no files
            await anyio.to_thread.run_sync(sandbox.copy_from_checkpoint, folder, await self._room())

    async def copy_to(self, sandbox: SandboxDirectory) -> None:
        """Copy the files to a fresh sandbox directory. The caller holds the lock. Raises as `save_checkpoint` does."""
        if (own := self.sandbox) is not None:
            room = await self._room()
            await anyio.to_thread.run_sync(sandbox.copy_from, own.workspace, own.path / "tmp", room)

    async def _room(self) -> Quota:
        quota = await self.quota()
        return Quota(min(quota.max_bytes, await self.room()), quota.max_files)

    def note_changed(self) -> None:
        """Note that files were written or deleted, so they must be measured again."""
        self._disk.note_changed(self._directory, self._record.principal)

    def _note_written(self) -> None:
        """Note that the files are not as at a checkpoint any more."""
        self.writes += 1
        if self._record.is_unchanged:
            self._record.is_unchanged = False
            self.save_record()

    def note_live(self, *, live: bool) -> None:
        """Note that a kernel has begun or stopped using the files."""
        self._disk.note_live(self._directory, self._record.principal, live=live)

    def check(self) -> None:
        """Raises `SessionDamaged` when the record names files that are not on the disk, and `StorageFailed` when the
        files of all sessions are missing."""
        if self.sandbox is None:
            self.sandbox = find_sandbox(self._home, self._record.sandboxes)
        if self._record.sandboxes and (self.sandbox is None or not self.sandbox.is_whole):
            self._home.check()
            raise SessionDamaged(
                f"the workspace of session {self._record.session_id!r} is gone from the disk, or is not a directory",
                "Restore it, or start with an empty one: reset_workspace(scope='files').",
                expected=[str(self._home.sandbox(name).workspace) for name in self._record.sandboxes],
            )

    async def _make(self) -> None:
        async with self.lock:
            self.check()
            if self.sandbox is None:
                self.sandbox = self._home.new_sandbox()
                self._write_record(self.sandbox)

    # -- move and delete ----------------------------------------------------------------------------------------

    async def empty(self) -> None:
        """Delete everything in the workspace. A session whose files are gone from the disk has none from then on."""
        async with self.lock:
            self._home.check()
            self.note_changed()
            self._note_written()
            if self.sandbox is None:
                self._record.sandboxes = []
            else:
                await anyio.to_thread.run_sync(self.sandbox.empty_workspace)

    def announce_move(self, sandbox: SandboxDirectory) -> None:
        """Note that the files are about to move to a fresh kernel's sandbox directory: the record names both during the
        move, so that a crash loses nothing. Raises OSError, such as when the disk is full; then nothing has changed."""
        if self.sandbox is not None and self._record.sandboxes != [self.sandbox.path.name, sandbox.path.name]:
            try:
                self._write_record(self.sandbox, sandbox)
            except OSError:
                self._record.sandboxes = [self.sandbox.path.name]
                raise

    def move_to(self, sandbox: SandboxDirectory, *, with_tmp: bool) -> None:
        """Move the workspace into a fresh kernel's sandbox directory, and perhaps its temporary files. `settle_in` must
        follow. Raises OSError."""
        if self.sandbox is not None:
            self.announce_move(sandbox)
            if with_tmp:
                with suppress(FileNotFoundError, NotADirectoryError):  # they are temporary
                    sandbox.take_tmp_of(self.sandbox)
            sandbox.take_workspace_of(self.sandbox)

    def settle_in(self, sandbox: SandboxDirectory) -> None:
        """Note that the files are now in this sandbox directory; the previous one is deleted."""
        old, self.sandbox = self.sandbox, sandbox
        self.save_record()
        if old is not None:
            self.delete_soon(old)

    def replace_by(self, sandbox: SandboxDirectory, kernel: Kernel | None) -> None:
        """Replace all files by those of another sandbox directory; `kernel` still uses the old ones. Raises OSError:
        then nothing has changed."""
        old, names = self.sandbox, self._record.sandboxes
        try:
            self._write_record(sandbox)
        except OSError:
            self._record.sandboxes = names
            raise
        self.sandbox = sandbox
        self.note_changed()
        if old is not None:
            self.delete_soon(old, kernel)

    def abandon(self, kernel: Kernel | None) -> None:
        """Delete all files and forget the installed packages, after the kernel that still uses them has ended."""
        self.note_changed()
        abandoned, self.sandbox = self.sandbox, None
        self._record.sandboxes, self._record.packages = [], []
        if abandoned is not None:
            self.delete_soon(abandoned, kernel)

    def delete_soon(self, sandbox: SandboxDirectory, kernel: Kernel | None = None) -> None:
        """Delete a sandbox directory in the background, after the kernel that may still write there has ended."""

        async def delete() -> None:
            if kernel is not None:
                await kernel.ended.wait()
            await anyio.to_thread.run_sync(sandbox.delete)

        background.start(self._tasks, "deleting a sandbox directory", delete)

    def delete_session(self) -> None:
        """Delete the files, and the record last, so that partly deleted files still have an owner. Blocking. Raises
        OSError."""
        if self.sandbox is not None:
            self.sandbox.delete_for_good()
        delete_place(self._place, (*RECORD_FILES, LOCK_FILE), free_place)

    # -- the record ---------------------------------------------------------------------------------------------

    def save_record(self, *, must_succeed: bool = False) -> None:
        """Write the session's record. If the disk is full, only the newest times and counts are lost; if more would be,
        it `must_succeed`, and raises OSError."""
        try:
            if self.sandbox is not None:
                self._write_record(self.sandbox)
            else:
                self._record.write(self._place)
        except OSError as exc:
            if must_succeed:
                raise
            log.error("a session's record could not be written", session=self._record.session_id, error=str(exc))

    def _write_record(self, *sandboxes: SandboxDirectory) -> None:
        self._record.sandboxes = [sandbox.path.name for sandbox in sandboxes]
        self._record.write(self._place)


def find_sandbox(home: Home, names: list[str]) -> SandboxDirectory | None:
    """The sandbox directory that has the files. During a move there are two, and the old one has the workspace until
    the rename is done."""
    for name in names:
        sandbox = home.sandbox(name)
        if sandbox.is_whole:
            return sandbox
    return None
