"""What has become of a session's variables, and what its next result says of it.

Decides by the record and by what it is told. Must not know executions or MCP, and moves no variables itself.
"""

from collections.abc import Callable
from typing import Literal

import structlog

from kernelmcp.sessions.hibernation.saved_variables import Beginning, SavedVariables
from kernelmcp.sessions.hibernation.state_files import SavedState, StateNotSaved
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
        """Present once the kernel has run something, or has got the saved ones; lost until an execution has reported
        the loss."""
        if record.has_run:
            self.state = "saved" if saved.exist else "lost"
        self._beginning = Beginning()
        """What the next execution reports of the saved variables."""
        self.runs = 0
        """How often something began to run in the kernel."""
        self._is_taken = False
        """The saved variables were saved from this kernel, which goes on."""
        self.began_as_checkpointed = False
        """`are_as_checkpointed` was true when the last execution began."""
        self.are_back = False
        """They have come back in this server: saved ones, or those of a checkpoint."""

    @property
    def are_lost(self) -> bool:
        """True if there were any, which are lost, and no execution has reported it."""
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

    def begin(self) -> Beginning:
        """Note that an execution is about to be sent. Returns what it must report of earlier variables."""
        why = self._record.why_lost
        self.began_as_checkpointed = self.are_as_checkpointed
        self._note_run()
        before, self.state = self.state, "present"
        found, self._beginning = self._beginning, Beginning()
        is_said, self._record.loss_is_said = self._record.loss_is_said, False
        return Beginning(lost=True, missing=found.missing or why, is_said=is_said) if before == "lost" else found

    def note_used(self, *, begins: bool = False) -> None:
        """Note that another client has executed something, so there are some. `begins`: it is about to."""
        why = self._record.why_lost
        if begins:
            self.began_as_checkpointed = self.are_as_checkpointed
        self._note_run()
        if self.state == "lost":  # which the next execution reports
            is_said, self._record.loss_is_said = self._record.loss_is_said, False
            self._beginning = Beginning(lost=True, missing=self._beginning.missing or why, is_said=is_said)
        self.state = "present"

    def _note_run(self) -> None:
        self.runs += 1
        self._is_taken = self._record.is_unchanged = False
        if self._record.has_run and not self._record.has_state and not self._record.why_lost:
            return
        if self._record.has_state and self.saved.forget() and self._record.has_run and not self._record.why_lost:
            return  # without its file, the state is gone, whatever the record says
        self._record.has_run, self._record.why_lost = True, []
        self._save_record()

    # -- kernels ------------------------------------------------------------------------------------------------

    def kernel_began(self) -> None:
        """A fresh kernel is the session's."""
        self._is_taken = False

    def kernel_ended(self, *, is_reported: bool) -> None:
        """The kernel that had them, if any, has ended. The next execution reports a loss, unless one `is_reported`."""
        self._is_taken = False
        if self.state == "present":
            self.state = "saved" if self.saved.exist else "lost"
        if is_reported and self.state == "lost":
            self.state, self._record.has_run = "none", False

    def came_back(self, found: Beginning) -> None:
        """The saved ones were put into a fresh kernel, or could not be."""
        self.state = "lost" if found.lost else "present"
        self.are_back = not found.lost
        if found.lost:
            self.saved.forget()
        if not self._beginning.lost:  # otherwise an earlier loss is still to be reported
            self._beginning = found

    def did_not_come_back(self) -> None:
        """The kernel that should have had them has ended. The next one may try again."""
        self.state = "saved" if self.saved.exist else "lost"

    def are_those_of(self, state: SavedState, *, is_own: bool) -> None:
        """The session has gone back to this state, or is a fork and begins with it. `is_own`: it is a checkpoint of
        the session, which becomes its saved state, so that a kill of the server costs nothing."""
        self.saved.forget()
        self.state, self._beginning = "none" if state.number is None else "present", Beginning()
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
        if self.state == "lost" or (self._beginning.lost and not self._beginning.is_said):
            raise self.not_saved()
        return True

    def not_saved(self) -> StateNotSaved:
        """The error of a copy of variables that are lost."""
        return StateNotSaved(["they are lost", *(self._beginning.missing or self._record.why_lost)])

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
        self.state, self._beginning = "none", Beginning()
        self.saved.forget()
