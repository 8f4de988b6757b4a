"""What has become of a session's variables, and what its next result says of it.

Decides by the record and by what it is told. Must not know executions or MCP, and moves no variables itself.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import structlog

from kernelmcp.executions.beginning import CUT_CELL, Beginning
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.hibernation.state_files import SavedState, StateNotSaved, few
from kernelmcp.sessions.storage.record import Record

log = structlog.get_logger(__name__)


class Variables:
    """The variables of one session. The record is on disk before they change: if the server is killed after that, what
    it says is true."""

    def __init__(self, record: Record, saved: SavedVariables, save_record: Callable[[], None]) -> None:
        self.saved = saved
        self._record = record
        self._save_record = save_record
        self.state: Literal["none", "present", "saved", "lost"] = "none"
        """Present once the kernel has run something, or has got the saved ones; lost until something else runs, or a
        result has said it."""
        if record.has_run:
            self.state = "saved" if saved.exist else "lost"
        self._untold = Beginning(lost=record.untold_loss, missing=record.untold)
        """What no result has said yet of what became of them."""
        self.runs = 0
        """How often something began to run in the kernel."""
        self._since = -1 if record.untold_loss else 0
        """The number of `runs` when that came about: only later executions can say it."""
        self._is_taken = False
        """The saved variables were saved from this kernel, which goes on."""
        self.began_as_checkpointed = False
        """`are_as_checkpointed` was true when the last execution began."""
        self.are_back = False
        """They have come back in this server: saved ones, or those of a checkpoint."""

    @property
    def are_lost(self) -> bool:
        """True if there were any, which are lost, and no result has said it."""
        return self.state == "lost"

    @property
    def are_as_checkpointed(self) -> bool:
        """True if the session is as at the checkpoint that it came from."""
        return self._record.is_unchanged and self.state != "lost"

    @property
    def are_unsaved(self) -> bool:
        """True if the kernel has some that are saved nowhere."""
        return self.state == "present" and not self.saved.exist

    @property
    def are_untouched(self) -> bool:
        """True if the saved ones came back, and nothing has run since. What was saved from this kernel may be older
        than they are: a timer of JavaScript runs code of which nobody is told."""
        return self.saved.exist and not self._is_taken

    # -- executions ---------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Note that an execution is about to be sent. Returns its number."""
        self.note_used(begins=True)
        return self.runs

    def note_used(self, *, begins: bool = False) -> None:
        """Note that something has run, perhaps by another client, so there are some. `begins`: it is about to."""
        if begins:
            self.began_as_checkpointed = self.are_as_checkpointed
        is_said, self._record.loss_is_said = self._record.loss_is_said, False
        if self.state == "lost":
            missing = self._untold.missing if self._is_loss_untold else []
            self._keep(Beginning(lost=True, missing=few([*missing, *self._record.why_lost]), is_said=is_said))
        self._note_run()
        self.state = "present"

    def take(self, number: int) -> Beginning:
        """Return what somebody who gets the result of this execution is to be told: no other result says it then."""
        found, since = self._untold, self._since
        if number <= since or found == Beginning():
            return Beginning()
        self._keep(Beginning())
        if found.lost or found.missing:
            self._save_record()
        return replace(found, is_older=found.lost and number > since + 1)

    def ended(self, *, guest_lost: bool, language: str | None) -> Callable[[], None]:
        """Note the end of an execution. `guest_lost`: its guest has lost the variables of its language, or all, while
        the kernel goes on. Until somebody gets its result, which says what it lost itself, and the returned function
        is called, that is untold."""
        before, since, kept = self._untold, self._since, None
        if guest_lost and not self._is_loss_untold:
            named = few([*before.missing, f"variables of {language}"]) if language else []
            kept = Beginning(lost=not language, missing=named)
            self._keep(kept)
        runs, are_lost = self.runs, self.state == "lost"  # with its kernel

        def tell() -> None:
            if kept is not None and self._untold is kept:
                self._keep(before, since)
                self._save_record()
            if are_lost and self.state == "lost" and self.runs == runs:
                self.state, self._record.has_run, self._record.why_lost = "none", False, []
                self._save_record()
            elif are_lost and self._is_loss_untold and self._since == runs:  # others have begun since
                self._keep(Beginning())
                self._save_record()

        return tell

    @property
    def _is_loss_untold(self) -> bool:
        return self._untold.lost and not self._untold.is_said

    def _keep(self, untold: Beginning, since: int | None = None) -> None:
        self._untold, self._since = untold, self.runs if since is None else since
        self._record.untold_loss, self._record.untold = self._is_loss_untold, untold.missing

    def _note_run(self) -> None:
        self.runs += 1
        self._is_taken = self._record.is_unchanged = False
        if self._record.has_run and not self._record.has_state and not self._record.why_lost:
            return
        if self._record.has_state and self.saved.forget() and self._record.has_run and not self._record.why_lost:
            return  # without its file, the state is gone, whatever the record says
        self._record.has_run, self._record.why_lost = True, []
        self._save_record()

    def end_cell(self) -> None:
        """The server ends and interrupts the running execution: the next one begins with what that has left."""
        if not self._is_loss_untold:
            self._keep(replace(self._untold, missing=few([CUT_CELL, *self._untold.missing])))

    # -- kernels ------------------------------------------------------------------------------------------------

    def kernel_began(self) -> None:
        """A fresh kernel is the session's."""
        self._is_taken = False

    def kernel_ended(self, why: str = "") -> None:
        """The kernel that had them, if any, has ended; why, if nothing else says it."""
        self._is_taken = False
        if self.state == "present":
            self.state = "saved" if self.saved.exist else "lost"
            if why and self.state == "lost":
                self._record.why_lost = [why]

    def came_back(self, found: Beginning) -> None:
        """The saved ones were put into a fresh kernel, or could not be."""
        self.state = "lost" if found.lost else "present"
        self.are_back = not found.lost
        if found.lost:
            self.saved.forget()
        before = self._untold
        if not self._is_loss_untold:
            missing = [] if before.lost else before.missing
            self._keep(found if found.lost else replace(found, missing=few([*missing, *found.missing])))
        elif not found.lost:
            self._keep(replace(before, restored_at=found.restored_at), self.runs - 1)

    def did_not_come_back(self) -> None:
        """The kernel that should have had them has ended. The next one may try again."""
        self.state = "saved" if self.saved.exist else "lost"

    def are_those_of(self, state: SavedState, *, is_own: bool) -> None:
        """The session has gone back to this state, or is a fork and begins with it. `is_own`: it is a checkpoint of
        the session, which becomes its saved state, so that a kill of the server costs nothing."""
        self.saved.forget()
        self.state = "none" if state.number is None else "present"
        self._keep(Beginning())
        # Since the record was written, the cell that asked has ended, and a browser may have sent something.
        self._record.has_run, self._record.is_unchanged = state.number is not None, is_own
        if is_own:
            try:
                self.saved.take(state)
                self._save_record()
            except OSError as exc:
                log.warning("a checkpoint's variables are not the saved ones", error=str(exc))

    # -- ends and copies ----------------------------------------------------------------------------------------

    def are_there(self) -> bool:
        """False if there are none to copy. Raises `StateNotSaved` if they are lost: nobody who was told of a copy would
        miss them in it."""
        if self.state == "none" or (self.state == "lost" and self._record.loss_is_said):
            return False
        if self.state == "lost" or self._is_loss_untold:
            raise self.not_saved()
        return True

    def not_saved(self) -> StateNotSaved:
        """The error of a copy of variables that are lost."""
        missing = self._untold.missing if self._untold.lost else []
        return StateNotSaved(["they are lost", *(missing or self._record.why_lost)])

    def were_copied(self, state: SavedState) -> None:
        """A checkpoint has them as they are now: they are saved. Raises OSError."""
        if not self.are_untouched:
            self.saved.take(state)
            self._is_taken = self.saved.exist

    def are_saved(self) -> None:
        """They are on disk, and the kernel is about to end."""
        self.state = "saved"

    def forget(self) -> None:
        """Lose them: the kernel is about to end, and they are not wanted."""
        if self.state in ("present", "saved"):
            self.state = "lost"
            self.saved.forget()

    def reset(self) -> None:
        """There are none any more, as somebody asked for that."""
        self._record.has_run = self._record.is_unchanged = self._record.loss_is_said = False
        self._record.last_execution, self._record.why_lost = "", []
        self.state = "none"
        self._keep(Beginning())
        self.saved.forget()
