"""Records of connections that another server may continue, and the secret of a shared home, without servers."""

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from kernelmcp.errors import ConfigurationError
from kernelmcp.files import home_secret as secret_module
from kernelmcp.files.home import open_home
from kernelmcp.files.home_secret import SECRET_BYTES, home_secret
from kernelmcp.http.agreed_connections import KEEP_SECONDS, AgreedConnections

OPENING: dict[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"roots": {"listChanged": True}},
    "clientInfo": {"name": "t", "title": "T", "version": "1"},
}


@pytest.fixture
def agreed(tmp_path: Path) -> AgreedConnections:
    return AgreedConnections(tmp_path)


def test_a_record_is_what_initialize_agreed_and_belongs_to_one_principal(
    agreed: AgreedConnections, tmp_path: Path
) -> None:
    icons = [{"src": "data:," + "x" * 100_000}]
    sent = OPENING | {"clientInfo": OPENING["clientInfo"] | {"icons": icons}, "_meta": {"trace": "x" * 100_000}}
    assert agreed.keep("alice", "id", sent)
    assert agreed.find("alice", "id") == OPENING
    assert agreed.is_kept("alice", "id")
    for principal, connection in (("bob", "id"), ("alice", "other"), ("alice\nid", "")):
        assert agreed.find(principal, connection) is None
        assert not agreed.is_kept(principal, connection)
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    agreed.forget("bob", "id")
    assert agreed.find("alice", "id") == OPENING
    agreed.forget("alice", "id")
    agreed.forget("alice", "id")
    assert (agreed.find("alice", "id"), list(tmp_path.iterdir())) == (None, [])


@pytest.mark.parametrize(
    "change",
    [
        {"protocolVersion": "2" * 100},
        {"capabilities": {"experimental": {"x": {"y": "z" * 10_000}}}},
        {"clientInfo": {"name": "n" * 10_000, "version": "1"}},
        {"clientInfo": {"name": "n"}},
        {"capabilities": None},
        {"protocolVersion": 1},
    ],
)
def test_an_initialize_that_is_too_large_or_invalid_is_not_kept(
    agreed: AgreedConnections, tmp_path: Path, change: dict[str, Any]
) -> None:
    assert not agreed.keep("alice", "id", OPENING | change)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_no_record(tmp_path: Path) -> None:
    assert not AgreedConnections(tmp_path / "missing").keep("alice", "id", OPENING)


def write(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


def put_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def put_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def put_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "damage",
    [
        write(b""),
        write(b"\xff"),
        write(b"[]"),
        write(b"{}"),
        write(b"[" * 10_000),
        write(json.dumps(OPENING | {"clientInfo": 1}).encode()),
        write(json.dumps(OPENING).encode() + b" " * 20_000),
        put_directory,
        put_pipe,
        put_link,
    ],
)
def test_a_damaged_record_is_as_none(
    agreed: AgreedConnections, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    assert agreed.keep("alice", "id", OPENING)
    [file] = tmp_path.iterdir()
    damage(file)
    assert agreed.find("alice", "id") is None
    agreed.forget("alice", "id")  # raises nothing


def test_records_that_nobody_used_for_a_week_are_deleted(agreed: AgreedConnections, tmp_path: Path) -> None:
    for connection in ("unused", "renewed", "new"):
        assert agreed.keep("alice", connection, OPENING)
    draft = tmp_path / ".x.json.0123abcd"
    draft.touch()
    for file in tmp_path.iterdir():
        old = file.stat().st_mtime - KEEP_SECONDS - 60
        os.utime(file, (old, old))
    agreed.renew("alice", "renewed")
    agreed.renew("alice", "missing")
    assert agreed.keep("alice", "new", OPENING)
    agreed.sweep()
    found = {name: agreed.is_kept("alice", name) for name in ("unused", "renewed", "new", "missing")}
    assert found == {"unused": False, "renewed": True, "new": True, "missing": False}
    assert not draft.exists()


def test_servers_that_start_at_the_same_time_have_one_secret(tmp_path: Path) -> None:
    together = Barrier(8)

    def start(_: int) -> bytes:
        together.wait(60)
        return home_secret(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        [found] = set(pool.map(start, range(8)))
    assert (len(found), home_secret(tmp_path)) == (SECRET_BYTES, found)
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_second_of_two_first_servers_takes_the_secret_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is none."""
    first = home_secret(tmp_path)
    monkeypatch.setattr(secret_module.os.path, "lexists", lambda _: False)
    assert home_secret(tmp_path) == first


@pytest.mark.parametrize("damage", [write(b""), write(b"x" * 31), write(b"x" * 33), put_directory, put_pipe, put_link])
def test_an_unusable_secret_is_an_error_that_says_what_to_do(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    home_secret(tmp_path)
    damage(tmp_path / "secret")
    with pytest.raises(ConfigurationError) as raised:
        home_secret(tmp_path)
    text = raised.value.to_text()
    assert str(tmp_path / "secret") in text
    assert "delete that file" in text


def test_only_servers_that_share_a_home_share_a_secret(tmp_path: Path) -> None:
    def secret(*, is_shared: bool) -> bytes:
        with open_home(tmp_path / "home", tmp_path / "run", is_shared=is_shared) as home:
            return home.secret

    assert len({secret(is_shared=False), secret(is_shared=False)}) == 2
    assert not {"secret", "connections"} & {one.name for one in (tmp_path / "home").iterdir()}
    assert secret(is_shared=True) == secret(is_shared=True) == (tmp_path / "home" / "secret").read_bytes()
