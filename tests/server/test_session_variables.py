"""What has become of a session's variables, by what has happened, and what the next server reads of it on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelmcp.sessions.hibernation.saved_variables import Beginning, SavedVariables
from kernelmcp.sessions.hibernation.session_variables import Variables
from kernelmcp.sessions.hibernation.state_files import STATE_FILE, SavedState, StateNotSaved
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
        self.variables.kernel_ended(is_reported=False)
        self.save_record()

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
    assert not killed.variables.begin().lost  # there was nothing to lose
    assert not killed.variables.begin().lost
    written = read_record(killed.directory)
    assert written is not None
    assert written.has_run
    following = start().variables
    assert following.are_lost
    assert following.begin().lost  # what it had is lost
    assert not following.begin().lost  # and that is said once
    assert not following.are_lost


def test_what_another_client_executes_is_on_disk_at_once(start: Callable[[], Server]) -> None:
    start().variables.note_used()
    assert start().variables.begin().lost


def test_a_persons_cell_passes_a_loss_on_to_the_next_execution(start: Callable[[], Server]) -> None:
    killed = start()
    killed.variables.begin()
    killed.record.why_lost = ["a timer"]
    killed.save_record()
    following = start().variables
    following.note_used()
    found = following.begin()
    assert (found.lost, found.missing) == (True, ["a timer"])
    assert not following.begin().lost


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
    assert following.variables.begin().restored_at == "then"
    assert following.variables.are_unsaved
    assert not (following.directory / STATE_FILE).exists()
    assert start().variables.begin().lost


def test_a_restore_that_fails_is_said_once_and_deletes_the_state(start: Callable[[], Server]) -> None:
    start().stop()
    following = start()
    following.record.has_run = True
    following.variables.did_not_come_back()
    assert following.variables.state == "saved"  # another kernel may try
    following.variables.came_back(Beginning(lost=True, missing=["of an older version"]))
    assert not (following.directory / STATE_FILE).exists()
    assert not following.variables.are_back
    assert following.variables.begin().missing == ["of an older version"]
    assert not following.variables.begin().lost


@pytest.mark.parametrize("is_reported", [False, True])
def test_the_end_of_a_kernel_loses_what_is_not_saved(start: Callable[[], Server], *, is_reported: bool) -> None:
    server = start()
    server.variables.begin()
    server.variables.kernel_ended(is_reported=is_reported)
    assert server.variables.are_lost is not is_reported
    assert server.record.has_run is not is_reported
    assert server.variables.begin().lost is not is_reported


def test_an_end_that_is_reported_after_a_stop_is_not_said_again(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    server.variables.kernel_ended(is_reported=False)
    server.variables.kernel_ended(is_reported=True)  # the cell that ran has told its caller
    assert not server.variables.begin().lost


def test_a_copy_saves_the_variables_until_something_runs(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    assert server.variables.are_there()
    server.variables.were_copied(server.checkpoint())
    assert not server.variables.are_unsaved
    assert not server.variables.are_untouched  # a timer may change them
    server.variables.kernel_ended(is_reported=False)
    assert server.variables.state == "saved"
    server.variables.came_back(Beginning(restored_at="then"))
    server.variables.begin()
    server.variables.kernel_ended(is_reported=False)
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
    server.variables.begin()
    assert server.variables.are_there()


def test_a_session_that_went_back_has_the_checkpoint_as_its_saved_state(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    server.variables.are_those_of(server.checkpoint(), is_own=True)
    assert server.variables.state == "present"
    assert (server.directory / STATE_FILE).read_bytes() == b"checkpointed"
    assert start().variables.state == "saved"  # a kill costs nothing


def test_a_fork_and_a_checkpoint_without_variables_leave_no_saved_state(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.are_those_of(server.checkpoint(), is_own=False)
    assert (server.variables.state, server.saved.exist) == ("present", False)
    server.variables.are_those_of(server.checkpoint(None), is_own=True)
    assert (server.variables.state, server.saved.exist) == ("none", False)
    assert not server.variables.begin().lost


def test_an_unwanted_state_is_lost_and_a_reset_is_no_loss(start: Callable[[], Server]) -> None:
    server = start()
    server.variables.begin()
    server.stop()
    server.variables.forget()
    assert server.variables.are_lost
    assert not server.saved.exist
    server.variables.reset()
    assert not server.variables.begin().lost


def test_a_session_is_as_checkpointed_until_something_runs_or_is_lost(start: Callable[[], Server]) -> None:
    server = start()
    server.record.is_unchanged = True
    assert server.variables.are_as_checkpointed
    server.variables.begin()
    assert server.variables.began_as_checkpointed
    assert not server.variables.are_as_checkpointed
    server.variables.kernel_ended(is_reported=False)
    server.record.is_unchanged = True
    assert not server.variables.are_as_checkpointed
