"""What servers say of their sessions: read with care, and gone with the server."""

import fcntl
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.lab import descriptors
from kernelmcp.lab.descriptors import Descriptor, Descriptors
from kernelmcp.sessions import control
from kernelmcp.sessions import descriptors as written


class Server:
    """A runtime directory with its lock held, as a server has it."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / "runtime" / name
        (self.path / "sessions").mkdir(parents=True)
        self.lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.sessions = root / "home" / "sessions"
        self.sessions.mkdir(parents=True, exist_ok=True)

    def show(self, name: str, /, **changed: Any) -> str:
        kernel_id = changed.pop("kernel_id", str(uuid.uuid5(uuid.NAMESPACE_URL, name)))
        connection = self.path / "k1.json"
        connection.write_text("{}")
        described = {
            "format": 1,
            "kernel_id": kernel_id,
            "session_id": name,
            "principal": "local",
            "language": "python",
            "state": "live",
            "connection_file": str(connection),
            "directory": str(self.sessions / "d"),
            "server": {"pid": 1},
        }
        (self.path / "sessions" / f"{uuid.uuid4()}.json").write_text(json.dumps(described | changed))
        return kernel_id

    def die(self) -> None:
        os.close(self.lock)


def read(root: Path) -> dict[str, Descriptor]:
    return Descriptors(root / "runtime", root / "home" / "sessions").read()


def test_the_sessions_of_all_servers_are_found_until_their_server_dies(tmp_path: Path) -> None:
    one, two = Server(tmp_path, "aa"), Server(tmp_path, "bb")
    first, second = one.show("first"), two.show("second", state="stopped", connection_file=None)
    found = read(tmp_path)
    assert {kernel_id: (session.session_id, session.is_live) for kernel_id, session in found.items()} == {
        first: ("first", True),
        second: ("second", False),
    }
    assert found[first].control == one.path / "control.sock"
    one.die()
    assert set(read(tmp_path)) == {second}


def test_a_change_is_seen_and_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    server = Server(tmp_path, "aa")
    kernel_id = server.show("first")
    descriptors = Descriptors(tmp_path / "runtime", tmp_path / "home" / "sessions")
    first = descriptors.read()[kernel_id]
    assert descriptors.read()[kernel_id] is first
    [file] = (server.path / "sessions").iterdir()
    described = json.loads(file.read_text()) | {"connection_file": str(server.path / "k2.json")}
    other = file.with_suffix(".new")
    other.write_text(json.dumps(described))
    other.replace(file)
    assert descriptors.read()[kernel_id].connection_file == server.path / "k2.json"
    file.unlink()
    assert descriptors.read() == {}


def test_of_two_servers_that_have_a_session_the_one_with_a_kernel_counts(tmp_path: Path) -> None:
    one, two = Server(tmp_path, "aa"), Server(tmp_path, "bb")
    one.show("first", state="stopped", connection_file=None)
    kernel_id = two.show("first")
    assert read(tmp_path)[kernel_id].control == two.path / "control.sock"


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"kernel_id": "../../x"},
        {"kernel_id": 7},
        {"session_id": "x" * 100_000},
        {"session_id": None},
        {"directory": "/etc"},
        {"directory": None},
        {"connection_file": "/tmp/elsewhere.json"},
        {"connection_file": "sessions/../../../elsewhere.json"},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_what_is_not_understood_is_left_out(tmp_path: Path, changed: dict[str, Any]) -> None:
    server = Server(tmp_path, "aa")
    server.show("odd", **changed)
    kernel_id = server.show("good")
    assert set(read(tmp_path)) == {kernel_id}


def test_damaged_files_links_and_pipes_are_left_out(tmp_path: Path) -> None:
    server = Server(tmp_path, "aa")
    kernel_id = server.show("good")
    folder = server.path / "sessions"
    (folder / "damaged.json").write_bytes(b"{")
    (folder / "deep.json").write_text("[" * 20_000)
    (folder / "large.json").write_bytes(b" " * 10_000_000)
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (tmp_path / "runtime" / "file").touch()
    (tmp_path / "runtime" / "cc").symlink_to(server.path)
    assert set(read(tmp_path)) == {kernel_id}


def test_thousands_of_sessions_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelmcp.lab.descriptors.MAX_SESSIONS", 50)
    server = Server(tmp_path, "aa")
    for number in range(60):
        server.show(f"session-{number}", state="stopped", connection_file=None)
    descriptors = Descriptors(tmp_path / "runtime", tmp_path / "home" / "sessions")
    assert len(descriptors.read()) == 50
    assert descriptors.left_out == ["Not shown: 10 sessions; Lab shows the 50 that changed last."]


def test_sessions_of_another_version_are_said(tmp_path: Path) -> None:
    server = Server(tmp_path, "aa")
    server.show("newer", format=2)
    descriptors = Descriptors(tmp_path / "runtime", tmp_path / "home" / "sessions")
    for _ in range(2):  # read, and known from before
        assert descriptors.read() == {}
        [said] = descriptors.left_out
        assert "another version of kernelmcp (1)" in said


def test_no_runtime_directory_is_no_session(tmp_path: Path) -> None:
    assert read(tmp_path) == {}


def test_what_has_just_changed_is_found_among_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "MAX_SESSIONS", 3)
    old, new = Server(tmp_path, "aa"), Server(tmp_path, "bb")
    for number in range(5):
        old.show(f"stopped {number}", state="stopped", connection_file=None)
    for file in (old.path / "sessions").iterdir():
        os.utime(file, (1, 1))
    live = new.show("live")
    found = read(tmp_path)
    assert (len(found), found[live].is_live) == (3, True)


def test_lab_and_the_servers_mean_the_same_files() -> None:
    """Neither imports the other: they may be of two versions."""
    assert (descriptors.FORMAT, descriptors.FOLDER) == (written.FORMAT, written.FOLDER)
    assert descriptors.CONTROL == control.SOCKET
