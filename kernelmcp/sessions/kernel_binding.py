"""Binds a kernel to a session: takes one from the pool, moves in the session's files, replaces it and ends it.

What that means for its variables is decided in `hibernation/session_variables.py`. Must not know executions or MCP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import anyio.abc
import structlog

from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.config.settings import Settings
from kernelmcp.errors import KernelStartFailed, room_or_rights
from kernelmcp.executions.beginning import Beginning
from kernelmcp.files.home import SandboxDirectory
from kernelmcp.kernel.connection import IopubListener
from kernelmcp.kernel.pool import Pool, PooledKernel
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions import background
from kernelmcp.sessions.hibernation.checkpoints import gone_back_from
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.hibernation.session_variables import Variables
from kernelmcp.sessions.hibernation.state_files import (
    SavedState,
    StateChanged,
    StateNotLoaded,
    StateNotSaved,
    save_unsealed,
)
from kernelmcp.sessions.hibernation.state_saver import WITH_FILES, StateSaver
from kernelmcp.sessions.installed_packages import Package, in_image, restore, with_installed
from kernelmcp.sessions.life import Event, Life, State
from kernelmcp.sessions.storage.record import Checkpoint, Record
from kernelmcp.sessions.storage.session_files import SessionFiles

log = structlog.get_logger(__name__)

T = TypeVar("T")
# Time that a stop waits for the killed kernel to exit. Only tidiness: nothing depends on it.
STOP_SECONDS = 5.0
# Attempts to save variables: persons' cells may come meanwhile.
MAX_SAVES = 3


class KernelUser(IopubListener, Protocol):
    """Uses the kernel of a session."""

    @property
    def is_running(self) -> bool:
        """True if something runs in the kernel, or is being sent to it."""
        ...

    async def settle(self) -> None:
        """Wait for a moment while something of a person's runs: that it has ended may be on its way to us."""

    def kernel_changed(self) -> None:
        """A kernel has been bound, or has ended."""


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
        saved: SavedVariables,
        user: KernelUser,
    ) -> None:
        self.files = files
        self._user = user
        self._settings = settings
        self._pool = pool
        self._tasks = tasks
        self._record = record
        self._life = life
        self._bound: PooledKernel | None = None
        self.variables = Variables(record, saved, files.save_record)
        self._saver = StateSaver(settings.home, record)
        self.losses_said: set[str | None] = set()
        """Languages whose guest ended in an execution that reported it; None is the main language. The first execution
        in the next guest does not report it again."""
        self.went_back_to: str | None = None
        """The name of the checkpoint that the kernel began with, if the session went back to it."""
        self.packages_missing = False
        """The kernel is fresh: the session's packages are not installed in it yet."""
        self._restoring = asyncio.Lock()

    @property
    def kernel(self) -> Kernel | None:
        """The live kernel, if any."""
        bound = self._bound
        return bound.kernel if bound is not None and not bound.kernel.ended.is_set() else None

    @property
    def changes(self) -> tuple[int, int]:
        """It changes whenever something runs in the kernel, or files are written."""
        return self.variables.runs, self.files.writes

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
            if (bound := self._bound) is not None:
                # It died between two executions; one that dies during an execution is killed there.
                await bound.kernel.ended.wait()
                if self.holds(bound.kernel):
                    self.kill(bound.kernel.why_ended)
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

    async def replace(self, *, files: bool, before_end: Callable[[], None]) -> None:
        """Switch to a fresh kernel, with `files` to an empty workspace too. If none is available, nothing changes.
        `before_end` is called just before the old kernel is ended."""
        async with self.files.lock:
            if not files:
                self.files.check()
            fresh = await self._pool.take(self._record.flavor)
            if not files:
                # Steps that a full disk can refuse come before the end of the old kernel.
                with self._discarding(fresh):
                    self.files.announce_move(fresh.sandbox)
            before_end()
            old = self.kernel
            self.kill()
            if old is not None:
                old.fail("the workspace was reset")
            if files:
                self.files.abandon(old)
            self.variables.reset()
            await self._enter(fresh)

    async def go_back(
        self,
        bring: Callable[[SandboxDirectory], Awaitable[SavedState]],
        packages: list[Package],
        checkpoint: Checkpoint | None,
        leave: Callable[[Beginning], Awaitable[None]] | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Beginning:
        """Switch to a fresh kernel with other files, which `bring` copies, and the variables of the state that it
        returns, in which these packages were installed. `checkpoint`: if it is its own. `leave` is awaited before the
        old kernel is ended. If that fails, or it is not wanted any more, nothing changes. Raises `StateNotLoaded`,
        `KernelStartFailed`, OSError and what `bring` raises."""
        async with self.files.lock:
            fresh = await self._pool.take(self._record.flavor)
            try:
                state = await bring(fresh.sandbox)
                await self._enter_workspace(fresh)
                found = await self._load(fresh.kernel, state)
                if found.lost or not is_wanted():
                    raise StateNotLoaded(found.missing or ["the cell that asked for it has ended"])
                self._record_replaced(state, packages, checkpoint, fresh)
                self.variables.are_back = True
            except BaseException:
                fresh.kernel.kill()
                self.files.delete_soon(fresh.sandbox, fresh.kernel)
                raise
            try:
                if leave is not None:
                    await leave(found)
            finally:  # its files are the others already
                old = self.kernel
                self.kill()
                if old is not None:
                    old.fail("the session went back to a checkpoint")
                self.variables.are_those_of(state, is_own=checkpoint is not None)
                self._bind(fresh, went_back_to=checkpoint.name if checkpoint is not None else None)
            return found

    async def _load(self, kernel: Kernel, state: SavedState) -> Beginning:
        try:
            return Beginning() if state.number is None else await self.variables.saved.load(kernel, state)
        except OSError as exc:
            raise StateNotLoaded([f"the saved state cannot be read: {exc.strerror}"]) from exc

    def _record_replaced(
        self, state: SavedState, packages: list[Package], checkpoint: Checkpoint | None, fresh: PooledKernel
    ) -> None:
        """Make it true on the disk, in one step. Raises OSError: then nothing has changed."""
        record = self._record
        replaced: dict[str, Any] = {
            "packages": list(packages),
            "has_run": state.number is not None,
            "has_state": False,
            "why_lost": [],
            "untold_loss": False,
            "untold": [],
            "came_from": checkpoint.folder if checkpoint is not None else None,
            "last_execution": checkpoint.execution if checkpoint is not None else "",
            "is_unchanged": checkpoint is not None,
            "loss_is_said": False,
        }
        if checkpoint is not None:
            replaced["checkpoints"] = gone_back_from(record, checkpoint)
        before = {name: getattr(record, name) for name in replaced}
        try:
            _set(record, replaced)
            self.files.replace_by(fresh.sandbox, self.kernel)
        except OSError:
            _set(record, before)
            raise

    async def checkpoint(self, file: Path, copy: Callable[[], Awaitable[T]]) -> tuple[SavedState, T]:
        """Save the variables as they are now in a file, and what `copy` takes of the files; the session goes on, and
        these variables are its saved ones until something runs. Raises `StateNotSaved`, OSError, and as `copy` does."""
        async with self.files.lock:
            self.files.check()
            runs = self.variables.runs
            state = await self._save_to(file)
            copied = await copy()
            self._check_unchanged(runs)
            self.variables.were_copied(state)
            return state, copied

    async def _save_to(self, file: Path) -> SavedState:
        if self.variables.are_untouched:
            state = self.variables.saved.state
            state.link(file)
            return replace(state, file=file)
        if (kernel := self._kernel_to_save()) is None:
            return SavedState(file, self._record, None)
        return await self._saver.save(kernel, file, await self.files.room())

    def _kernel_to_save(self) -> Kernel | None:
        """The kernel that has the variables; None if there are none. Raises `StateNotSaved` if they are lost."""
        if not self.variables.are_there():
            return None
        if (kernel := self.kernel) is None:
            raise self.variables.not_saved()
        return kernel

    async def pass_on(self, record: Record, file: Path, sandbox: SandboxDirectory) -> SavedState:
        """Have variables and files as they are now for a fork with this record: in a file, and in its fresh sandbox
        directory. Raises as `checkpoint` does."""
        async with self.files.lock:
            self.files.check()
            runs = self.variables.runs
            if self.variables.are_untouched:
                state = self.variables.saved.state
            elif (kernel := self._kernel_to_save()) is not None:
                how = {**WITH_FILES, "is_plain": True}
                found, _ = await save_unsealed(kernel, file, record, await self.files.room(), how)
                state = SavedState(file, record, found.number, unsealed=found)
            else:
                state = SavedState(file, record, None)
            await self.files.copy_to(sandbox)
            self._check_unchanged(runs)
            return replace(state, is_elsewhere=True)

    def _check_unchanged(self, runs: int) -> None:
        if self._user.is_running:  # a person's cell has come meanwhile
            raise StateNotSaved(["a cell is running"])
        if self.variables.runs != runs:
            raise StateChanged(["a message of a browser has come meanwhile"])

    async def _enter(self, fresh: PooledKernel) -> Kernel:
        """Move the session's files to a fresh kernel."""
        with self._discarding(fresh):
            await self._move_files(fresh)
        if self.variables.state == "saved":
            await self._restore(fresh.kernel)
        self._bind(fresh)
        return fresh.kernel

    def _bind(self, fresh: PooledKernel, *, went_back_to: str | None = None) -> None:
        self._bound, self.went_back_to = fresh, went_back_to
        self.variables.kernel_began()
        self._saver.forget()
        self.losses_said = set()
        self.packages_missing = True
        self._want_kernel()
        self._life.note(Event.KERNEL_READY)
        self.files.note_live(live=True)
        fresh.kernel.connection.listener = self._user
        self._user.kernel_changed()
        background.start(self._tasks, "watching a kernel", lambda: self._watch(fresh.kernel))

    @contextmanager
    def _discarding(self, fresh: PooledKernel) -> Iterator[None]:
        """Discard a fresh kernel if the session's files cannot be moved to it. Raises `KernelStartFailed`."""
        try:
            yield
        except OSError as exc:
            fresh.kernel.kill()
            if self.files.sandbox is not fresh.sandbox:
                self.files.delete_soon(fresh.sandbox, fresh.kernel)
            raise KernelStartFailed(
                f"the session's files could not be moved: {exc.strerror}", room_or_rights(exc)
            ) from exc

    async def _move_files(self, fresh: PooledKernel) -> None:
        has_files = self.files.sandbox is not None
        self.files.move_to(fresh.sandbox, with_tmp=self.variables.state == "saved")
        self.files.settle_in(fresh.sandbox)
        if has_files:
            await self._enter_workspace(fresh)

    async def _enter_workspace(self, fresh: PooledKernel) -> None:
        """The working directory of a kernel that is not ours has just been replaced."""
        if self._settings.config.kernels.kernelspec != OWN_KERNELSPEC:
            await fresh.kernel.execute(f"__import__('os').chdir({str(fresh.sandbox.workspace)!r})", None, silent=True)

    async def _restore(self, kernel: Kernel) -> None:
        try:
            self.variables.came_back(await self.variables.saved.restore(kernel))
        except BaseException as exc:
            kernel.kill()
            if isinstance(exc, KernelStartFailed):
                self.variables.did_not_come_back()
            raise

    async def _watch(self, kernel: Kernel) -> None:
        """Notice the death of an idle kernel; an execution notices by itself that its kernel has died."""
        await kernel.ended.wait()
        if self.holds(kernel) and self._life.state is State.IDLE:
            self.kill(kernel.why_ended)

    # -- run ----------------------------------------------------------------------------------------------------

    async def restore_packages(self, kernel: Kernel) -> str | None:
        """Reinstall the session's packages in a fresh kernel, before a cell. Returns a warning for its stderr."""
        async with self._restoring:
            if missing := self.packages_missing and self.holds(kernel):  # not replaced by another one meanwhile
                self.packages_missing = False
            return await restore(kernel, self._record.packages) if missing and self._record.packages else None

    def note_packages(self, content: dict[str, Any]) -> None:
        """Remember the installed packages if this output of a cell reports any."""
        self._record.packages = with_installed(content, self._record.packages)

    def note_image(self, reply: dict[str, Any]) -> None:
        """Remember the boot-image packages of the guest that answered."""
        self._record.in_image = in_image(reply)

    # -- end ----------------------------------------------------------------------------------------------------

    async def stop(self, *, save: bool = True, must_end: bool = True, must_save: bool = False) -> bool:
        """End the kernel and wait for its exit; the files stay, and with `save` the variables. False if there was none;
        or if it goes on, without `must_end`, because they could not be saved now and may be later. With `must_save` it
        goes on whyever they could not, and this raises `StateNotSaved`."""
        async with self.files.lock:
            kernel = self.kernel
            if save:
                await self._save_variables()
                if must_save and self.variables.state == "present":
                    why, self._record.why_lost = self._record.why_lost, []
                    none = "this server saves no variables ([sessions] hibernate = false)"
                    raise StateNotSaved(why or [none], is_full=self.variables.saved.has_no_room)
                saved = self.variables.saved
                may_live_on = saved.has_no_room or saved.is_busy or self._user.is_running
                if not must_end and self.variables.state == "present" and may_live_on:
                    self._record.why_lost = []
                    return False
                self.files.save_record()  # a kill from here on finds what the record names
            else:
                self.variables.forget()
            self.kill()
            self.give_up_start()
            if kernel is not None:
                with anyio.move_on_after(STOP_SECONDS):
                    await kernel.ended.wait()
            self.files.save_record()
            return kernel is not None

    async def hibernate(self) -> None:
        """Save variables and record and end the kernel, because the server ends: perhaps before that is done."""
        async with self.files.lock:
            if self.variables.are_unsaved:
                self._record.why_lost = ["the server ended before they were saved"]
                self.files.save_record()
            await self._save_variables()
            self.kill()
            self.files.save_record()

    async def _save_variables(self) -> None:
        variables = self.variables
        if variables.state != "present" or (kernel := self.kernel) is None:
            return
        if variables.are_untouched:
            variables.are_saved()
            return
        for _ in range(MAX_SAVES):
            await self._user.settle()
            if self.kernel is not kernel:
                return
            runs = variables.runs
            if self._user.is_running:
                break
            is_saved = await variables.saved.save(kernel, (await self.files.quota()).max_bytes)
            await self._user.settle()
            if variables.runs == runs and not self._user.is_running and not variables.saved.is_busy:
                if is_saved:
                    variables.are_saved()
                return
            variables.saved.forget()  # a person's cell has come meanwhile
        self._record.why_lost = ["a cell was running"]

    def kill(self, why_ended: str = "") -> None:
        """End the kernel now, without waiting for its exit. Variables that were not saved are lost. `why_ended`: it has
        ended by itself, and nothing ran whose result says so."""
        bound, self._bound = self._bound, None
        self._record.in_image = []
        self.variables.kernel_ended(why_ended)
        if bound is not None:
            self._life.note(Event.KERNEL_ENDED)
            self.files.note_live(live=False)
            bound.kernel.connection.listener = None  # its last messages say nothing of the session
            bound.kernel.kill()
            self._user.kernel_changed()


def _set(record: Record, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(record, name, value)
