"""A loss of variables reaches the model: if nobody gets the result that says it, the next one does. And what stands
beside it: a session that goes back or is reset keeps to the limits of running sessions."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp_types import CallToolResult

from .http_support import INITIALIZE, JSON_HEADERS, serving
from .support import DEADLINE, Connect, kernel_pids
from .test_checkpoints import call, finished, folders, refused
from .test_continuing import fields, killed, text
from .test_hibernation import execute, flip, run
from .test_told_losses import TWO, UNSAVABLE, a_persons_cell_after_a_loss, person_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="it makes no states"),
]
ONE = {"SESSIONS__MAX_SESSIONS_PER_CLIENT": "1"}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
AT_ONCE = {"SESSIONS__INLINE_WAIT_SECONDS": "0"}
# Saving and loading these variables takes a while.
LARGE = "x = 1; filler = [bytes([n % 256]) * 1000 for n in range(100_000)]"
WAITS = "import time; time.sleep(1000)"
STUBBORN = """import time
while True:
    try:
        open('begun', 'w').close()
        while True: time.sleep(0.01)
    except BaseException: pass"""
HAS_X = "'x' in globals()"


def says_lost(result: CallToolResult) -> bool:
    found = fields(result) or {}
    return found.get("state_lost") is True or "are gone" in text(result) or "is gone" in text(result)


async def state(client: Client, session: str) -> str:
    return (await call(client, "get_sessions", session_id=session))["sessions"][0]["state"]


async def until(client: Client, session: str, wanted: str) -> None:
    while await state(client, session) != wanted:
        pass


async def until_begun(client: Client) -> None:
    while (await client.call_tool("read_file", {"path": "begun", "session_id": "s"})).is_error:
        pass


async def ended(client: Client, code: str) -> CallToolResult:
    result = await execute(client, code, session_id="s")
    while fields(result)["status"] == "running":
        await asyncio.sleep(0.05)
        result = await client.call_tool("get_execution", {"execution_id": fields(result)["execution_id"]})
    return result


async def end_kernels(client: Client) -> None:
    for pid in kernel_pids():
        psutil.Process(pid).kill()
    await until(client, "s", "stopped")


async def replace_guest() -> None:
    [pid] = kernel_pids()
    before = psutil.Process(pid).children()
    for guest in before:
        guest.kill()
    while set(psutil.Process(pid).children()) <= set(before):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def running(client: Client) -> int:
    return sum(each["state"] != "stopped" for each in (await call(client, "get_sessions"))["sessions"])


# -- results that nobody gets ------------------------------------------------------------------------------------------


async def test_an_install_hides_no_loss(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
    async with connect() as client:
        await client.call_tool("install_package", {"session_id": "s", "package_name": "no-such-package-12345"})
        result = await execute(client, HAS_X, session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("False", True)
        assert not says_lost(await execute(client, "1", session_id="s"))


async def test_a_notebook_that_runs_in_a_session_hides_no_loss(connect: Connect) -> None:
    async with connect() as client:
        for code in ("a = 5", "b = 5"):
            await run(client, code, session_id="nb")
        await run(client, "x = 1", session_id="s")
        await end_kernels(client)
        await call(client, "create_session", session_id="s", from_notebook="kernelmcp://sessions/nb/notebook")
        result = await execute(client, f"{HAS_X}, a", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("(False, 5)", True)
        assert "What has run since is there." in text(result)


@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_a_cell_in_the_background_hides_not_that_it_lost_the_variables(connect: Connect, how: str) -> None:
    async with connect(**AT_ONCE, KERNELS__INTERRUPT_GRACE_SECONDS="1") as client:
        await finished(client, "x = 1", session_id="s")
        await execute(client, STUBBORN if how == "cancelled" else WAITS, session_id="s")
        if how == "cancelled":
            await until_begun(client)
            await client.call_tool("cancel_execution", {"session_id": "s"})
        else:
            await until(client, "s", "busy")
            await end_kernels(client)
        result = await ended(client, HAS_X)
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("False", True)
        assert not says_lost(await ended(client, "1"))


async def test_nor_does_one_whose_call_was_given_up(connect: Connect) -> None:
    async with connect(KERNELS__INTERRUPT_GRACE_SECONDS="1") as client:
        await run(client, "x = 1", session_id="s")
        given_up = asyncio.create_task(execute(client, STUBBORN, session_id="s"))
        await until_begun(client)
        given_up.cancel()
        result = await execute(client, HAS_X, session_id="s")
        assert (fields(result)["result"], says_lost(result)) == ("False", True)


async def test_nor_does_one_whose_connection_was_lost(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        async with server.client() as client:
            await run(client, "x = 1", session_id="s")
            begun = await asyncio.to_thread(server.post, INITIALIZE)
            connection = {"mcp-session-id": begun.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
            await asyncio.to_thread(server.post, INITIALIZED, None, **connection)
            code = "open('begun', 'w').close(); import time; time.sleep(1000)"
            asked = {"name": "execute_code", "arguments": {"code": code, "session_id": "s"}}
            body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked}).encode()
            headers = JSON_HEADERS | connection | {"Host": "127.0.0.1", "Content-Length": str(len(body))}
            lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
            with server.connect() as gone:
                gone.sendall("\r\n".join(lines).encode() + body)
                await until_begun(client)
            await end_kernels(client)
            result = await execute(client, HAS_X, session_id="s")
            assert (fields(result)["result"], fields(result)["state_lost"]) == ("False", True)


async def test_a_cell_in_the_background_hides_no_earlier_loss(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
    async with connect(**AT_ONCE) as client:
        await execute(client, "y = 1", session_id="s")
        result = await ended(client, f"{HAS_X}, y")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("(False, 1)", True)
        assert not says_lost(await ended(client, "1"))


async def test_a_result_that_is_read_later_says_it_for_all(connect: Connect) -> None:
    async with connect(**AT_ONCE) as client:
        await finished(client, "x = 1", session_id="s")
        begun = await run(client, WAITS, session_id="s")
        await until(client, "s", "busy")
        await call(client, "stop_session", session_id="s")
        assert says_lost(await client.call_tool("get_execution", {"execution_id": begun["execution_id"]}))
        assert not says_lost(await ended(client, "1"))


# -- persons -----------------------------------------------------------------------------------------------------------


async def test_a_persons_cell_and_the_end_of_the_server_hide_no_loss(connect: Connect, tmp_path: Path) -> None:
    async with a_persons_cell_after_a_loss(connect, tmp_path):
        pass
    async with connect() as client:
        result = await execute(client, f"{HAS_X}, z", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("(False, 1)", True)
        assert not says_lost(await execute(client, "1", session_id="s"))


async def test_a_persons_cell_and_a_stop_hide_not_what_did_not_come_back(connect: Connect, tmp_path: Path) -> None:
    async with connect(SERVER__RUNTIME=str(tmp_path / "r")) as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "execute_command", command="y=2", session_id="s")
        await call(client, "stop_session", session_id="s")
        await call(client, "create_session", session_id="s")
        await until(client, "s", "idle")
        async with person_of(client, tmp_path / "r") as person:
            await person.execute_interactive("z = 1", timeout=DEADLINE)
        await call(client, "stop_session", session_id="s")
        assert "Not back: variables of shell" in text(await execute(client, "x, z", session_id="s"))


async def test_a_persons_cell_that_is_about_to_end_costs_no_variables(connect: Connect, tmp_path: Path) -> None:
    """Jupyter's clients ask for completions and the like, too; each makes the kernel busy for a moment."""
    async with connect(SERVER__RUNTIME=str(tmp_path / "r")) as client:
        await run(client, "x = 1", session_id="s")
        async with person_of(client, tmp_path / "r") as person:
            person.execute("import time; time.sleep(0.05); z = 1")
            while (await person.get_iopub_msg(timeout=DEADLINE))["msg_type"] != "execute_input":
                pass
            await call(client, "stop_session", session_id="s")
        assert (await run(client, "x, z", session_id="s"))["result"] == "(1, 1)"


@pytest.mark.parametrize("when", ["before the cell", "in the cell"])
async def test_a_guest_that_ends_before_the_model_runs_anything_is_no_secret_of_a_person(
    connect: Connect, tmp_path: Path, when: str
) -> None:
    async with connect(SERVER__RUNTIME=str(tmp_path / "r")) as client:
        await run(client, "x = 1", session_id="s")
        async with person_of(client, tmp_path / "r") as person:
            if when == "in the cell":
                person.execute("open('begun', 'w').close(); import time; time.sleep(1000)")
                await until_begun(client)
            await replace_guest()
            await until(client, "s", "idle")
            await person.execute_interactive("z = 1", timeout=DEADLINE)
        result = await execute(client, f"{HAS_X}, z", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("(False, 1)", True)
        assert not says_lost(await execute(client, "1", session_id="s"))


async def test_a_cell_behind_a_persons_restore_was_not_begun_and_loses_nothing(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect(SERVER__RUNTIME=str(tmp_path / "r")) as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="good")
        for _ in range(4):  # whether it gets behind it is a race; it may come before or after it as well
            async with person_of(client, tmp_path / "r") as person:
                person.execute("%restore good")
                result = await execute(client, "x += 1; x", session_id="s")
                await person.get_shell_msg(timeout=DEADLINE)
            found = fields(result)
            assert (found["status"], found["result"]) in {("ok", "2"), ("interrupted", None)}, text(result)
            assert not says_lost(result)
            left = (await run(client, "x", session_id="s"))["result"]  # once the session has gone back
            assert left == "1" or (found["status"], left) == ("ok", "2")
            if found["status"] == "interrupted":
                assert "went back to checkpoint good before the cell began" in text(result)
            await run(client, "x = 1", session_id="s")


# -- checkpoints -------------------------------------------------------------------------------------------------------


async def test_no_cell_makes_a_checkpoint_before_a_loss_is_said(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="good")
        await run(client, "x = 2", session_id="s")
    async with connect() as client:
        result = await execute(client, "%checkpoint good", session_id="s")
        assert fields(result)["state_lost"]
        assert "restore_session(session_id='s', name='good')" in text(result)
        assert "are kept as checkpoint" not in text(result)
        await call(client, "restore_session", session_id="s")
        assert (await run(client, "x", session_id="s"))["result"] == "1"
        made: Any = await call(client, "checkpoint_session", session_id="s", name="after")
        assert made["checkpoint"] == "after"


async def test_a_return_without_a_name_takes_the_checkpoint_that_the_note_names(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1")
        await call(client, "checkpoint_session", name="good")
        await run(client, "x = 2")
    async with connect() as client:
        assert "restore_session(name='good') brings back" in text(await client.call_tool("get_workspace_info", {}))
        await call(client, "checkpoint_session", name="files")
        assert (await call(client, "restore_session"))["checkpoint"] == "good"
        assert (await run(client, "x"))["result"] == "1"


async def test_a_checkpoint_says_what_is_not_in_it(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_command", command="y=2", session_id="s")
        await run(client, "x = 1", session_id="s")
        made = await client.call_tool("checkpoint_session", {"session_id": "s", "name": "a"})
        assert "Not in it: variables of shell (" in text(made)
        assert "Not in it: variables of shell (" in text(await execute(client, "%checkpoint b", session_id="s"))


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["all", "variables"])
async def test_a_reset_starts_no_kernel_in_a_stopped_session(connect: Connect, scope: str) -> None:
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').close()", session_id="s")
        await call(client, "stop_session", session_id="s")
        await call(client, "reset_workspace", session_id="s", scope=scope)
        assert (await state(client, "s"), kernel_pids()) == ("stopped", [])
        result = await execute(client, f"import os; {HAS_X}, os.listdir()", session_id="s")
        left = [] if scope == "all" else ["f"]
        assert (fields(result)["result"], says_lost(result)) == (f"(False, {left})", False)


async def test_a_restore_that_waits_while_its_session_makes_room_keeps_to_the_limit(connect: Connect) -> None:
    async with connect(**TWO, SESSIONS__MAX_SESSIONS="2") as client:
        await run(client, LARGE, session_id="d")
        await call(client, "checkpoint_session", session_id="d", name="a")
        await run(client, "x = 2", session_id="d")
        await run(client, "1", session_id="b")
        cell = asyncio.create_task(execute(client, "1", session_id="c"))  # d is the longest idle
        restore = asyncio.create_task(call(client, "restore_session", session_id="d", name="a"))
        await cell
        assert (await restore)["checkpoint"] == "a"
        assert await running(client) == 2


async def test_a_return_for_which_no_room_can_be_made_costs_no_other_session_its_variables(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect(**ONE) as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        [folder] = folders(tmp_path)
        flip(folder / "state")
        await run(client, UNSAVABLE, session_id="other")
        told = await refused(client, "restore_session", session_id="s", name="a")
        assert "'other' cannot be saved now: a task is under way" in told
        found = await run(client, "x", session_id="other")
        assert (found["result"], found["state_lost"]) == ("'precious'", False)


async def test_a_restore_that_the_client_gave_up_has_cost_nothing(connect: Connect) -> None:
    async with connect(SESSIONS__WARM_POOL_SIZE="1") as client:
        while not (own := set(kernel_pids())):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await run(client, "x = 2", session_id="s")
        while not (others := set(kernel_pids()) - own):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        [warm] = others
        os.kill(warm, signal.SIGSTOP)  # so that the restore, which takes it, is not done before it is given up
        restore = asyncio.create_task(call(client, "restore_session", session_id="s", name="a"))
        for _ in range(2):
            await call(client, "get_sessions")  # after which it has begun
        restore.cancel()
        await asyncio.wait([restore])
        await call(client, "get_sessions")
        os.kill(warm, signal.SIGCONT)
        assert (await run(client, "x", session_id="s"))["result"] == "2"
