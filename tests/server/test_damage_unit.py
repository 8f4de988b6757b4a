"""A disk and an operating system that do not do what they should: what is said, and what goes on once they do."""

import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelmcp.atomic import MAX_SMALL_BYTES
from kernelmcp.config.models import SessionsSection
from kernelmcp.errors import SessionDamaged, StorageFailed
from kernelmcp.files.locks import lock_session
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions.hibernation.state_files import save_unsealed
from kernelmcp.sessions.installed_packages import MAX_PACKAGES, Package
from kernelmcp.sessions.storage.record import RECORD_FILES, Checkpoint, Record, now, read_record

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


def test_a_record_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    larger = record(tmp_path / "s")
    before = larger.model_copy(deep=True)
    larger.untold = ["x" * MAX_SMALL_BYTES]
    with pytest.raises(OSError, match="the session's record is too large"):
        larger.write(tmp_path / "s")
    assert read_record(tmp_path / "s") == before


async def test_names_of_a_guest_leave_the_record_readable(tmp_path: Path) -> None:
    """Of each of as many checkpoints as a configuration allows, the longest names that JSON has for it."""
    whole = record(tmp_path / "s")
    names = [chr(0x1F600 + number) * 1000 for number in range(50)]
    content = {"status": "ok", "bytes": 1, "image": "", "mounts": [], "execution_count": 1, "others": []}

    async def save_state(*_: object) -> dict[str, Any]:
        return {"content": {**content, "unsaved": names, "gone": names}}

    kernel = cast("Kernel", SimpleNamespace(save_state=save_state))
    found, _ = await save_unsealed(kernel, tmp_path / "state", whole, 1, {})
    assert found.dead
    settings = SessionsSection.model_json_schema()["properties"]
    for number in range(sum(settings[name]["maximum"] for name in ("max_checkpoints", "automatic_checkpoints"))):
        checkpoint = Checkpoint(
            name="x" * 64,
            folder=f"{number:016x}",
            number=number,
            created_at=now(),
            execution_count=number,
            size_bytes=10**12,
            total_bytes=10**12,
            missing=found.dead,
            execution="x" * 22,
            after="0" * 16,
        )
        whole.checkpoints.append(checkpoint)
    whole.packages = [
        Package(name=f"{number:0100}", version="1" * 100, source="x" * 20) for number in range(MAX_PACKAGES)
    ]
    whole.write(tmp_path / "s")
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
