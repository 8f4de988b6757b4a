"""What has become of a session's variables, by what has happened, and what the next server reads of it on disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelmcp.executions.beginning import CUT_CELL, Beginning
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.hibernation.session_variables import Variables
from kernelmcp.sessions.hibernation.state_files import MAX_NAMES_BYTES, STATE_FILE, SavedState, StateNotSaved
from kernelmcp.sessions.storage.record import Record, now, read_record


class Server:
    """What one server process has of a session's variables. A killed one does nothing more, so this has no end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.record = read_record(directory) or Record(
            session_id="s", principal="local", created_at=now(), last_used_at=now()
        )
        self.saved = SavedVariables(directory.parent, directory, self.record, enabled=True)
        self.variables = Variables(self.record, self.saved, self.save_record)

    def save_record(self) -> None:
        self.record.write(self.directory)

    def save(self) -> None:
        """What a save of the kernel's variables leaves; their bytes don't matter here."""
        (self.directory / STATE_FILE).write_bytes(b"state")
        self.saved.note(self.record.state_number + 1)

    def stop(self) -> None:
        self.save()
        self.variables.are_saved()
        self.variables.kernel_ended()
        self.save_record()

    def run(self, *, loses: bool = False, language: str | None = None) -> Callable[[], Beginning]:
        """An execution. Returns a function that is called when somebody gets the result, and returns what that says of
        earlier variables."""
        number = self.variables.begin()
        tell = self.variables.ended(guest_lost=loses, language=language)

        def told() -> Beginning:
            tell()
            return self.variables.take(number)

        return told

    def run_and_tell(self) -> Beginning:
        return self.run()()

    def checkpoint(self, number: int | None = 7) -> SavedState:
        folder = self.directory / "checkpoint"
        folder.mkdir(exist_ok=True)
        (folder / STATE_FILE).write_bytes(b"checkpointed")
        return SavedState(folder / STATE_FILE, self.record, number, is_elsewhere=True)


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], Server]:
    """Start a server on the same home as the one before it."""
    (tmp_path / "s").mkdir()
    return lambda: Server(tmp_path / "s")


def test_the_first_execution_is_on_disk_before_it_is_sent(start: Callable[[], Server]) -> None:
    killed = start()
    assert not killed.run_and_tell().lost  # there was nothing to lose
    written = read_record(killed.directory)
    assert written is not None
    assert written.has_run
    following = start()
    assert following.variables.are_lost
    assert following.run_and_tell().lost  # what it had is lost
    assert not following.run_and_tell().lost  # and that is said once
    assert not following.variables.are_lost


def test_what_another_client_executes_is_on_disk_at_once(start: Callable[[], Server]) -> None:
    start().variables.note_used()
    assert start().run_and_tell().lost


def test_a_persons_cell_passes_a_loss_on_to_the_next_execution(start: Callable[[], Server]) -> None:
    killed = start()
    killed.variables.begin()
    killed.record.why_lost = ["a timer"]
    killed.save_record()
    following = start()
    following.variables.note_used()
    found = following.run_and_tell()
    assert (found.lost, found.missing, found.is_older) == (True, ["a timer"], True)
    assert not following.run_and_tell().lost


@pytest.mark.parametrize("number", [0, 1])
def test_a_loss_is_said_by_the_first_result_that_somebody_gets(start: Callable[[], Server], *, number: int) -> None:
    start().variables.begin()
    server = start()
    results = [server.run(), server.run()]
    found = results.pop(number)()
    assert (found.lost, found.is_older) == (True, number == 1)
    assert not results[0]().lost
    assert not server.run_and_tell().lost


def test_an_older_result_does_not_say_what_came_later(start: Callable[[], Server]) -> None:
    server = start()
    older = server.run()
    server.run(loses=True)
    assert not older().lost
    found = server.run_and_tell()
    assert (found.lost, found.is_older) == (True, False)


def test_a_loss_after_the_one_that_a_note_has_told_is_said(start: Callable[[], Server]) -> None:
    start().variables.begin()
    server = start()
    server.record.loss_is_said = True
    server.run(loses=True)
    found = server.run_and_tell()
    assert (found.lost, found.is_said) == (True, False)


def test_what_a_note_has_told_is_not_said_by_the_next_server(start: Callable[[], Server]) -> None:
    start().variables.begin()
    server = start()
    server.record.loss_is_said = True
    server.run()
    server.stop()
    following = start()
    following.variables.came_back(Beginning(restored_at="then"))
    assert following.variables.are_there()
    assert not following.run_and_tell().lost


def test_variables_that_come_back_after_a_loss_that_a_note_has_told_are_back(start: Callable[[], Server]) -> None:
    start().variables.begin()
    server = start()
    server.record.loss_is_said = True
    server.run()
    server.stop()
    server.variables.came_back(Beginning(restored_at="then"))
    found = server.run_and_tell()
    assert (found.lost, found.restored_at) == (False, "then")


def test_a_reset_ends_a_cell_that_is_not_missed(start: Callable[[], Server]) -> None:
    server = start()
    number = server.variables.begin()
    server.variables.kernel_ended()
    server.variables.reset()
    server.variables.ended(guest_lost=False, language=None)
    assert not server.variables.take(number).lost
    assert not server.run_and_tell().lost


def test_an_untold_loss_outlives_a_server_whose_variables_are_saved(start: Callable[[], Server]) -> None:
    killed = start()
    killed.variables.begin()
    killed.record.why_lost = ["a timer"]
    killed.save_record()
    stopped = start()
    stopped.variables.note_used()
    stopped.stop()
    following = start()
    following.variables.came_back(Beginning(restored_at="then", missing=["variables of shell"]))
    found = following.run_and_tell()
    assert (found.lost, found.missing, found.restored_at) == (True, ["a timer"], "then")
    written = read_record(following.directory)
    assert written is not None
    assert not written.untold_loss


def test_what_did_not_come_back_is_said_after_another_stop(start: Callable[[], Server]) -> None:
    start().stop()
    stopped = start()
    stopped.variables.came_back(Beginning(restored_at="then", missing=["variables of shell"]))
    stopped.variables.note_used()
    stopped.stop()
    following = start()
    following.variables.came_back(Beginning(restored_at="later", missing=["a file"]))
    found = following.run_and_tell()
    assert (found.lost, found.missing, found.restored_at) == (False, ["variables of shell", "a file"], "later")


@pytest.mark.parametrize("is_saved", [True, False])
def test_what_a_cell_has_left_that_ran_when_the_server_ended_is_said_to_be_that(
    start: Callable[[], Server], *, is_saved: bool
) -> None:
    ended = start()
    running = ended.run()
    ended.variables.end_cell()
    ended.variables.end_cell()  # after the interrupt of a drain
    assert running().missing == []
    if is_saved:
        ended.stop()
    else:
        ended.record.why_lost = ["a timer"]
        ended.save_record()
    following = start()
    if is_saved:
        following.variables.came_back(Beginning(restored_at="then"))
    found = following.run_and_tell()
    assert (found.lost, found.missing) == (not is_saved, [CUT_CELL] if is_saved else ["a timer"])
    assert following.run_and_tell().missing == []


def test_saved_variables_are_brought_back_by_the_next_server(start: Callable[[], Server]) -> None:
    stopped = start()
    stopped.variables.begin()
    assert stopped.variables.are_unsaved
    stopped.stop()
    following = start()
    assert (following.variables.state, following.variables.are_back) == ("saved", False)
    following.variables.came_back(Beginning(restored_at="then"))
    following.variables.kernel_began()
    assert (following.variables.state, following.variables.are_back) == ("present", True)
    assert following.variables.are_untouched  # a stop now needs no save
    assert following.run_and_tell().restored_at == "then"
    assert following.variables.are_unsaved
    assert not (following.directory / STATE_FILE).exists()
    assert start().run_and_tell().lost


def test_a_restore_that_fails_is_said_once_and_deletes_the_state(start: Callable[[], Server]) -> None:
    start().stop()
    following = start()
    following.record.has_run = True
    following.variables.did_not_come_back()
    assert following.variables.state == "saved"  # another kernel may try
    following.variables.came_back(Beginning(lost=True, missing=["of an older version"]))
    assert not (following.directory / STATE_FILE).exists()
    assert not following.variables.are_back
    assert following.run_and_tell().missing == ["of an older version"]
    assert not following.run_and_tell().lost


def test_the_end_of_a_kernel_loses_what_is_not_saved(start: Callable[[], Server]) -> None:
    server = start()
    server.run_and_tell()
    server.variables.kernel_ended()
    assert server.variables.are_lost
    assert server.run_and_tell().lost


@pytest.mark.parametrize("is_told", [False, True])
def test_a_cell_that_ends_its_kernel_is_followed_by_one_that_says_so(
    start: Callable[[], Server], *, is_told: bool
) -> None:
    server = start()
    server.variables.begin()
    server.variables.kernel_ended()
    tell = server.variables.ended(guest_lost=False, language=None)
    if is_told:
        tell()
    assert server.record.has_run is not is_told
    assert server.run_and_tell().lost is not is_told
    assert not server.run_and_tell().lost


def test_a_cell_that_began_after_a_loss_does_not_say_what_was_read_meanwhile(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    server.variables.kernel_ended()
    tell = server.variables.ended(guest_lost=False, language=None)
    second = server.run()
    tell()
    assert not second().lost


def test_a_result_that_is_read_late_hides_no_later_loss(start: Callable[[], Server]) -> None:
    server = start()
    first = server.run()
    server.variables.kernel_ended()  # a stop
    first()
    assert server.run_and_tell().lost


def test_the_loss_of_a_language_is_named(start: Callable[[], Server]) -> None:
    server = start()
    server.run(loses=True, language="javascript")
    server.run(loses=True, language="javascript")
    found = server.run_and_tell()
    assert (found.lost, found.missing) == (False, ["variables of javascript"])
    assert not server.run_and_tell().missing


def test_what_waits_to_be_told_takes_little_room_in_the_record(start: Callable[[], Server]) -> None:
    server = start()
    for number in range(1000):
        server.run(loses=True, language=f"language{number}")
    assert "variables of language0" in server.record.untold
    assert len(json.dumps(server.record.untold)) < 2 * MAX_NAMES_BYTES


def test_a_restore_is_no_reason_of_a_later_loss(start: Callable[[], Server]) -> None:
    start().stop()
    server = start()
    server.variables.came_back(Beginning(restored_at="then", missing=["a JavaScript object"]))
    server.variables.forget()
    assert server.run_and_tell().missing == []


def test_a_copy_saves_the_variables_until_something_runs(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    assert server.variables.are_there()
    server.variables.were_copied(server.checkpoint())
    assert not server.variables.are_unsaved
    assert not server.variables.are_untouched  # a timer may change them
    server.variables.kernel_ended()
    assert server.variables.state == "saved"
    server.variables.came_back(Beginning(restored_at="then"))
    server.variables.begin()
    server.variables.kernel_ended()
    assert server.variables.are_lost


def test_lost_variables_are_not_copied_before_somebody_was_told(start: Callable[[], Server]) -> None:
    start().variables.begin()
    server = start()
    with pytest.raises(StateNotSaved, match="they are lost"):
        server.variables.are_there()
    server.record.loss_is_said = True  # by the note of the continued session
    assert server.variables.are_there() is False
    server.record.loss_is_said = False
    server.variables.note_used()
    with pytest.raises(StateNotSaved, match="they are lost"):
        server.variables.are_there()
    told = server.run()
    with pytest.raises(StateNotSaved, match="they are lost"):
        server.variables.are_there()
    told()
    assert server.variables.are_there()


def test_a_session_that_went_back_has_the_checkpoint_as_its_saved_state(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    server.variables.are_those_of(server.checkpoint(), is_own=True)
    assert server.variables.state == "present"
    assert (server.directory / STATE_FILE).read_bytes() == b"checkpointed"
    assert start().variables.state == "saved"  # a kill costs nothing


@pytest.mark.parametrize("number", [7, None])
def test_messages_of_the_kernel_that_a_session_leaves_change_nothing(
    start: Callable[[], Server], number: int | None
) -> None:
    server = start()
    server.variables.begin()
    server.record.has_run, server.record.is_unchanged = number is not None, True  # as going back writes it
    server.variables.note_used()  # the cell that asked for it ends, or a browser sends something
    server.variables.are_those_of(server.checkpoint(number), is_own=True)
    assert server.variables.are_as_checkpointed
    following = start()
    assert following.variables.are_as_checkpointed
    assert following.variables.state == ("none" if number is None else "saved")


def test_a_fork_and_a_checkpoint_without_variables_leave_no_saved_state(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.are_those_of(server.checkpoint(), is_own=False)
    assert (server.variables.state, server.saved.exist) == ("present", False)
    server.variables.are_those_of(server.checkpoint(None), is_own=True)
    assert (server.variables.state, server.saved.exist) == ("none", False)
    assert not server.run_and_tell().lost


def test_an_unwanted_state_is_lost_and_a_reset_is_no_loss(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    server.stop()
    server.variables.forget()
    assert server.variables.are_lost
    assert not server.saved.exist
    server.variables.reset()
    assert not server.run_and_tell().lost


def test_after_a_reset_nothing_says_why_variables_were_lost(start: Callable[[], Server]) -> None:
    server = start()
    server.run_and_tell()
    server.variables.kernel_ended("the kernel process ended unexpectedly")
    assert server.record.why_lost
    server.variables.reset()
    assert server.record.why_lost == []  # `stop_session` says what is there


def test_a_session_is_as_checkpointed_until_something_runs_or_is_lost(start: Callable[[], Server]) -> None:
    server = start()
    server.record.is_unchanged = True
    assert server.variables.are_as_checkpointed
    server.variables.begin()
    assert server.variables.began_as_checkpointed
    assert not server.variables.are_as_checkpointed
    server.variables.kernel_ended()
    server.record.is_unchanged = True
    assert not server.variables.are_as_checkpointed
