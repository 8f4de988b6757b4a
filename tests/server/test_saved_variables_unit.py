"""What the answers of a kernel that loads a saved state mean for the state."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelmcp.errors import KernelStartFailed
from kernelmcp.executions.beginning import Beginning
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions.hibernation import state_saver
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.hibernation.state_files import SavedState
from kernelmcp.sessions.hibernation.state_saver import StateSaver
from kernelmcp.sessions.storage.record import Record

pytestmark = pytest.mark.anyio
NOW = "2026-01-01T00:00:00+00:00"


class Saved(SavedVariables):
    """A state that the server can read if its file is there."""

    @property
    def state(self) -> SavedState:
        found = SimpleNamespace(image="", mounts=[], execution_count=1, others=[], saved_at=NOW, dead=[])
        parts = list[Any]()

        def check(_: object) -> object:
            self.file.stat()
            return found

        return cast("SavedState", SimpleNamespace(check=check, parts=lambda *_: parts, is_elsewhere=False))


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    (tmp_path / "state").touch()
    record = Record(session_id="s", principal="local", created_at=NOW, last_used_at=NOW, state_number=1, has_state=True)
    return Saved(tmp_path, tmp_path, record, enabled=True)


async def restored(saved: Saved, **reply: Any) -> Beginning:
    async def load_state(*_: object) -> dict[str, Any]:
        return {"content": {"status": "error", "reasons": ["the reason"], **reply}}

    return await saved.restore(cast("Kernel", SimpleNamespace(load_state=load_state)))


async def test_an_error_of_the_disk_is_no_loss_however_often_it_comes(saved: Saved) -> None:
    """ENOENT: a kernel has found no Node for another guest; whether the state is there, the server sees."""
    for number in (errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOENT) * 2:
        with pytest.raises(KernelStartFailed, match="cannot be read now: the reason"):
            await restored(saved, is_passing=True, errno=number)
    assert saved.exist
    assert (await restored(saved, status="ok", lost=["the open file a"])).missing == ["the open file a"]


async def test_a_guest_that_dies_has_a_second_try(saved: Saved) -> None:
    for _ in range(2):
        assert saved.exist
        with pytest.raises(KernelStartFailed, match="could not be restored: the reason"):
            await restored(saved, is_passing=True, errno=None)
    assert not saved.exist


async def test_what_a_guest_refuses_or_is_not_there_is_lost(saved: Saved) -> None:
    refused = await restored(saved)
    assert (refused.lost, refused.missing) == (True, ["the saved state was not loaded: the reason"])
    saved.file.unlink()
    gone = await restored(saved, status="ok")
    assert (gone.lost, gone.missing) == (True, ["the saved state cannot be read: No such file or directory"])


@pytest.mark.parametrize("is_busy", [True, False])
async def test_only_a_kernel_process_says_that_it_is_busy(saved: Saved, tmp_path: Path, is_busy: bool) -> None:
    """Its guest writes the reasons: with such a word it would keep its kernel from ever being ended."""

    async def save_state(*_: object) -> dict[str, Any]:
        flag = {"is_busy": True} if is_busy else {}
        return {"content": {"status": "error", "reasons": ["a cell is running"], **flag}}

    saved.forget()
    assert not await saved.save(cast("Kernel", SimpleNamespace(save_state=save_state)), 1000)
    assert saved.is_busy is is_busy


async def test_what_is_saved_already_is_there_while_it_is_saved_again(saved: Saved) -> None:
    """The record may be written meanwhile, and the server killed."""
    seen: list[bool] = []

    async def save_state(*_: object) -> dict[str, Any]:
        seen.append(saved.exist)
        return {"content": {"status": "error", "reasons": ["no"]}}

    assert await saved.save(cast("Kernel", SimpleNamespace(save_state=save_state)), 1000)
    assert (seen, saved.exist) == ([True], True)


async def test_changes_are_saved_as_long_as_any_link_to_their_base_is_there(
    tmp_path: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, how = saved._record, list[dict[str, Any]]()

    async def save_state(_: object, __: object, file: Path, *more: Any) -> tuple[SimpleNamespace, str | None]:
        how.append(more[2])
        shutil.copyfile(os.devnull, file)
        record.last_number += 1
        return SimpleNamespace(number=record.last_number, size=1), "id" if "is_base" in more[2] else None

    monkeypatch.setattr(state_saver, "save_state", save_state)
    saver = StateSaver(tmp_path, record)
    files = [tmp_path / name / "state" for name in ("kept", "deleted", "last", "none")]
    for file in files:
        file.parent.mkdir()
    for file, deleted in zip(files, ((), (files[1],), (files[0], files[2]), ()), strict=True):
        await saver.save(cast("Kernel", None), file, 1000)
        for folder in {each.parent for each in deleted}:
            shutil.rmtree(folder)
    assert ["is_base" in each for each in how] == [True, False, False, True]
