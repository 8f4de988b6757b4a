"""What is said of lost variables: what is true, once, and before anything hides it. And what a call that is refused, or
given up, has cost by then: nothing."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from mcp import Client

from kernelmcp.cells.lookup import LOG
from kernelmcp.files.home import RECORD_FILES
from kernelmcp.files.locks import LOCK_FILE

from .http_support import serving
from .support import DEADLINE, Connect, kernel_pids
from .test_checkpoints import call, finished, folders, listed, lose_variables, refused, until_listed
from .test_continuing import fields, killed, text
from .test_hibernation import execute, flip, run
from .test_persons import Session

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="it makes no states"),
]
# A cell after which the variables cannot be saved.
UNSAVABLE = "import asyncio; x = 'precious'; task = asyncio.ensure_future(asyncio.sleep(1000))"
RESTARTED = "was restarted before this cell"
AUTOMATIC = {"SESSIONS__AUTOMATIC_CHECKPOINTS": "20"}
TWO = {"SESSIONS__MAX_SESSIONS_PER_CLIENT": "2"}


@asynccontextmanager
async def person_of(client: Client, runtime: Path) -> AsyncIterator[AsyncKernelClient]:
    """Somebody in Jupyter, in the only session, whose kernel is started for them."""
    session = Session(client, runtime)
    await session.control(method="start", kernel_id=session.descriptor["kernel_id"])
    async with session.person() as person:
        yield person


@asynccontextmanager
async def a_persons_cell_after_a_loss(connect: Connect, folder: Path) -> AsyncIterator[Client]:
    """A person has run `z = 1` in session s, whose `x` is lost, before anybody was told."""
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
    async with connect(SERVER__RUNTIME=str(folder / "r")) as client:
        await call(client, "write_file", path="g", content="1", session_id="s")
        async with person_of(client, folder / "r") as person:
            await person.execute_interactive("z = 1", timeout=DEADLINE)
        yield client


async def end_kernels(client: Client) -> None:
    for pid in kernel_pids():
        psutil.Process(pid).kill()
    while (await call(client, "get_sessions"))["sessions"][0]["state"] != "stopped":
        pass


# -- the default session's note ----------------------------------------------------------------------------------------


async def test_nothing_is_lost_of_a_default_session_that_was_named_before(connect: Connect) -> None:
    async with connect() as client:
        handle = (await run(client, "x = 1"))["session_id"]
    async with connect() as client:
        await run(client, "x += 1", session_id=handle)
        assert "lost" not in text(await execute(client, "x"))
        await end_kernels(client)
        assert "they are lost" in await refused(client, "checkpoint_session")
        result = await execute(client, "'x' in globals()")
        assert (fields(result)["result"], text(result).count(RESTARTED)) == ("False", 1)


@pytest.mark.parametrize("how", ["restore_session", "%restore"])
async def test_the_note_of_a_call_that_brings_variables_back_says_nothing_of_a_loss(connect: Connect, how: str) -> None:
    await lose_variables(connect)
    async with connect() as client:
        if how == "%restore":
            result = await execute(client, "%restore good")
            assert fields(result)["state_lost"] is False
        else:
            result = await client.call_tool("restore_session", {"name": "good"})
        assert "This continues your session" in text(result)
        assert "lost" not in text(result)
        assert (await run(client, "x"))["result"] == "1"


# -- a person's cell comes first ---------------------------------------------------------------------------------------


async def test_a_persons_cell_hides_no_loss(connect: Connect, tmp_path: Path) -> None:
    async with a_persons_cell_after_a_loss(connect, tmp_path) as client:
        assert "they are lost" in await refused(client, "checkpoint_session", session_id="s", name="c")
        assert "they are lost" in await refused(client, "create_session", from_session="s")
        result = await execute(client, "z", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("1", True)
        await call(client, "checkpoint_session", session_id="s", name="c")


async def test_a_loss_that_a_note_has_told_is_not_told_again_after_a_persons_cell(
    connect: Connect, tmp_path: Path
) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1")
    async with connect(SERVER__RUNTIME=str(tmp_path / "r")) as client:
        assert "are lost" in text(await client.call_tool("get_workspace_info", {}))
        async with person_of(client, tmp_path / "r") as person:
            await person.execute_interactive("z = 1", timeout=DEADLINE)
        result = await execute(client, "z")
        assert fields(result)["result"] == "1"
        assert "gone" not in text(result)


async def test_the_note_comes_although_an_execution_was_looked_up_before(connect: Connect) -> None:
    async with killed(connect, SESSIONS__INLINE_WAIT_SECONDS="0") as client:
        begun = await run(client, "import time; time.sleep(1000)")
        while (await call(client, "get_sessions"))["sessions"][0]["state"] != "busy":
            pass
    async with connect() as client:
        await client.call_tool("get_execution", {"execution_id": begun["execution_id"]})
        assert "This continues your session" in text(await execute(client, "1"))


async def test_a_reset_of_the_files_does_not_repeat_the_note(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1; open('f', 'w').close()")
    async with connect() as client:
        assert "Its variables and imports are lost" in text(await client.call_tool("get_workspace_info", {}))
        await client.call_tool("reset_workspace", {"scope": "files"})
        assert RESTARTED not in text(await execute(client, "1"))


async def test_a_loss_that_a_stopped_cell_has_told_is_not_told_again(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "z = 1", session_id="s")
        running = asyncio.create_task(execute(client, "import time; time.sleep(1000)", session_id="s"))
        while (await call(client, "get_sessions", session_id="s"))["sessions"][0]["state"] != "busy":
            pass
        await call(client, "stop_session", session_id="s")
        assert fields(await running)["state_lost"] is True
        result = await execute(client, "'z' in globals()", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("False", False)


# -- checkpoints -------------------------------------------------------------------------------------------------------


async def test_why_a_kernel_ended_that_ran_nothing_is_said_with_the_loss(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await end_kernels(client)
        result = await execute(client, "'x' in globals()", session_id="s")
        why = "They could not be kept: the kernel process ended unexpectedly: SIGKILL."
        assert RESTARTED in text(result)
        assert why in text(result)
        assert why not in text(await execute(client, "1", session_id="s"))


async def test_a_kill_after_going_back_costs_nothing(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "import random; random.seed(1); x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        drawn = (await run(client, "x = 2; random.random()", session_id="s"))["result"]
        await call(client, "restore_session", session_id="s", name="a")
    async with connect() as client:
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)
        assert (await run(client, "random.random()", session_id="s"))["result"] != drawn, (
            "it may go on from there again"
        )


async def test_a_server_that_is_killed_between_changes_and_the_record_loses_nothing(
    connect: Connect, tmp_path: Path
) -> None:
    async with killed(connect, **AUTOMATIC) as client:
        await finished(client, "x, rest = 1, list(range(100_000))", session_id="s")
        await until_listed(client, "cell-1")
        [folder] = (tmp_path / "home" / "sessions").iterdir()
        await finished(client, "x = 2", session_id="s")
        records = {folder / name: (folder / name).read_bytes() for name in RECORD_FILES}
        await until_listed(client, "cell-2")
        assert (folder / "state.base").exists()
    for file, content in records.items():
        file.write_bytes(content)
    async with connect(**AUTOMATIC) as client:
        found = await finished(client, "x, len(rest)", session_id="s")
        assert (found["result"], found["state_lost"]) == ("(2, 100000)", False)


async def test_a_checkpoint_without_variables_does_not_say_that_no_cell_had_run(connect: Connect) -> None:
    await lose_variables(connect)
    async with connect() as client:
        await call(client, "get_workspace_info")
        await call(client, "checkpoint_session", name="after")
        told = text(await client.call_tool("restore_session", {"name": "after"}))
        assert "There are no variables in it." in told


async def test_the_end_of_a_cell_that_makes_a_checkpoint_is_no_cancel(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.1") as client:
        await finished(client, "import os; y = [os.urandom(1000) for _ in range(100_000)]", session_id="s")
        begun = await run(client, "%checkpoint a", session_id="s")
        told = text(await client.call_tool("cancel_execution", {"execution_id": begun["execution_id"]}))
        # Or the cancel came first, or after the end.
        after = "complete before the cancel" in told or "had ended already" in told
        assert after or begun["status"] != "running" or await listed(client) == []


async def test_of_many_later_checkpoints_the_last_are_named_and_the_others_counted(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "1", session_id="s")
        for number in range(13):
            await call(client, "checkpoint_session", session_id="s", name=f"n{number}")
        told = text(await client.call_tool("restore_session", {"session_id": "s", "name": "n0"}))
        assert "n11, n12 and 2 earlier" in told
        assert ": n3," in told
        assert "n0, n1, n2, n3" in text(await client.call_tool("get_sessions", {"session_id": "s"}))
        assert len(await refused(client, "restore_session", session_id="s", name="y" * 100_000)) < 1000


# -- forks and limits --------------------------------------------------------------------------------------------------


async def test_a_fork_that_is_refused_has_cost_no_other_session_anything(connect: Connect) -> None:
    async with connect(**TWO, SESSIONS__INLINE_WAIT_SECONDS="0.5") as client:
        await finished(client, UNSAVABLE, session_id="other")
        begun = await run(client, "import time; time.sleep(1000)", session_id="s")
        assert "is running" in await refused(client, "create_session", from_session="s")
        await call(client, "cancel_execution", execution_id=begun["execution_id"])
        assert "already" in await refused(client, "create_session", from_session="s", session_id="other")
        told = await refused(client, "create_session", from_session="s")
        assert "the variables of session 'other' cannot be saved now: a task" in told
        found = await finished(client, "x", session_id="other")
        assert (found["result"], found["state_lost"]) == ("'precious'", False)
        assert "not a session id" in await refused(client, "create_session", from_session="s", session_id="")


async def test_restores_that_nobody_waits_for_count_as_running(connect: Connect) -> None:
    names = [f"s{number}" for number in range(5)]
    async with connect(**TWO, SESSIONS__MAX_SESSIONS="2") as client:
        for name in names:
            await run(client, "x = 1", session_id=name)
            await call(client, "checkpoint_session", session_id=name, name="a")
        for name in names:
            await call(client, "stop_session", session_id=name)
        restoring = [
            asyncio.create_task(client.call_tool("restore_session", {"session_id": name, "name": "a"}))
            for name in names
        ]
        most, left = 0, 20
        while left:
            states = [one["state"] for one in (await call(client, "get_sessions"))["sessions"]]
            most = max(most, sum(state != "stopped" for state in states))
            if any(state != "stopped" for state in states):
                left -= 1
                for each in restoring:
                    each.cancel()
        assert most <= 2


async def test_a_cell_that_waits_for_a_fork_that_fails_does_not_run(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        fill = "x = 1; filler = [bytes([n % 256]) * 1000 for n in range(60_000)]"
        await finished(client, fill, session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        [folder] = folders(tmp_path)
        flip(folder / "state")
        arguments = {"from_session": "s", "from_checkpoint": "a", "session_id": "f"}
        forking = asyncio.create_task(client.call_tool("create_session", arguments))
        while "f" not in [one["session_id"] for one in (await call(client, "get_sessions"))["sessions"]]:
            assert not forking.done(), text(forking.result())
        told = text(await execute(client, "1", session_id="f"))
        assert "cancelled before it began" in told
        assert (await forking).is_error


async def test_what_a_server_left_that_was_killed_while_it_made_a_session_is_deleted(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect() as client:
        await run(client, "1", session_id="s")
    sessions = tmp_path / "home" / "sessions"
    for name, files in (("half", [LOCK_FILE]), ("waited", [LOCK_FILE, LOG])):
        (sessions / name).mkdir()
        for file in files:
            (sessions / name / file).touch()
    async with connect() as client:
        await run(client, "1", session_id="t")
        while len(list(sessions.iterdir())) > 2:  # noqa: ASYNC110  # the first look is some seconds after the start
            await asyncio.sleep(0.1)
        assert sorted(each.name for each in sessions.iterdir()) == ["s", "t"]


async def test_a_fork_learns_nothing_of_the_session_of_another_principal_that_it_would_need_the_place_of(
    tmp_path: Path,
) -> None:
    (tmp_path / "tokens.toml").write_text('alice = "alice-0123456789"\nbob = "bob-0123456789"\n')
    settings = {"AUTH__TOKENS_FILE": str(tmp_path / "tokens.toml"), "SESSIONS__MAX_SESSIONS": "2"}
    with serving(tmp_path, **settings) as server:
        async with server.client("alice-0123456789") as alice, server.client("bob-0123456789") as bob:
            await run(alice, UNSAVABLE, session_id="hidden")
            await run(bob, "1", session_id="s")
            told = await refused(bob, "create_session", from_session="s")
            assert "no room for another running session" in told
            assert "hidden" not in told
            assert (await run(alice, "x", session_id="hidden"))["state_lost"] is False
