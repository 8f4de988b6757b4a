"""Two calls that concern one session at the same moment, calls that are given up, and what is left after each."""

import json
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client

from .support import DEADLINE, Connect, kernel_pids, server_of_test, wait_until

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    return (await client.call_tool(tool, arguments)).structured_content


async def together(*calls: Any) -> list[dict[str, Any]]:
    """Run calls at once; their results in order."""
    results: list[dict[str, Any]] = [{} for _ in calls]

    async def run(index: int, one: Any) -> None:
        results[index] = await one

    async with anyio.create_task_group() as tasks:
        for index, one in enumerate(calls):
            tasks.start_soon(run, index, one)
    return results


def outcome(result: dict[str, Any]) -> str:
    """A status, or the code of the error."""
    error = result.get("error") or {}
    return error.get("error_code") or result["status"]


@pytest.fixture
def few(connect: Connect) -> Any:
    """A server that keeps no warm kernel, so that binding takes its time."""
    return connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="1", SESSIONS__MAX_QUEUED="2")


async def test_calls_on_one_session_at_the_same_moment(few: Any) -> None:
    async with few as client:
        for code in ("1", "open('f', 'w').write('x')"):
            destroyed, ran, again = await together(
                call(client, "destroy_session", session_id="s") if code != "1" else call(client, "get_sessions"),
                call(client, "execute_code", code=code, session_id="s"),
                call(client, "destroy_session", session_id="s"),
            )
            assert outcome(ran) in ("ok", "interrupted", "SESSION_NOT_FOUND", "dead"), ran
            for result in (destroyed, again):
                assert result.get("destroyed") or "sessions" in result or outcome(result) == "SESSION_NOT_FOUND"
        assert outcome(await call(client, "execute_code", code="1 + 1", session_id="s")) == "ok"

        # Stopped while its kernel starts: the next cell gets a kernel that lives.
        await call(client, "stop_session", session_id="s")
        await call(client, "create_session", session_id="s")
        stopped, ran = await together(
            call(client, "stop_session", session_id="s"), call(client, "execute_code", code="2 + 2", session_id="s")
        )
        assert "stopped" in stopped
        assert outcome(ran) in ("ok", "interrupted")
        assert (await call(client, "execute_code", code="2 + 2", session_id="s"))["result"] == "4"

        # Who asks for the end and stops waiting has ended it nevertheless.
        with anyio.move_on_after(0):
            await call(client, "destroy_session", session_id="s")
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + 0.01
            await call(client, "destroy_session", session_id="s")
        fresh = await call(client, "execute_code", code="'f' in __import__('os').listdir()", session_id="s")
        assert outcome(fresh) == "ok"


async def test_what_does_not_run_takes_no_place(few: Any) -> None:
    async with few as client:
        await call(client, "execute_code", code="x = 1", session_id="a")
        [pid] = kernel_pids()
        psutil.Process(pid).kill()
        assert await anyio.to_thread.run_sync(wait_until, lambda: not psutil.pid_exists(pid))
        assert outcome(await call(client, "execute_code", code="1", session_id="b")) == "ok"

        # Cancelled while they wait: their places in the queue are free.
        running: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_in_background, client, "while True: pass", running)
            for _ in range(3):
                assert await busy(client)
                with anyio.move_on_after(0.2):
                    await call(client, "execute_code", code="1", session_id="b")
            await call(client, "cancel_execution", session_id="b")
        assert running == ["interrupted"]

        # A look, a reset of files: neither starts anything.
        await call(client, "stop_session", session_id="b")
        await call(client, "get_sessions", session_id="b")
        assert (await call(client, "reset_workspace", session_id="b", scope="files"))["files_deleted"]
        assert kernel_pids() == []
        assert outcome(await call(client, "destroy_session", session_id="")) == "INVALID_ARGUMENT"


async def call_in_background(client: Client, code: str, statuses: list[str]) -> None:
    statuses.append(outcome(await call(client, "execute_code", code=code, session_id="b")))


async def busy(client: Client) -> bool:
    with anyio.fail_after(DEADLINE):
        while (await call(client, "get_sessions", session_id="b"))["sessions"][0]["state"] != "busy":
            await anyio.lowlevel.checkpoint()
    return True


async def test_state_lost_is_said_when_variables_are_gone_and_only_then(connect: Connect) -> None:
    async with connect(SESSIONS__HIBERNATE="false") as client:

        async def lost(code: str = "1") -> bool:
            return (await call(client, "execute_code", code=code, session_id="s"))["state_lost"]

        await call(client, "create_session", session_id="s")
        await call(client, "stop_session", session_id="s")
        assert not await lost("x = 1")
        await call(client, "reset_workspace", session_id="s", scope="variables")
        await call(client, "stop_session", session_id="s")
        assert not await lost("x = 1")
        await call(client, "stop_session", session_id="s")
        assert await lost()
        assert not await lost()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"last_used_at": "2026-01-01"}'])
async def test_one_damaged_record_does_not_keep_a_server_from_serving(
    connect: Connect, tmp_path: Path, text: str
) -> None:
    folder = tmp_path / "home/sessions/bad"
    folder.mkdir(parents=True)
    whole = {"session_id": "bad", "principal": "local", "created_at": "2026-01-01T00:00:00", "sandboxes": []}
    written = json.dumps(whole | json.loads(text)) if text.startswith("{") else text
    for name in ("session.json", "session.copy.json"):
        (folder / name).write_text(written)
    async with connect() as client:
        assert outcome(await call(client, "execute_code", code="1", session_id="s")) == "ok"
        assert (await call(client, "execute_code", code="1", session_id="bad"))["error"]["message"]


@pytest.mark.slow
async def test_a_client_that_makes_a_session_for_every_call_costs_no_descriptor_for_each(
    connect: Connect,
) -> None:
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="1") as client:
        server = server_of_test()
        for number in range(80):
            await call(client, "write_file", path="f", content=str(number), session_id=f"s{number}")
            await call(client, "stop_session", session_id=f"s{number}")
        before = server.num_fds()
        for number in range(80, 100):
            await call(client, "write_file", path="f", content=str(number), session_id=f"s{number}")
            await call(client, "stop_session", session_id=f"s{number}")
        assert server.num_fds() <= before + 10  # twenty without it; some are about to be let go
        assert (await call(client, "read_file", path="f", session_id="s0"))["content"] == "0"
        assert (await call(client, "get_sessions"))["total"] == 100
