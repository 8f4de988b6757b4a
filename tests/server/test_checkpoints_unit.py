"""Which checkpoints a session keeps."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, ResourceLimitExceeded
from kernelmcp.files.tree_copy import Copied
from kernelmcp.sessions.hibernation.checkpoints import Checkpoints
from kernelmcp.sessions.hibernation.state_files import SavedState, StateChanged
from kernelmcp.sessions.past import Past
from kernelmcp.sessions.storage.record import Checkpoint, Record

NOW = "2026-01-01T00:00:00+00:00"


def made(name: str, megabytes: int, *, is_automatic: bool = False) -> Checkpoint:
    size = megabytes * 2**20
    return Checkpoint(
        name=name,
        folder=secrets.token_hex(8),
        number=1,
        created_at=NOW,
        execution_count=1,
        size_bytes=size,
        total_bytes=size,
        is_automatic=is_automatic,
    )


@pytest.fixture
def record() -> Record:
    return Record(session_id="s", principal="local", created_at=NOW, last_used_at=NOW)


@pytest.fixture
def checkpoints(tmp_path: Path, record: Record) -> Checkpoints:
    return Checkpoints(tmp_path, record, 20, 20, 100 * 2**20)


def add(checkpoints: Checkpoints, checkpoint: Checkpoint) -> list[Path]:
    return checkpoints.add(checkpoint, lambda: None, is_named=not checkpoint.is_automatic)


def test_an_automatic_checkpoint_displaces_none_that_was_asked_for(checkpoints: Checkpoints, record: Record) -> None:
    add(checkpoints, made("asked", 60))
    add(checkpoints, made("cell-1", 30, is_automatic=True))
    with pytest.raises(ResourceLimitExceeded, match="no room beside those that were asked for"):
        add(checkpoints, made("cell-2", 50, is_automatic=True))
    assert [(each.name, each.size_bytes >> 20) for each in record.checkpoints] == [("asked", 60), ("cell-1", 30)]
    [left] = add(checkpoints, made("cell-3", 40, is_automatic=True))
    assert [each.name for each in record.checkpoints] == ["asked", "cell-3"]
    assert left.name not in {each.folder for each in record.checkpoints}
    add(checkpoints, made("next", 90))
    assert [each.name for each in record.checkpoints] == ["next"], "who asks for one displaces older ones"


def test_a_record_that_cannot_be_written_changes_nothing(checkpoints: Checkpoints, record: Record) -> None:
    def fail() -> None:
        raise OSError

    add(checkpoints, made("asked", 60))
    record.is_unchanged = False
    before = record.model_copy(deep=True)
    with pytest.raises(OSError):  # noqa: PT011  # as it was raised
        checkpoints.add(made("next", 60), fail, is_named=True)
    assert record == before


def test_what_no_record_lists_is_found(tmp_path: Path, checkpoints: Checkpoints) -> None:
    assert checkpoints.remains == []
    kept = made("asked", 1)
    add(checkpoints, kept)
    checkpoints.folder(kept).mkdir(parents=True)
    half = checkpoints.new_folder()
    assert checkpoints.remains == [half]


def test_a_record_of_an_older_version_goes_back_to_the_newest_that_was_asked_for(
    checkpoints: Checkpoints, record: Record
) -> None:
    for name in ("first", "second"):
        add(checkpoints, made(name, 1))
    add(checkpoints, made("cell-3", 1, is_automatic=True))
    record.came_from, record.is_unchanged = None, False
    for each in record.checkpoints:
        each.after = None
    assert checkpoints.find(None).name == "second"


@pytest.mark.parametrize(("disturbances", "is_made"), [(0, True), (1, True), (2, False)])
def test_a_message_of_a_browser_is_waited_for_once(
    tmp_path: Path, record: Record, disturbances: int, is_made: bool
) -> None:
    """A page of JupyterLab sends some when it opens the session."""
    left = iter(range(disturbances))

    async def save_checkpoint(*_: object) -> Copied:
        return Copied()

    async def checkpoint(file: Path, copy: Callable[[], Awaitable[Copied]]) -> tuple[SavedState, Copied]:
        (file.parent / file.name).touch()
        if next(left, None) is not None:
            raise StateChanged(["a message has come"])
        return SavedState(file, record, None), await copy()

    files = SimpleNamespace(save_checkpoint=save_checkpoint, save_record=lambda **_: None, note_changed=lambda: None)
    binding = SimpleNamespace(checkpoint=checkpoint, changes=0, files=files)
    queue: Any = SimpleNamespace(binding=binding, asking=None)
    owner: Any = SimpleNamespace(changed=lambda: None)
    tasks: Any = None

    async def make() -> Checkpoint:
        return await Past(Settings(), tasks, tmp_path, record, queue, owner)._make("asked")

    if is_made:
        assert asyncio.run(make()).name == "asked"
    else:
        with pytest.raises(InvalidArgument, match="cannot be saved now: a message has come"):
            asyncio.run(make())
    assert len(list((tmp_path / "checkpoints").iterdir())) == len(record.checkpoints) == is_made
