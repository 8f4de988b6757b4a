"""Which calls that name a session take the note of a continued one from the first call that names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelmcp.sessions.caller import LOCAL, Caller, Origin
from kernelmcp.sessions.default_session import DefaultSession

from .fake_kernels import opened, settings_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("how", "has_note"), [("nothing", True), ("read", True), ("cell", False), ("reset", False)])
async def test_only_a_call_that_tells_of_losses_takes_the_note(tmp_path: Path, how: str, has_note: bool) -> None:
    settings, folder = settings_of(tmp_path), str(tmp_path)
    async with opened(settings) as (registry, _):
        caller = DefaultSession(settings, registry, folder).caller("client")
        session, _ = await registry.find_or_create(caller, None)
        await session.files.with_workspace(lambda files: files and files.write("f.txt", b"x"), make=True)
    session.lock.close()  # as when its process has ended
    async with opened(settings) as (registry, _):
        default = DefaultSession(settings, registry, folder)
        by_name = Caller(LOCAL, lambda: None, Origin.of("client", folder))
        if how == "read":
            registry.get(by_name, session.id)
        elif how == "cell":
            await registry.find_or_create(by_name, session.id)
        elif how == "reset":
            await registry.get(by_name, session.id).reset(variables=True, files=False)
        assert default.caller("client").default_handle == session.id
        assert default.take_note(session.id).startswith("[This continues your session") is has_note
