"""Which session gives way at a limit, and what becomes of its variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from kernelmcp.errors import ResourceLimitExceeded
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.hibernation.state_files import StateNotSaved

from .fake_kernels import CALLER, FakeKernel, opened, settings_of

pytestmark = pytest.mark.anyio
OTHER = Caller("token:b", lambda: None)


@pytest.mark.parametrize("limit", ["max_sessions", "max_sessions_per_client"])
async def test_on_a_full_disk_only_the_callers_own_variables_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def save_state(kernel: FakeKernel, file: Path, *_: object) -> dict[str, Any]:
        saves.append(kernel)
        if kernel not in savable:
            raise StateNotSaved(["the disk is full"], is_full=True)
        await anyio.Path(file).write_bytes(b"state")
        how = {"image": "", "mounts": [], "execution_count": 1, "others": []}
        return {"content": {"status": "ok", "bytes": len(b"state"), **how}}

    saves, savable = list[FakeKernel](), set[FakeKernel]()
    monkeypatch.setattr(FakeKernel, "save_state", save_state, raising=False)
    held = 6
    with anyio.fail_after(20):
        async with opened(settings_of(tmp_path, sessions={"automatic_checkpoints": 0, limit: held})) as (registry, _):
            sessions = [(await registry.find_or_create(CALLER, f"s{number}"))[0] for number in range(held)]
            for session in sessions:
                await session.submit("1").done.wait()
            savable.add(cast("FakeKernel", sessions[1].kernel))
            await registry.find_or_create(CALLER, "new")
            assert [session.kernel is None for session in sessions] == [False, True, False, False, False, False]
            assert sessions[1].queue.binding.variables.state == "saved"
            if limit == "max_sessions":
                saves.clear()
                with pytest.raises(ResourceLimitExceeded, match="has no room for another running session"):
                    await registry.find_or_create(OTHER, "theirs")
                assert 0 < len(saves) < held
                assert [session.kernel is None for session in sessions] == [False, True, False, False, False, False]
            saves.clear()
            await (await registry.find_or_create(CALLER, "newer"))[0].submit("1").done.wait()
            assert sessions[0].kernel is None
            assert len(saves) < held


async def test_a_session_that_is_merely_busy_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel works for another client. On a disk with room, no other session loses anything for it."""

    async def save_state(kernel: FakeKernel, file: Path, *_: object) -> dict[str, Any]:
        if kernel is not savable:
            raise StateNotSaved(["the kernel is busy"], is_busy=True)
        await anyio.Path(file).write_bytes(b"state")
        how = {"image": "", "mounts": [], "execution_count": 1, "others": []}
        return {"content": {"status": "ok", "bytes": len(b"state"), **how}}

    monkeypatch.setattr(FakeKernel, "save_state", save_state, raising=False)
    sections = {"automatic_checkpoints": 0, "hibernate": True, "max_sessions": 2}
    with anyio.fail_after(20):
        async with opened(settings_of(tmp_path, sessions=sections)) as (registry, _):
            sessions = [(await registry.find_or_create(CALLER, f"s{number}"))[0] for number in range(2)]
            for session in sessions:
                await session.submit("1").done.wait()
            savable = cast("FakeKernel", sessions[1].kernel)
            await registry.find_or_create(OTHER, "theirs")
            assert [session.kernel is None for session in sessions] == [True, False]
