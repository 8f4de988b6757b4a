"""While memory is short, kernels of idle sessions end, and their variables come back."""

import os

import anyio
import pytest
from mcp import Client

from .support import Connect
from .test_checkpoints import call
from .test_hibernation import run
from .test_told_losses import UNSAVABLE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="it makes no states"),
]
# Any machine uses more.
ALWAYS_SHORT = {"SESSIONS__MEMORY_SHARE": "0.000001"}


async def test_idle_sessions_give_their_memory_back_and_keep_their_variables(connect: Connect) -> None:
    async with connect(**ALWAYS_SHORT) as client:
        for name in "abc":
            await run(client, f"x = {name!r} * 3; value = lambda: x", session_id=name)
        while await _states(client) != {"stopped"}:  # noqa: ASYNC110
            await anyio.sleep(0.1)
        for name in "abc":
            found = await run(client, "value()", session_id=name)
            assert (found["result"], found["state_lost"]) == (repr(name * 3), False)


async def test_what_cannot_be_saved_is_not_ended(connect: Connect) -> None:
    async with connect(**ALWAYS_SHORT) as client:
        await run(client, UNSAVABLE, session_id="a")
        await run(client, "x = 1", session_id="b")
        while (await _by_name(client))["b"] != "stopped":  # noqa: ASYNC110
            await anyio.sleep(0.1)
        assert (await _by_name(client))["a"] == "idle"
        assert (await run(client, "x", session_id="a"))["result"] == "'precious'"


async def test_without_hibernation_nothing_is_ended(connect: Connect) -> None:
    async with connect(**ALWAYS_SHORT, SESSIONS__HIBERNATE="false") as client:
        await run(client, "x = 1; import time", session_id="a")
        await run(client, "time.sleep(8)", session_id="b", timeout_seconds=60)
        assert (await run(client, "x", session_id="a"))["result"] == "1"


async def _by_name(client: Client) -> dict[str, str]:
    sessions = (await call(client, "get_sessions"))["sessions"]
    return {session["session_id"]: session["state"] for session in sessions}


async def _states(client: Client) -> set[str]:
    return set((await _by_name(client)).values())
