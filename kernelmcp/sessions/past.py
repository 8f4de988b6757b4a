"""The past of a session: its checkpoints, made when somebody asks and after each cell, going back to one, and forks.

Whatever goes back begins in a fresh kernel, and changes nothing before that has the variables.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, ServerError, SessionNotFound, StorageFailed, room_or_rights
from kernelmcp.executions.beginning import Beginning
from kernelmcp.executions.execution import Execution
from kernelmcp.files.home import SandboxDirectory
from kernelmcp.files.listing import size_of
from kernelmcp.files.safe_open import delete_tree
from kernelmcp.files.tree_copy import Copied
from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import counted
from kernelmcp.sessions import background
from kernelmcp.sessions.caller import check_name
from kernelmcp.sessions.hibernation.automatic import AutomaticCheckpoints
from kernelmcp.sessions.hibernation.checkpoints import Checkpoints, listed
from kernelmcp.sessions.hibernation.envelope import StateRefused, key_of
from kernelmcp.sessions.hibernation.state_files import (
    STATE_FILE,
    SavedState,
    StateChanged,
    StateNotLoaded,
    StateNotSaved,
    draft_of,
)
from kernelmcp.sessions.life import State
from kernelmcp.sessions.persons_cells import PERSON_RUNS
from kernelmcp.sessions.queue import ExecutionQueue
from kernelmcp.sessions.storage.disk_use import BLOCK_BYTES
from kernelmcp.sessions.storage.record import Checkpoint, Record, now

# How long the old kernel may take to say that the session has gone back, before it is ended.
LEAVE_SECONDS = 5.0
# What a name takes in a directory and in the manifest.
NAME_BYTES = 512
_MAKE_ROOM = "Delete sessions or files that you no longer need; the operator can make room on the disk."

log = structlog.get_logger(__name__)


class Owner(Protocol):
    """The session."""

    @property
    def is_idle(self) -> bool: ...

    def changed(self) -> None:
        """It has been used: it has other checkpoints, or variables and files."""


class PlaceLost(Exception):
    """The session was stopped while it waited: it does not count as running any more."""


class Past:
    """The past of one session. Methods run in the event loop."""

    def __init__(
        self,
        settings: Settings,
        tasks: anyio.abc.TaskGroup,
        directory: Path,
        record: Record,
        queue: ExecutionQueue,
        owner: Owner,
    ) -> None:
        sessions = settings.config.sessions
        bounds = sessions.max_checkpoints, sessions.automatic_checkpoints, settings.policy.checkpoints_max_mb * 2**20
        self.checkpoints = Checkpoints(directory, record, *bounds)
        if remains := self.checkpoints.remains:
            background.start(tasks, "deleting what is left of a checkpoint", lambda: _delete(remains))
        self._automatic = None
        if sessions.automatic_checkpoints:
            self._automatic = AutomaticCheckpoints(tasks, self._checkpoint_automatically)
        self._settings = settings
        self._tasks = tasks
        self._directory = directory
        self._record = record
        self._queue = queue
        self._owner = owner
        self._is_checkpointed = True
        """No cell has ended since the last checkpoint, except one that did nothing but make it or go back to it."""

    def note_changed(self) -> None:
        """A cell has ended, or the session is another one: it should be checkpointed soon."""
        self._is_checkpointed = self._queue.binding.variables.are_as_checkpointed
        self._make_soon()

    def note_other_use(self) -> None:
        """A browser has run something: what was saved is gone, and should be saved again soon."""
        if self._settings.config.sessions.hibernate:
            self._make_soon()

    def _make_soon(self) -> None:
        if self._automatic is not None:
            self._automatic.make_soon()

    def close(self) -> None:
        """Make no more checkpoints by itself."""
        if self._automatic is not None:
            self._automatic.close()

    async def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keep variables and files as they are now, under a name; the session goes on. Raises `InvalidArgument` while
        something runs or stands in the way, `ResourceLimitExceeded` and `StorageFailed`."""
        if name is not None:
            check_name(name, "the name of a checkpoint", "name")
        return await background.complete(self._tasks, lambda: self._checkpoint(name))

    async def _checkpoint_automatically(self) -> None:
        binding = self._queue.binding
        if not self._owner.is_idle or not binding.variables.are_unsaved:
            return  # the next cell's end is another occasion
        if self._queue.turn.locked():
            self._make_soon()  # perhaps no cell comes after what has it now
            return
        try:
            if self._is_checkpointed:
                await self._save()
            else:
                await self._checkpoint(None, is_automatic=True)
        except ServerError as exc:
            log.info("no automatic checkpoint", session=self._record.session_id, reason=exc.message)

    async def _save(self) -> None:
        """Save the variables in no checkpoint: those of a browser's messages would displace those of cells."""
        files = self._queue.binding.files
        async with self._idle_turn():
            with self.storing():
                folder = self.checkpoints.new_folder()
                try:
                    await self._queue.binding.checkpoint(folder / STATE_FILE, _no_files)
                    files.save_record()
                finally:
                    with anyio.CancelScope(shield=True):
                        await _delete([folder])
            files.note_changed()

    async def _checkpoint(self, name: str | None, *, is_automatic: bool = False) -> Checkpoint:
        async with self._idle_turn():
            return await self._make(name, is_automatic=is_automatic)

    async def _make(self, name: str | None, *, is_automatic: bool = False) -> Checkpoint:
        binding = self._queue.binding
        changes = binding.changes
        with self.storing():
            try:
                found, left = await self._store(name, is_automatic=is_automatic)
            except StateChanged:  # a browser has just opened the session, or a widget was used
                found, left = await self._store(name, is_automatic=is_automatic)
        if binding.changes != changes:  # perhaps after the copy was made
            self._record.is_unchanged = False
            binding.files.save_record()
        await _delete(left)
        binding.files.note_changed()
        self._owner.changed()
        return found

    async def _store(self, name: str | None, *, is_automatic: bool) -> tuple[Checkpoint, list[Path]]:
        """The checkpoint, and the folders of those that are not listed any more."""
        binding = self._queue.binding
        folder = self.checkpoints.new_folder()
        self._is_checkpointed = True  # before a person's cell that ends meanwhile
        try:
            copy = partial(binding.files.save_checkpoint, folder, self.checkpoints.newest_folder)
            state, copied = await binding.checkpoint(folder / STATE_FILE, copy)
            found = await anyio.to_thread.run_sync(self._describe, folder, state, copied, name)
            found.is_automatic = is_automatic
            save_record = partial(binding.files.save_record, must_succeed=True)
            return found, self.checkpoints.add(found, save_record, is_named=name is not None)
        except BaseException:
            self._is_checkpointed = False
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(delete_tree, folder)
            raise

    def _describe(self, folder: Path, state: SavedState, copied: Copied, name: str | None) -> Checkpoint:
        self.checkpoints.keep_packages(folder)
        count = size = whole = 0
        missing: list[str] = []
        if state.number is not None:
            key = key_of(self._settings.home)
            envelope = state.check(key)
            count, size, missing = envelope.execution_count, envelope.size, envelope.dead
            whole = state.size(envelope, key)
        names = copied.entries * NAME_BYTES
        return Checkpoint(
            name=name or f"cell-{count}",
            folder=folder.name,
            number=state.number,
            base_number=state.base_number,
            created_at=now(),
            execution_count=count,
            execution=self._record.last_execution if self._queue.asking is None else "",  # in the middle of a cell
            size_bytes=size + copied.new_bytes + (copied.entries - copied.shared) * BLOCK_BYTES + names,
            total_bytes=whole + copied.total_bytes + copied.entries * BLOCK_BYTES + names,
            left_out=copied.left_out,
            missing=missing,
        )

    async def go_back(self, name: str | None = None) -> tuple[Checkpoint, Beginning]:
        """Have the variables and files of a checkpoint, the newest one without a name; what has happened since is lost.
        Nothing changes if the caller stops waiting before that. Raises what `checkpoint` does, `KernelStartFailed`, and
        `PlaceLost`."""
        is_wanted = True
        try:
            return await background.complete(self._tasks, lambda: self._go_back(name, lambda: is_wanted))
        except asyncio.CancelledError:
            is_wanted = False
            raise

    async def _go_back(self, name: str | None, is_wanted: Callable[[], bool]) -> tuple[Checkpoint, Beginning]:
        try:
            async with self._idle_turn():
                if self._queue.life.state is State.STOPPED:
                    raise PlaceLost
                found = self.find(name)
                return found, await self._become(self, found, is_wanted=is_wanted)
        finally:
            self._queue.binding.give_up_start()

    def find(self, name: str | None) -> Checkpoint:
        """The checkpoint that `go_back` goes to. Raises `InvalidArgument`."""
        return self.checkpoints.find(name, is_unchanged=self._queue.binding.variables.are_as_checkpointed)

    def answer(self, execution: Execution, request: dict[str, Any]) -> None:
        """Do what a running cell asks for, `%checkpoint NAME` or `%restore NAME`, while its kernel waits."""
        if (kernel := self._queue.binding.kernel) is not None:
            background.start(self._tasks, "answering a cell", lambda: self._answer(kernel, execution, request))

    async def _answer(self, kernel: Kernel, execution: Execution, request: dict[str, Any]) -> None:
        name = request.get("name")
        try:
            if name is not None:
                check_name(str(name), "the name of a checkpoint", "name")
            async with self._turn():
                if self._queue.binding.kernel is not kernel or execution.done.is_set():
                    return  # the session goes on without the cell that has asked
                self._queue.asking = execution
                try:
                    if request.get("what") == "checkpoint":
                        made = await self._make(name)
                        kernel.answer_past(told_checkpoint(made, len(self._record.checkpoints)), is_ok=True)
                    else:
                        is_unchanged = self._queue.binding.variables.began_as_checkpointed
                        await self._leave_for(self.checkpoints.find(name, is_unchanged=is_unchanged), kernel, execution)
                finally:
                    self._queue.asking = None
        except ServerError as exc:
            kernel.answer_past(f"{exc.message}. {' '.join(exc.suggestions)}", is_ok=False)
        except Exception:
            kernel.answer_past("the server could not do it; its log says why", is_ok=False)
            raise

    async def _leave_for(self, checkpoint: Checkpoint, kernel: Kernel, execution: Execution) -> None:
        async def leave(beginning: Beginning) -> None:
            execution.take, execution.has_left = None, True  # what it would say is true no more
            kernel.answer_past(told_restored(checkpoint, beginning, self._record), is_ok=True, is_left=True)
            with anyio.move_on_after(LEAVE_SECONDS):
                await execution.done.wait()
                await kernel.finish()  # the browser that shows the cell may not have the last lines yet

        await self._become(self, checkpoint, leave, lambda: not execution.done.is_set())

    async def fork_from(self, source: "Past", name: str | None) -> Beginning:
        """Have, in a new session, the variables and files of another one: as they are now or, with a name, as they were
        at that checkpoint. Raises what `go_back` does."""
        await self._queue.turn.acquire()  # at once, as nobody has it: whoever knows the name may have a cell waiting
        return await background.complete(self._tasks, lambda: self._fork_from(source, name))

    async def _fork_from(self, source: "Past", name: str | None) -> Beginning:
        try:
            async with source._turn() if name is not None else source._idle_turn():
                self._check_goes_on()
                checkpoint = source.checkpoints.find(name, argument="from_checkpoint") if name is not None else None
                return await self._become(source, checkpoint)
        except BaseException:
            self._queue.cancel(self._queue.unfinished)  # a cell that waits would begin without the variables
            raise
        finally:
            self._queue.turn.release()

    async def _become(
        self,
        source: "Past",
        checkpoint: Checkpoint | None,
        leave: Callable[[Beginning], Awaitable[None]] | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Beginning:
        passed_on = draft_of(source._directory / STATE_FILE)  # a fork has no record yet, so nobody would find it there

        async def bring(sandbox: SandboxDirectory) -> SavedState:
            if checkpoint is None:
                return await source._queue.binding.pass_on(self._record, passed_on, sandbox)
            folder = source.checkpoints.folder(checkpoint)
            await self._queue.binding.files.bring_checkpoint(folder, sandbox)
            numbers = checkpoint.number, checkpoint.base_number
            return SavedState(folder / STATE_FILE, source._record, *numbers, is_elsewhere=True)

        own = checkpoint if source is self else None
        try:
            with source.storing():
                packages = source._record.packages
                if checkpoint is not None:
                    packages = await anyio.to_thread.run_sync(source.checkpoints.packages, checkpoint)
                beginning = await self._queue.binding.go_back(bring, packages, own, leave, is_wanted)
        finally:
            with suppress(OSError):
                passed_on.unlink(missing_ok=True)
        self.note_changed()
        self._owner.changed()
        return beginning

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Nothing begins meanwhile. Raises `SessionNotFound`."""
        async with self._queue.turn:
            self._check_goes_on()
            yield

    def _check_goes_on(self) -> None:
        if self._queue.life.is_ending:
            raise SessionNotFound(
                f"there is no session {self._record.session_id!r} any more",
                "List yours with get_sessions.",
                session_id=self._record.session_id,
            )

    @asynccontextmanager
    async def _idle_turn(self) -> AsyncIterator[None]:
        """The same, and nothing runs. Raises `SessionNotFound`, and `InvalidArgument` if something runs."""
        async with self._turn():
            self.check_idle()
            yield

    def check_idle(self) -> None:
        """Raises `InvalidArgument` if something runs."""
        if not self._owner.is_idle:
            raise InvalidArgument(
                f"something is running in session {self._record.session_id!r}",
                PERSON_RUNS
                if self._queue.is_empty
                else "Wait for it (get_execution), or end it with cancel_execution.",
                session_id=self._record.session_id,
            )

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Raise what stands in the way of storing its variables and files as an error for the caller."""
        try:
            yield
        except StateNotSaved as exc:
            if exc.is_full:
                raise self._not_stored("the disk is full", _MAKE_ROOM) from exc
            raise InvalidArgument(
                f"the variables of session {self._record.session_id!r} cannot be saved now: {'; '.join(exc.reasons)}",
                "If something named here still runs, end it and try again. If the variables are lost, run a cell: its "
                "result says so, and the session goes on without them.",
                session_id=self._record.session_id,
            ) from exc
        except StateRefused as exc:
            raise InvalidArgument(
                f"the variables of session {self._record.session_id!r} cannot be kept: the saved state {exc}",
                "Run a cell, which says what became of the variables, then try again. The files are kept.",
                session_id=self._record.session_id,
            ) from exc
        except StateNotLoaded as exc:
            raise InvalidArgument(
                f"the variables of session {self._record.session_id!r} cannot be restored: {exc}",
                "Nothing has changed. Use another checkpoint, or run the cells again: "
                "create_session(from_notebook='kernelmcp://sessions/ID/notebook').",
                session_id=self._record.session_id,
            ) from exc
        except OSError as exc:
            raise self._not_stored(exc.strerror or str(exc), room_or_rights(exc, _MAKE_ROOM)) from exc

    def _not_stored(self, why: str, advice: str) -> StorageFailed:
        session_id = self._record.session_id
        return StorageFailed(f"session {session_id!r} could not be stored: {why}", advice, session_id=session_id)


async def _no_files() -> None:
    pass


async def _delete(folders: list[Path]) -> None:
    for folder in folders:
        await anyio.to_thread.run_sync(delete_tree, folder)


def told_checkpoint(made: Checkpoint, kept: int) -> str:
    """What whoever asked for a checkpoint reads. `kept`: how many the session has."""
    what = "Variables and files" if made.number is not None else "Files (there are no variables)"
    unread = counted(made.left_out, "file that cannot be read is", "files that cannot be read are")
    left_out = f" {unread} not in it." if made.left_out else ""
    missing = f" Not in it: {', '.join(made.missing)}." if made.missing else ""
    return f"{what} are kept as checkpoint {made.name} ({size_of(made.size_bytes)}; {kept} in all).{missing}{left_out}"


def told_restored(found: Checkpoint, beginning: Beginning, record: Record) -> str:
    """What whoever went back reads."""
    what = "Variables and files are" if found.number is not None else "Files are"
    gone = "" if found.number is not None else " There are no variables in it."
    when = datetime.fromisoformat(found.created_at).strftime("%Y-%m-%d %H:%M:%S %Z")
    line = {each.folder for each in record.line}
    left = [each for each in record.checkpoints if each.folder not in line and each.created_at > found.created_at]
    kept = f" Later ones are kept: {listed([each.name for each in left])}." if left else ""
    return f"{what} as they were at checkpoint {found.name}, {when}.{gone}{told_missing(beginning)}{kept}"


def told_missing(beginning: Beginning) -> str:
    """What did not come back, as sentences after others; empty if everything did."""
    if beginning.lost:
        return f" The variables are lost: {'; '.join(beginning.missing)}."
    return f" Without {', '.join(beginning.missing)}." if beginning.missing else ""
