"""A disk and an operating system that do not do what they should: what is said, and what goes on once they do."""

import json
import os
import resource
from pathlib import Path

import pytest

from kernelmcp.errors import SessionDamaged, StorageFailed
from kernelmcp.files.locks import lock_session
from kernelmcp.sessions.storage.record import RECORD_FILES, Record, now, read_record

pytestmark = pytest.mark.anyio


def record(folder: Path) -> Record:
    folder.mkdir()
    made = Record(session_id=folder.name, principal="local", created_at=now(), last_used_at=now(), execution_count=3)
    made.write(folder)
    return made


@pytest.mark.parametrize("name", ["session.json", "session.copy.json"])
def test_a_flipped_bit_that_is_still_json_does_not_win_over_the_good_copy(tmp_path: Path, name: str) -> None:
    whole = record(tmp_path / "s")
    file = tmp_path / "s" / name
    damaged = file.read_text().replace('"execution_count": 3', '"execution_count": 7')
    assert json.loads(damaged)["execution_count"] == 7
    file.write_text(damaged)
    assert read_record(tmp_path / "s") == whole


def test_too_few_descriptors_are_no_damage(tmp_path: Path) -> None:
    whole = record(tmp_path / "s")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.open(os.devnull, os.O_RDONLY)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
    try:
        with pytest.raises(StorageFailed, match="cannot be read now: Too many open files"):
            read_record(tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read_record(tmp_path / "s") == whole


def test_a_damaged_record_is_named_as_its_owner_knows_it(tmp_path: Path) -> None:
    directory = tmp_path / f"{'0' * 16}~s"
    record(directory)
    for name in RECORD_FILES:
        (directory / name).write_text("{")
    with pytest.raises(SessionDamaged, match=r"the record of session 's' is damaged"):
        read_record(directory)


def test_a_lock_that_is_a_directory_is_said(tmp_path: Path) -> None:
    record(tmp_path / "s")
    (tmp_path / "s" / "lock").mkdir()
    with pytest.raises(SessionDamaged, match="cannot be locked"):
        lock_session(tmp_path / "s", "s")
