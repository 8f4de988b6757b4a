"""Saves the variables of a session when its kernel ends, and puts them into its next kernel.

The record says whether the state on disk is the session's newest: once an execution has begun after it, it is not.
"""

import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from kernelmcp.atomic import sweep_drafts
from kernelmcp.errors import KernelDied, KernelStartFailed
from kernelmcp.executions.beginning import Beginning
from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import as_dict
from kernelmcp.sessions.hibernation.envelope import Envelope, StateRefused, key_of, read_envelope
from kernelmcp.sessions.hibernation.state_files import (
    MOVE_SECONDS,
    STATE_FILE,
    SavedState,
    StateNotSaved,
    base_of,
    names_of,
    save_state,
)
from kernelmcp.sessions.storage.record import Record

# On a full disk, an idle session tries again after two seconds, then four, and so on.
MOST_SECONDS_BETWEEN_ATTEMPTS = 3600.0
# Restores that are tried again after their kernel died or did not answer.
MORE_RESTORES = 1

log = structlog.get_logger(__name__)


class SavedVariables:
    """The saved variables of one session. Methods are called one at a time."""

    def __init__(self, home: Path, directory: Path, record: Record, *, enabled: bool) -> None:
        self.home = home
        self.file = directory / STATE_FILE
        self._record = record
        self._enabled = enabled
        self.has_no_room = False
        """The last attempt to save failed because the disk is full."""
        self.is_busy = False
        """It failed because the kernel was at work, for a cell or for another client."""
        self.next_attempt = 0.0
        """When to try again, by the monotonic clock: each attempt fills the disk for a moment."""
        self._attempts = 0
        self._failed_restores = 0
        sweep_drafts(self.file)  # of a server that was killed within a save
        record.has_state = record.has_state and self.file.exists()  # otherwise something has run since
        if (newer := self._newer()) is not None:
            record.last_number = newer.number
            self.note(newer.number, newer.base_number)
        elif not self.exist:
            self._delete()

    def _newer(self) -> Envelope | None:
        """The envelope of a state that the record does not name yet, because the server was killed in between. Had an
        execution begun since, it would have deleted the file. Whoever loads the state checks the envelope."""
        try:
            found = read_envelope(self.file)
        except (StateRefused, OSError):
            return None
        return found if found.number > self._record.last_number else None

    @property
    def exist(self) -> bool:
        return self._record.state_number > 0 and self._record.has_state

    async def save(self, kernel: Kernel, max_bytes: int) -> bool:
        """Save the variables of a kernel that is about to end. False if that is impossible; the record has the reasons.
        The caller writes the record."""
        self._record.why_lost, self.has_no_room, self.is_busy = [], False, False
        if not self._enabled:
            self._record.has_state = False
            return False
        try:
            found, _ = await save_state(kernel, self.home, self.file, self._record, max_bytes, {})
            self.note(found.number)
        except StateNotSaved as exc:
            if self.exist:  # what was saved after the last cell is better than nothing
                return True
            log.warning(
                "variables are not saved",
                session=self._record.session_id,
                principal=self._record.principal,
                reasons=exc.reasons,
            )
            self._record.why_lost, self.has_no_room, self.is_busy = exc.reasons, exc.is_full, exc.is_busy
            self.forget()
            if self.has_no_room:
                self._attempts += 1
                self.next_attempt = time.monotonic() + min(2.0**self._attempts, MOST_SECONDS_BETWEEN_ATTEMPTS)
            return False
        self._attempts = 0
        return True

    @property
    def state(self) -> SavedState:
        record = self._record
        return SavedState(
            self.file, record, record.state_number, record.state_base, is_elsewhere=record.state_is_elsewhere
        )

    def note(self, number: int, base_number: int | None = None, *, is_elsewhere: bool = False) -> None:
        """Note that the file has the session's newest state, with this number. The caller writes the record."""
        record = self._record
        record.state_number, record.state_base, record.state_is_elsewhere = number, base_number, is_elsewhere
        record.has_state, record.why_lost = True, []

    def take(self, state: SavedState) -> None:
        """Have another state of the session as its newest one. The caller writes the record. Raises OSError."""
        if self._enabled and state.number is not None:
            self.forget()
            state.link(self.file)
            self.note(state.number, state.base_number, is_elsewhere=state.is_elsewhere)

    async def restore(self, kernel: Kernel) -> Beginning:
        """Put the saved variables into a fresh kernel; the caller has moved the files there.

        Raises `KernelStartFailed` if the kernel died or did not answer in time: it must not be used. The next one may
        try once more; then the variables are lost. They are not if the disk does not give them: that raises it, too.
        """
        try:
            return await self.load(kernel, self.state)
        except KernelStartFailed as exc:
            self._failed_restores += 1
            if self._failed_restores > MORE_RESTORES:
                self._record.why_lost = [exc.message]
                self.forget()
            raise
        except OSError as exc:  # it says nothing about the state, which may be readable another time
            raise KernelStartFailed(
                f"the session's saved variables cannot be read now: {exc.strerror}",
                "Try again; the operator should check the disk, and who may read the home directory. To go on "
                "without them: reset_workspace(scope='variables').",
            ) from exc

    async def load(self, kernel: Kernel, state: SavedState) -> Beginning:
        """Put any state into a fresh kernel. Raises `KernelStartFailed` as `restore`, OSError if the disk fails."""
        try:
            with anyio.fail_after(MOVE_SECONDS):
                key = key_of(self.home)
                found, parts = await anyio.to_thread.run_sync(_checked, state, key)
                reply = as_dict((await kernel.load_state(parts, _request(found, state))).get("content"))
            _check_passing(reply)
        except StateRefused as exc:
            return self._lost([f"the saved state {exc}"])
        except (TimeoutError, KernelDied) as exc:
            why = exc.message if isinstance(exc, KernelDied) else "they were not loaded in time"
            raise KernelStartFailed(f"the session's variables could not be restored: {why}", "Try again.") from exc
        if reply.get("status") != "ok":
            return self._lost([f"the saved state was not loaded: {why}" for why in names_of(reply.get("reasons"))])
        lost = names_of(reply.get("lost"))
        unloaded = [f"variables of {each}" for each in names_of(reply.get("unloaded"))]
        return Beginning(restored_at=found.saved_at, missing=[*found.dead, *lost, *unloaded])

    def _lost(self, reasons: list[str]) -> Beginning:
        log.error(
            "variables are not restored",
            session=self._record.session_id,
            principal=self._record.principal,
            reasons=reasons,
        )
        return Beginning(lost=True, missing=reasons)

    def forget(self) -> bool:
        """Delete the saved variables: they have changed since, or are not wanted. False if that is impossible: then the
        record must say it."""
        self._record.has_state = False
        self._failed_restores = 0
        return self._delete()

    def _delete(self) -> bool:
        try:
            self.file.unlink(missing_ok=True)
            base_of(self.file).unlink(missing_ok=True)
            return True
        except OSError as exc:
            log.warning(
                "a saved state could not be deleted",
                session=self._record.session_id,
                principal=self._record.principal,
                error=str(exc),
            )
            return False


def _checked(state: SavedState, key: bytes) -> tuple[Envelope, list[tuple[Path, int]]]:
    """A state's envelope, and the files to load. Raises `StateRefused` also if one is not there; OSError."""
    try:
        found = state.check(key)
        return found, state.parts(found, key)
    except FileNotFoundError as exc:
        raise StateRefused(f"cannot be read: {exc.strerror}") from exc


def _check_passing(reply: dict[str, Any]) -> None:
    """Raise the error of a kernel that could not load the state now: OSError if it was the disk, else `KernelDied`."""
    if reply.get("status") == "ok" or reply.get("is_passing") is not True:
        return
    reasons, number = "; ".join(names_of(reply.get("reasons"))), reply.get("errno")
    raise OSError(number, reasons) if isinstance(number, int) else KernelDied(reasons)


def _request(found: Envelope, state: SavedState) -> dict[str, Any]:
    return {
        "image": found.image,
        "mounts": found.mounts,
        "execution_count": found.execution_count,
        "others": msgspec.to_builtins(found.others),
        "reseed": state.is_elsewhere,
    }
