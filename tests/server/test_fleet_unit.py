"""Servers that share a home, without processes: what they see of each other, and who has a session."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kernelmcp.cells import event
from kernelmcp.cells.log import CellLog
from kernelmcp.cells.lookup import requests
from kernelmcp.config.settings import Settings
from kernelmcp.errors import SessionDamaged, SessionInUse
from kernelmcp.executions.ids import MARK_CHARS, is_id, mark_in, mark_of, mint_id
from kernelmcp.files import epochs
from kernelmcp.files.home import RECORD_FILES, Home, open_home
from kernelmcp.files.locks import LOCK_FILE, free_place, lock_session, owner_of_lock
from kernelmcp.sessions.fleet import fleet
from kernelmcp.sessions.fleet.beats import BEAT_SECONDS, DEAD_SECONDS, LOOK_SECONDS, SURE_SECONDS, Beats
from kernelmcp.sessions.fleet.takeover import take_over
from kernelmcp.sessions.storage.old_sessions import OldSessions
from kernelmcp.sessions.storage.record import Record, now, read_record
from kernelmcp.sessions.storage.stored import StoredSessions

from .fleet_model import World
from .support import DEADLINE

SCHEDULES, STEPS = 90, 1_200
LAST = (*RECORD_FILES, LOCK_FILE)


@pytest.mark.parametrize("first", range(0, SCHEDULES, 30))
def test_no_confirmed_cell_is_lost_whatever_the_order(first: int, tmp_path: Path) -> None:
    """`pytest -m slow` has ten times as many (test_fleet_schedules.py)."""
    takeovers = deletions = 0
    for seed in range(first, first + 30):
        world = World(tmp_path / str(seed), seed)
        world.run(STEPS)
        takeovers += world.takeovers
        deletions += world.deletions
    assert takeovers > 0
    assert deletions > 0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watching:
    """A server that watches another one, `s1`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.other = Beats(folder, "s1", "aaaa", self.clock)
        self.own = Beats(folder, "s2", "bbbb", self.clock)

    def go_on(self, seconds: float, *, beats: bool = False) -> None:
        for _ in range(round(seconds / BEAT_SECONDS)):
            self.clock.now += BEAT_SECONDS
            if beats:
                self.other.beat()
            self.own.look()

    @property
    def is_dead(self) -> bool:
        return self.own.is_dead("s1")


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(tmp_path)


class TestBeats:
    def test_a_server_that_beats_lives(self, watching: Watching) -> None:
        watching.go_on(5 * DEAD_SECONDS, beats=True)
        assert not watching.is_dead

    def test_one_that_stops_is_dead_after_a_while(self, watching: Watching) -> None:
        watching.go_on(3, beats=True)
        watching.go_on(DEAD_SECONDS - BEAT_SECONDS)
        assert not watching.is_dead
        watching.go_on(BEAT_SECONDS)
        assert watching.is_dead
        watching.other.beat()
        assert not watching.is_dead

    def test_one_that_has_never_beaten_is_dead_as_late(self, watching: Watching) -> None:
        assert not watching.is_dead
        watching.go_on(DEAD_SECONDS)
        assert watching.is_dead

    def test_who_has_not_looked_knows_nothing(self, watching: Watching) -> None:
        """It was paused itself: the other one may have beaten meanwhile, and been dead only since."""
        watching.go_on(3, beats=True)
        watching.clock.now += 10 * DEAD_SECONDS
        assert not watching.is_dead
        watching.own.look()
        assert not watching.is_dead
        watching.go_on(DEAD_SECONDS - BEAT_SECONDS)
        assert not watching.is_dead

    @pytest.mark.parametrize("content", [b"", b"\0" * 500, b"aaaa 99999999999999999999\n", b"\xff", b"{"])
    def test_what_is_in_a_file_means_nothing(self, watching: Watching, content: bytes) -> None:
        watching.go_on(3, beats=True)
        (watching.folder / "s1.beat").write_bytes(content)
        watching.go_on(DEAD_SECONDS)
        assert not watching.is_dead
        watching.go_on(BEAT_SECONDS)
        assert watching.is_dead
        watching.go_on(1, beats=True)
        assert not watching.is_dead

    @pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
    def test_a_file_of_another_kind_does_not_beat(self, watching: Watching, kind: str) -> None:
        file = watching.folder / "s1.beat"
        match kind:
            case "link":
                file.symlink_to("/dev/zero")
            case "directory":
                file.mkdir()
            case _:
                os.mkfifo(file)
        watching.go_on(DEAD_SECONDS + BEAT_SECONDS)
        assert watching.is_dead
        if kind != "pipe":
            with pytest.raises(OSError, match=r"symbolic|directory"):
                watching.other.beat()

    def test_clocks_do_not_matter(self, watching: Watching) -> None:
        watching.other = Beats(watching.folder, "s1", "aaaa", lambda: -(10.0**9))
        watching.go_on(5 * DEAD_SECONDS, beats=True)
        assert not watching.is_dead
        watching.go_on(DEAD_SECONDS)
        assert watching.is_dead

    def test_the_time_of_a_beat_is_the_one_before_it(self, watching: Watching) -> None:
        times = iter([5.0, 6.0])
        assert Beats(watching.folder, "s3", "cccc", lambda: next(times)).beat() == 6.0
        assert LOOK_SECONDS < DEAD_SECONDS


@pytest.fixture
def session(tmp_path: Path) -> Path:
    directory = tmp_path / "session"
    directory.mkdir()
    for name in (*RECORD_FILES, "notebook.jsonl", "state", LOCK_FILE):
        (directory / name).write_text(name)
    return directory


class TestEpochs:
    def test_a_session_is_where_it_was_until_one_is_published(self, session: Path) -> None:
        assert epochs.place_of(session) == session
        draft = epochs.draft_epoch(session)
        assert epochs.place_of(session) == session
        (draft / "state").write_text("new")
        assert epochs.publish(draft)
        place = epochs.place_of(session)
        assert place == session / "epochs" / "1"
        assert epochs.session_directory(place) == session
        assert epochs.place_of(place) == place

    def test_only_one_server_publishes(self, session: Path) -> None:
        drafts = [epochs.draft_epoch(session) for _ in range(3)]
        for draft in drafts:
            (draft / "state").write_text(draft.name)
        assert [epochs.publish(draft) for draft in drafts] == [True, False, False]
        assert (epochs.place_of(session) / "state").read_text() == drafts[0].name
        assert os.listdir(session / "epochs") == ["1"]

    def test_what_is_revoked_is_not_published(self, session: Path) -> None:
        draft = epochs.draft_epoch(session)
        (draft / "state").write_text("new")
        epochs.revoke(session)
        assert not epochs.publish(draft)
        assert epochs.place_of(session) == session
        epochs.sweep(session)
        assert os.listdir(session / "epochs") == []

    def test_numbers_are_numbers(self, session: Path) -> None:
        for name in ("9", "10", "0", "007", "x", "1e3", "٣", "1234567890123"):
            (session / "epochs" / name).mkdir(parents=True)
        assert epochs.place_of(session).name == "10"

    def test_a_copy_shares_what_is_replaced_and_has_whole_lines(self, session: Path, tmp_path: Path) -> None:
        (session / "notebook.jsonl").write_text("one\ntwo\nthr")
        (session / "checkpoints" / "a").mkdir(parents=True)
        (session / "checkpoints" / "a" / "file").write_text("kept")
        (session / "checkpoints" / "a" / "notebook.jsonl").write_text("a user's, without a newline")
        (session / ".state.draft").write_text("of a write that was interrupted")
        (session / "checkpoints" / "a" / "link").symlink_to("/etc/passwd")
        draft = epochs.draft_epoch(session)
        epochs.copy_place(session, draft, "notebook.jsonl", frozenset({LOCK_FILE, epochs.EPOCHS}))
        copied = {name for name in os.listdir(draft) if not name.startswith(".draft")}
        assert copied == {*RECORD_FILES, "checkpoints", "notebook.jsonl", "state"}
        assert (draft / "notebook.jsonl").read_text() == "one\ntwo\n"
        with (session / "notebook.jsonl").open("a") as stream:
            stream.write("ee\n")
        assert (draft / "notebook.jsonl").read_text() == "one\ntwo\n"
        assert (draft / "state").samefile(session / "state")
        assert (draft / "checkpoints" / "a" / "file").read_text() == "kept"
        assert (draft / "checkpoints" / "a" / "notebook.jsonl").read_text() == "a user's, without a newline"
        assert (draft / "checkpoints" / "a" / "link").is_symlink()

    def test_a_copy_that_fails_says_why(self, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "link", full)
        monkeypatch.setattr(epochs.shutil, "copy2", full)
        with pytest.raises(OSError, match="No space left") as caught:
            epochs.copy_place(session, epochs.draft_epoch(session), "notebook.jsonl", frozenset())
        assert caught.value.strerror == "No space left on device"

    def test_a_deleted_session_leaves_nothing(self, session: Path) -> None:
        for _ in range(3):
            draft = epochs.draft_epoch(session)
            (draft / "session.json").write_text("{}")
            epochs.publish(draft)
        epochs.draft_epoch(session)
        epochs.delete_place(epochs.place_of(session), LAST, free_place)
        assert not session.exists()

    def test_who_was_replaced_deletes_only_its_own(self, session: Path) -> None:
        draft = epochs.draft_epoch(session)
        (draft / "session.json").write_text("newer")
        epochs.publish(draft)
        epochs.delete_place(session, LAST, free_place)
        assert os.listdir(session) == ["epochs"]
        assert (epochs.place_of(session) / "session.json").read_text() == "newer"

    @pytest.mark.parametrize("held", [0, 1])
    def test_where_a_paused_server_may_write_no_new_session_begins(self, held: int, home: Home) -> None:
        directory = home.sessions / "s"
        places = [directory / "epochs" / str(number) if number else directory for number in range(3)]
        for place in places:
            place.mkdir(parents=True)
            for name in ("notebook.jsonl", *LAST):
                (place / name).write_text(name)
        paused, owner = (lock_session(place, "s", slot="s1") for place in (places[held], places[2]))
        epochs.delete_place(places[2], LAST, free_place)
        owner.close()
        assert sorted(os.listdir(places[held])) == ([LOCK_FILE] if held else ["epochs", LOCK_FILE])
        assert paused.is_at(places[held] / LOCK_FILE), "it finds that it has lost the session, and deletes its own"
        (places[held] / "session.json").write_text("late")
        assert read_record(directory) is None
        assert epochs.place_of(directory) == directory / "epochs" / "3"

        swept = OldSessions(Settings(), home, cast("Any", None))
        swept._sweep_begun()
        assert epochs.place_of(directory) not in places
        paused.close()
        swept._sweep_begun()
        assert not directory.exists()

    def test_a_record_that_is_a_directory_is_deleted_too(self, session: Path) -> None:
        (session / "session.copy.json").unlink()
        (session / "session.copy.json").mkdir()
        epochs.delete_place(session, LAST, free_place)
        assert not session.exists()

    def test_older_epochs_go_when_nobody_has_them(self, session: Path) -> None:
        for _ in range(2):
            draft = epochs.draft_epoch(session)
            (draft / LOCK_FILE).write_text("")
            (draft / "state").write_text("old")
            epochs.publish(draft)
        place = epochs.place_of(session)
        held = lock_session(session, "s", slot="s1")
        epochs.delete_older(place, free_place)
        assert (session / "state").exists()
        assert os.listdir(session / "epochs" / "1") == []
        held.close()
        epochs.delete_older(place, free_place)
        assert os.listdir(session) == ["epochs"]
        assert (place / "state").exists()

    def test_a_session_may_be_called_like_a_number(self, tmp_path: Path) -> None:
        session = tmp_path / "2024"
        session.mkdir()
        for _ in range(2):
            draft = epochs.draft_epoch(session)
            (draft / "session.json").write_text("{}")
            epochs.publish(draft)
        epochs.delete_place(session / "epochs" / "1", LAST, free_place)
        assert epochs.place_of(session).name == "2"


class TestTakeover:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Any:
        with open_home(tmp_path / "home", tmp_path / "run") as found:
            yield found

    def stored(self, home: Home) -> Path:
        """A session with a file and a line in its log."""
        directory = home.sessions / "s"
        directory.mkdir()
        sandbox = home.new_sandbox()
        (sandbox.workspace / "f.txt").write_text("kept")
        (directory / "notebook.jsonl").write_text("one\n")
        record = Record(session_id="s", principal="local", created_at=now(), last_used_at=now())
        record.sandboxes = [sandbox.path.name]
        record.write(directory)
        return directory

    def test_the_copy_has_files_of_its_own(self, home: Home) -> None:
        directory = self.stored(home)
        assert take_over(home, directory, lambda: True)
        before, after = (Record.model_validate_json(p.read_bytes()) for p in self.records(directory))
        assert before.sandboxes != after.sandboxes
        (home.sandbox(before.sandboxes[0]).workspace / "f.txt").write_text("late")
        assert (home.sandbox(after.sandboxes[0]).workspace / "f.txt").read_text() == "kept"
        found = read_record(directory)
        assert found is not None
        assert found.sandboxes == after.sandboxes

    def records(self, directory: Path) -> list[Path]:
        return [directory / "session.json", epochs.place_of(directory) / "session.json"]

    def test_nothing_is_left_of_one_that_was_not_needed(self, home: Home) -> None:
        directory = self.stored(home)
        sandboxes = os.listdir(home.sandboxes)
        assert not take_over(home, directory, lambda: False)
        assert not take_over(home, directory, lambda: epochs.revoke(directory))
        epochs.sweep(directory)
        assert os.listdir(directory / "epochs") == []
        assert os.listdir(home.sandboxes) == sandboxes
        assert epochs.place_of(directory) == directory

    def test_a_record_that_is_damaged_is_named_as_its_session(self, home: Home) -> None:
        directory = self.stored(home)
        for name in RECORD_FILES:
            (directory / name).write_text("{")
        with pytest.raises(SessionDamaged, match="the record of session 's' is damaged") as caught:
            take_over(home, directory, lambda: True)
        assert caught.value.context["session_id"] == "s"

    def test_what_the_server_lists_is_the_newest(self, home: Home) -> None:
        directory = self.stored(home)
        assert take_over(home, directory, lambda: True)
        place = epochs.place_of(directory)
        newer = read_record(directory)
        assert newer is not None
        newer.execution_count = 7
        newer.write(place)
        assert StoredSessions(home).all_records()[directory].execution_count == 7

    def test_a_lock_names_its_server(self, home: Home) -> None:
        directory = self.stored(home)
        assert owner_of_lock(directory) is None
        lock = lock_session(directory, "s", slot="s1")
        assert owner_of_lock(directory) == "s1"
        lock.close()
        assert owner_of_lock(directory) is None
        lock = lock_session(directory, "s")
        assert owner_of_lock(directory) is None, "a server without a slot can be asked for nothing"
        lock.close()

    @pytest.mark.parametrize("content", ["", "../../etc", "S1", "s1\n", "a" * 25, "-a", "\udcff"])
    def test_a_lock_with_anything_else_names_nobody(self, home: Home, content: str) -> None:
        directory = self.stored(home)
        lock = lock_session(directory, "s", slot="s1")
        (directory / LOCK_FILE).write_text(content, errors="surrogateescape")
        assert owner_of_lock(directory) is None
        lock.close()


class TestIds:
    def test_the_mark_is_found_with_and_without_a_slot(self) -> None:
        mark = mark_of("s1.4f5a")
        for slot in (None, "s1", "kernelmcp-0", "a" * 24):
            found = mint_id(mark, slot)
            assert mark_in(found) == mark
            assert is_id(found)
            assert event.is_id(found)
            assert found.startswith(f"{slot}-" if slot else mark)

    def test_other_ids_have_some_mark(self) -> None:
        assert len(mark_in(mint_id())) <= MARK_CHARS
        assert mark_in("a" * 16) == ""


class TestRequests:
    def test_the_log_knows_which_request_a_cell_was_for(self, tmp_path: Path) -> None:
        ended = (
            b'{"cell_type": "code", "id": "0a", "metadata": {"kernelmcp": {"sum": "00000000", "execution_id": '
            b'"ab-cd", "request": "the-first", "status": "ok"}}, "outputs": []}\n'
        )
        began = event.submitted("ef-gh", event.now(), "x", "the-second") + b"\n"
        other = event.submitted("ij-kl", event.now(), "x") + b"\n"
        file = tmp_path / "notebook.jsonl"
        file.write_bytes(ended + began + other)
        log = CellLog(file)
        log.open()
        assert log.requests == {"the-first": "ab-cd", "the-second": "ef-gh"}

    def test_a_guest_writes_none(self) -> None:
        text = '{"e": "submitted", "c": "mine", "at": "x", "request": "the-second", "code": ""}'
        lines = b"".join(event.output("ab-cd", [["text", "stdout", f"\n{text}\n"]]))
        assert requests(lines + b"\n") == {}
        shown = [["show", "display_data", {"application/json": {"a": "b", "request": "the-second"}}, {}, None]]
        assert requests(b"".join(event.output("ab-cd", shown)) + b"\n") == {}


class Renewing:
    """A server whose disk is slow, after it stood still. `looks`: how long each look at a session takes, seconds."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch, sessions: int, looks: list[float]) -> None:
        self.clock, self.looked, self.given_up = Clock(), list[int](), list[int]()
        monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=self.clock))
        monkeypatch.setattr(fleet, "_still_has", self._still_has)
        self._looks = iter(looks)
        self._sessions = [SimpleNamespace(id=number, principal="local") for number in range(sessions)]
        home.servers.mkdir(exist_ok=True)
        self.fleet = fleet.Fleet("s1", home, cast("Any", None), cast("Any", self), cast("Any", None))
        self.fleet._beats = Beats(home.servers, "s1", "aaaa", self.clock)
        self.lost: int | None = None

    async def confirm(self) -> None:
        with anyio.fail_after(DEADLINE):
            await self.fleet.confirm()

    def every(self) -> list[Any]:
        return self._sessions

    def give_up(self, session: Any) -> None:
        self.given_up.append(session.id)

    def _still_has(self, session: Any) -> bool:
        self.looked.append(session.id)
        self.clock.now += next(self._looks, 0.0)
        return session.id != self.lost


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with open_home(tmp_path / "home", tmp_path / "runtime") as found:
        yield found


class TestRenewal:
    @pytest.mark.anyio
    async def test_a_slow_disk_does_not_keep_a_server_from_being_sure(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = Renewing(home, monkeypatch, 20, [1.5] * 20)
        await one.confirm()
        assert one.looked == list(range(20)), "each once"
        assert one.fleet._beats._count >= 20, "others see that it lives"

    @pytest.mark.anyio
    async def test_who_stood_still_while_it_looked_looks_again(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = Renewing(home, monkeypatch, 3, [0.1, SURE_SECONDS + 1])
        await one.confirm()
        assert one.looked == [0, 1, 0, 1, 2]

    @pytest.mark.anyio
    async def test_what_others_have_is_given_up(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        one = Renewing(home, monkeypatch, 3, [])
        one.lost = 1
        with pytest.raises(SessionInUse, match="has taken over session 1"), one.fleet.noting_losses("local", []):
            await one.confirm()
        assert one.given_up == [1]
