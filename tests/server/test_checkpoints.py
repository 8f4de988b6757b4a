"""Checkpoints of a session, going back to them, and forks: through real clients, servers and kernels."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from mcp import Client

from kernelmcp.sessions.hibernation.envelope import key_of, seal, unseal

from .support import DEADLINE, Connect, kernel_pids
from .test_continuing import fields, killed, text
from .test_hibernation import execute, flip, run, state_of, states
from .test_persons import opened

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="it makes no states"),
]
BEGIN = """
import os, random, sqlite3
values = [1]
def double(x): return 2 * x
os.makedirs('deep', exist_ok=True); open('deep/data.txt', 'w').write('one')
open('/tmp/scratch', 'w').write('one')
log = open('log.txt', 'w+'); _ = log.write('first\\n'); log.flush()
base = sqlite3.connect('base.sqlite'); _ = base.execute('create table t (n)'); base.commit()
_ = base.execute('insert into t values (1)')
random.seed(7)
"""
CHANGE = """
values.append(2); double = None; later = True
open('deep/data.txt', 'w').write('two'); open('more.txt', 'w').write('more'); os.remove('/tmp/scratch')
_ = log.write('second\\n'); log.flush(); _ = base.execute('insert into t values (2)'); base.commit()
"""
LOOK = """[values, double(2), 'later' in globals(), open('deep/data.txt').read(), os.path.exists('more.txt'),
 open('/tmp/scratch').read(), log.seek(0), log.read(), base.execute('select count(*) from t').fetchall()]"""
# In small pieces: what is freed stays in the heap, and so in the state.
RANDOM_BYTES = """
import os
with open('{name}', 'wb') as file:
    for _ in range({size} // 1000): _ = file.write(os.urandom(1000))
"""
AS_IT_WAS = "[[1], 4, False, 'one', False, 'one', 0, 'first\\n', [(1,)]]"


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The fields of a result that is no error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    return fields(result)


async def finished(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    """As `run`, for as long as it takes."""
    found = await run(client, code, **arguments)
    execution = found["execution_id"]
    while found["status"] == "running":
        await asyncio.sleep(0.05)  # some servers let no call wait
        found = await call(client, "get_execution", execution_id=execution)
    return found


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The text of the error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text(result)
    assert not text(result).startswith("INTERNAL")
    return text(result)


def folders(folder: Path) -> list[Path]:
    return list(folder.glob("home/sessions/*/checkpoints/*"))


def record_of(folder: Path) -> dict[str, Any]:
    """Of the only session."""
    [found] = folder.glob("home/sessions/*/session.json")
    return json.loads(found.read_text())


def copies_of(folder: Path) -> list[Path]:
    """The second files of the sessions' records."""
    return list(folder.glob("home/sessions/*/session.copy.json"))


def names_of_sessions(folder: Path) -> list[str]:
    return [each.name for each in folder.glob("home/sessions/*")]


def links_of(folder: Path, name: str) -> set[int]:
    """How many names the checkpoints' copies of a file have."""
    return {each.stat().st_nlink for each in folder.glob(f"home/sessions/*/checkpoints/*/workspace/files/{name}")}


async def listed(client: Client, session_id: str = "s") -> list[str]:
    [found] = (await call(client, "get_sessions", session_id=session_id))["sessions"]
    return [checkpoint["name"] for checkpoint in found["checkpoints"]]


async def test_variables_and_files_are_as_they_were_at_the_checkpoint(connect: Connect) -> None:
    async with connect() as client:
        await run(client, BEGIN, session_id="s")
        made = await call(client, "checkpoint_session", session_id="s", name="begin")
        assert (made["session_id"], made["checkpoint"], made["kept"]) == ("s", "begin", 1)
        assert 50_000 < made["size_bytes"] < 500_000
        for _ in range(2):  # going back changes no checkpoint
            await run(client, CHANGE, session_id="s")
            back = await client.call_tool("restore_session", {"session_id": "s", "name": "begin"})
            found = fields(back)
            assert (found["session_id"], found["checkpoint"], found["lost"]) == ("s", "begin", [])
            [checkpoint] = (await call(client, "get_sessions", session_id="s"))["sessions"][0]["checkpoints"]
            assert found["restored_at"] == checkpoint["created_at"]
            assert checkpoint["execution_count"] == 1
            result = await execute(client, LOOK, session_id="s")
            assert fields(result)["result"] == AS_IT_WAS
            assert (fields(result)["restored"], fields(result)["state_lost"]) == (None, False), (
                "restore_session said it"
            )
            assert fields(result)["execution_count"] == 2


async def test_a_checkpoint_outlives_its_server_and_the_variables(connect: Connect) -> None:
    async with connect() as client:
        await run(client, BEGIN, session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="begin")
        await call(client, "stop_session", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="stopped")
    async with killed(connect) as client:
        for name in ("begin", "stopped"):
            await call(client, "restore_session", session_id="s", name=name)
            result = await execute(client, LOOK, session_id="s")
            assert fields(result)["result"] == AS_IT_WAS, text(result)
            await run(client, CHANGE, session_id="s")
    async with connect() as client:
        assert (await run(client, "'later' in globals()", session_id="s"))["state_lost"]
        await call(client, "restore_session", session_id="s")
        result = await execute(client, LOOK, session_id="s")
        assert fields(result)["result"] == AS_IT_WAS, text(result)
        await call(client, "restore_session", session_id="s")
    async with connect() as client:  # no cell ran before the end
        result = await execute(client, LOOK, session_id="s")
        assert fields(result)["result"] == AS_IT_WAS, text(result)


async def test_a_fork_and_its_origin_go_on_apart(connect: Connect) -> None:
    async with connect() as client:
        await run(client, BEGIN, session_id="s")
        made = await client.call_tool("create_session", {"from_session": "s", "session_id": "fork"})
        found = fields(made)
        assert (found["session_id"], found["created"], found["forked_from"], found["lost"]) == ("fork", True, "s", [])
        assert "variables and files of s" in text(made)
        other = (await call(client, "create_session", from_session="s", flavor="large"))["session_id"]
        await run(client, CHANGE, session_id="s")
        look = [await run(client, LOOK, session_id=each) for each in ("fork", other)]
        assert [each["result"] for each in look] == [AS_IT_WAS] * 2
        drawn = {(await run(client, "random.random()", session_id=each))["result"] for each in ("s", "fork", other)}
        assert len(drawn) == 3
        await run(client, "values.append(3); open('fork.txt', 'w').write('fork')", session_id="fork")
        assert (await run(client, "values, os.path.exists('fork.txt')", session_id="s"))["result"] == "([1, 2], False)"
        await call(client, "destroy_session", session_id="s")
        await call(client, "stop_session", session_id="fork")
        assert (await run(client, "values, double(2)", session_id="fork"))["result"] == "([1, 3], 4)"


async def test_a_fork_of_a_checkpoint_a_stopped_session_and_one_without_cells(connect: Connect) -> None:
    async with connect() as client:
        await run(client, BEGIN, session_id="s")
        await call(client, "checkpoint_session", session_id="s")
        await run(client, CHANGE, session_id="s")
        await call(client, "create_session", from_session="s", from_checkpoint="cell-1", session_id="a")
        assert (await run(client, LOOK, session_id="a"))["result"] == AS_IT_WAS
        await call(client, "stop_session", session_id="s")
        await call(client, "create_session", from_session="s", session_id="b")
        found = "values, later, open('deep/data.txt').read()"
        assert (await run(client, found, session_id="b"))["result"] == "([1, 2], True, 'two')"
        result = await execute(client, found, session_id="s")
        assert fields(result)["restored"] is not None, "it is still saved"
        await call(client, "write_file", path="f.txt", content="first", session_id="empty")
        await call(client, "create_session", from_session="empty", session_id="c")
        result = await execute(client, "open('f.txt').read()", session_id="c")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("'first'", False)
        assert await listed(client, "a") == [], "a fork has no checkpoints"


@pytest.mark.slow
async def test_javascript_is_as_it_was_in_checkpoints_and_forks(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        for number in range(3):  # one of them is the changes of another, followed by all of JavaScript's memory
            await run(client, f"var y = {number}; Math.random()", session_id="s", language="javascript")
            await call(client, "checkpoint_session", session_id="s", name=f"y{number}")
        for number in (0, 2, 1):
            await call(client, "restore_session", session_id="s", name=f"y{number}")
            assert (await run(client, "y", session_id="s", language="javascript"))["result"] == str(number)
            assert (await run(client, "x", session_id="s"))["result"] == "1"
        drawn: set[str] = set()
        for name in ("a", "b"):
            await call(client, "create_session", from_session="s", session_id=name)
            assert (await run(client, "y += 10", session_id=name, language="javascript"))["result"] == "11"
        for name in ("a", "b", "s"):
            drawn.add((await run(client, "Math.random()", session_id=name, language="javascript"))["result"])
        assert len(drawn) == 3
        assert (await run(client, "y", session_id="s", language="javascript"))["result"] == "1"


async def test_names_and_their_order(connect: Connect, tmp_path: Path) -> None:
    async with connect(SESSIONS__MAX_CHECKPOINTS="3") as client:
        for number in range(3):
            await run(client, f"n = {number}", session_id="s")
            await call(client, "checkpoint_session", session_id="s")
        assert await listed(client) == ["cell-1", "cell-2", "cell-3"]
        await call(client, "checkpoint_session", session_id="s", name="cell-1")
        assert await listed(client) == ["cell-2", "cell-3", "cell-1"]
        assert (await call(client, "checkpoint_session", session_id="s", name="a"))["kept"] == 3
        assert await listed(client) == ["cell-3", "cell-1", "a"], "the oldest made room"
        assert len(folders(tmp_path)) == 3
        await call(client, "restore_session", session_id="s", name="cell-1")
        assert (await run(client, "n", session_id="s"))["result"] == "2"
        for bad in ("", "../up", "a/b", "x" * 65, ".."):
            assert "is not the name of a checkpoint" in await refused(
                client, "checkpoint_session", session_id="s", name=bad
            )
            assert "has no checkpoint" in await refused(client, "restore_session", session_id="s", name=bad)
        assert "It has cell-3, cell-1, a." in await refused(client, "restore_session", session_id="s", name="none")
        assert "checkpoints cell-3, cell-1, a" in text(await client.call_tool("get_sessions", {}))
        await run(client, "1", session_id="other")
        assert "Make one with checkpoint_session" in await refused(client, "restore_session", session_id="other")
        await call(client, "destroy_session", session_id="s")
        assert folders(tmp_path) == []


async def test_what_stands_in_the_way_is_named_and_costs_nothing(connect: Connect, tmp_path: Path) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0.5") as client:
        begun = await run(
            client, "import asyncio; x = 1; task = asyncio.ensure_future(asyncio.sleep(1000))", session_id="s"
        )
        while (await call(client, "get_execution", execution_id=begun["execution_id"]))["status"] == "running":
            pass
        assert "a task is under way" in await refused(client, "checkpoint_session", session_id="s")
        assert "a task is under way" in await refused(client, "create_session", from_session="s", session_id="fork")
        assert (await finished(client, "_ = task.cancel(); x", session_id="s"))["result"] == "1"
        await call(client, "checkpoint_session", session_id="s", name="a")
        begun = await run(client, "import time; time.sleep(1000)", session_id="s")
        for tool in ("checkpoint_session", "restore_session"):
            assert "something is running" in await refused(client, tool, session_id="s")
        assert "something is running" in await refused(client, "create_session", from_session="s", session_id="fork")
        made = await call(client, "create_session", from_session="s", from_checkpoint="a", session_id="fork")
        assert made["created"]
        await call(client, "cancel_execution", execution_id=begun["execution_id"])
        assert (await finished(client, "x", session_id="s"))["result"] == "1"
        assert len(folders(tmp_path)) == 1


async def test_arguments_that_do_not_go_together(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await run(client, "x = 'kept'", session_id="other")
        fork = {"tool": "create_session", "from_session": "s"}
        assert "there is a session 'other' already" in await refused(client, **fork, session_id="other")
        assert (await run(client, "x", session_id="other"))["result"] == "'kept'"
        assert "has no checkpoint" in await refused(client, **fork, from_checkpoint="none", session_id="new")
        assert "Omit language" in await refused(client, **fork, language="python")
        assert "needs from_session" in await refused(client, "create_session", from_checkpoint="a")
        assert "there is no session 'none'" in await refused(client, "create_session", from_session="none")
        assert "is not a session id" in await refused(client, **fork, session_id="../up")
        names = {each["session_id"] for each in (await call(client, "get_sessions"))["sessions"]}
        assert names == {"s", "other"}


@pytest.mark.slow
async def test_a_checkpoint_that_was_tampered_with_is_refused_and_the_session_goes_on(
    connect: Connect, tmp_path: Path
) -> None:
    def foreign(state: Path) -> None:
        [other] = (each / "state" for each in folders(tmp_path) if "other" in str(each))
        shutil.copy(other, state)

    def renumber(state: Path) -> None:
        key = key_of(tmp_path / "home")
        seal(state, msgspec.structs.replace(unseal(state, key), number=9), key)

    def of_another_build(state: Path) -> None:
        key = key_of(tmp_path / "home")
        seal(state, msgspec.structs.replace(unseal(state, key), image="another"), key)

    def other_key(state: Path) -> None:
        (tmp_path / "home/state.key").write_bytes(bytes(32))

    def a_pipe(state: Path) -> None:
        state.unlink()
        os.mkfifo(state)

    damage = {
        "is damaged": flip,
        "is not a regular file": a_pipe,
        "is cut short": lambda state: os.truncate(state, 1000),
        "cannot be read": Path.unlink,
        "belongs to another session": foreign,
        "is not the one": renumber,
        "another build of kernelmcp": of_another_build,
        "another key": other_key,
    }
    async with connect() as client:
        await run(client, "x = 1", session_id="other")
        await call(client, "checkpoint_session", session_id="other", name="a")
        await run(client, "x = 1; open('f', 'w').write('one')", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await run(client, "x = 2; open('f', 'w').write('two')", session_id="s")
        [state] = (each / "state" for each in folders(tmp_path) if "other" not in str(each))
        files = (state, tmp_path / "home/state.key")
        whole = [file.read_bytes() for file in files]
        for why, change in damage.items():
            change(state)
            assert why in await refused(client, "restore_session", session_id="s", name="a")
            fork = {"from_session": "s", "from_checkpoint": "a", "session_id": "n"}
            assert why in await refused(client, "create_session", **fork)
            found = await run(client, "x, open('f').read()", session_id="s")
            assert (found["result"], found["state_lost"]) == ("(2, 'two')", False)
            for file, content in zip(files, whole, strict=True):
                file.unlink(missing_ok=True)
                file.write_bytes(content)
        await call(client, "restore_session", session_id="s", name="a")
        assert (await run(client, "x, open('f').read()", session_id="s"))["result"] == "(1, 'one')"
        assert [each for each in names_of_sessions(tmp_path) if each.startswith("n")] == [], "no half a fork is left"


async def test_they_take_no_more_disk_than_allowed(connect: Connect, tmp_path: Path) -> None:
    async with connect(POLICY__CHECKPOINTS_MAX_MB="8") as client:
        for name in ("a", "b"):
            await run(client, RANDOM_BYTES.format(name="f", size=4_000_000), session_id="s")
            await call(client, "checkpoint_session", session_id="s", name=name)
        assert await listed(client) == ["b"], "two are larger"
        await run(client, RANDOM_BYTES.format(name="g", size=9_000_000), session_id="s")
        assert "a session's checkpoints may take 8 MB" in await refused(client, "checkpoint_session", session_id="s")
        assert await listed(client) == ["b"]
        assert len(folders(tmp_path)) == 1


async def test_on_a_full_disk_nothing_changes(connect: Connect, small_disk: Path) -> None:
    async with connect(HOME=str(small_disk / "home")) as client:
        await run(client, "x = 1; open('f', 'wb').write(bytes(2_000_000))", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await run(client, "import os; x, large = 2, os.urandom(1_000_000)", session_id="s")
        with (small_disk / "fill").open("wb", buffering=0) as file:
            while (fill := os.statvfs(small_disk)).f_bavail > (300 << 10) // fill.f_frsize:
                file.write(bytes(1 << 15))
        full = "could not be stored: "
        assert full in await refused(client, "checkpoint_session", session_id="s", name="b")
        assert full in await refused(client, "restore_session", session_id="s", name="a")
        assert full in await refused(client, "create_session", from_session="s", session_id="fork")
        assert (await run(client, "x", session_id="s"))["result"] == "2"
        assert await listed(client) == ["a"]
        (small_disk / "fill").unlink()
        assert len(folders(small_disk)) == 1
        await call(client, "restore_session", session_id="s", name="a")
        assert (await run(client, "x", session_id="s"))["result"] == "1"


async def test_what_a_killed_server_left_is_deleted(connect: Connect, tmp_path: Path) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        [whole] = folders(tmp_path)
        shutil.copytree(whole, whole.with_name("0" * 16))
    async with connect() as client:
        await call(client, "restore_session", session_id="s", name="a")
        assert folders(tmp_path) == [whole]
        assert (await run(client, "x", session_id="s"))["result"] == "1"


async def test_a_server_killed_within_a_fork_leaves_no_memory_of_the_origin(connect: Connect, tmp_path: Path) -> None:
    def drafts() -> list[Path]:
        return list(tmp_path.rglob(".state.*"))

    async with killed(connect) as client:
        await run(client, "x = 1; filler = bytes(150_000_000)", session_id="s")
        forking = asyncio.create_task(client.call_tool("create_session", {"from_session": "s"}))
        while not drafts():  # noqa: ASYNC110  # nothing tells a client
            await asyncio.sleep(0)
        forking.cancel()
    assert drafts()
    async with connect() as client:
        await run(client, "1", session_id="s")
        assert drafts() == []


@pytest.mark.slow
async def test_forks_at_once_make_room_for_each_other(connect: Connect) -> None:
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="3", SESSIONS__MAX_SESSIONS="3") as client:
        await run(client, "values = list(range(1000))", session_id="s")
        forks = await asyncio.gather(*(call(client, "create_session", from_session="s") for _ in range(5)))
        names = [fork["session_id"] for fork in forks]
        assert len(set(names)) == 5
        running = [each for each in (await call(client, "get_sessions"))["sessions"] if each["state"] != "stopped"]
        assert len(running) <= 3
        for name in (*names, "s"):
            found = await run(client, "sum(values)", session_id=name)
            assert (found["result"], found["state_lost"]) == ("499500", False)


async def test_checkpoints_share_what_has_not_changed(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "open('large', 'wb').write(bytes(range(256)) * 10_000); x = 0", session_id="s")
        await run(client, "import os; kept = os.urandom(1_000_000)", session_id="s")
        sizes: list[int] = []
        for number in range(12):
            await run(client, f"x = {number}; open('f', 'w').write('{number}')", session_id="s")
            sizes.append((await call(client, "checkpoint_session", session_id="s"))["size_bytes"])
        assert sizes[0] > 3_500_000
        assert sorted(sizes)[8] < 500_000, "most are only what has changed since another one"
        assert links_of(tmp_path, "large") == {12}
        for number in (0, 3, 11, 7):  # the base of others, one of its changes, the newest one, one of another base
            await call(client, "restore_session", session_id="s", name=f"cell-{number + 3}")
            found = await run(client, "x, open('f').read(), len(open('large', 'rb').read())", session_id="s")
            assert found["result"] == f"({number}, '{number}', 2560000)"
        await run(client, "open('large', 'r+b').write(b'changed')", session_id="s")
        await call(client, "restore_session", session_id="s", name="cell-6")
        assert (await run(client, "open('large', 'rb').read(3)", session_id="s"))["result"] == r"b'\x00\x01\x02'"


# -- automatic ones


async def until_listed(client: Client, name: str, session_id: str = "s") -> None:
    while name not in await listed(client, session_id):  # noqa: ASYNC110
        await asyncio.sleep(0.2)  # it takes two seconds, and a look some milliseconds of both processes


async def test_a_killed_server_loses_nothing_once_a_cell_is_checkpointed(connect: Connect, tmp_path: Path) -> None:
    automatic = {"SESSIONS__AUTOMATIC_CHECKPOINTS": "20"}
    async with killed(connect, **automatic) as client:
        await run(client, BEGIN, session_id="s")
        await until_listed(client, "cell-1")
        await run(client, "values.append(5)", session_id="s")
        await until_listed(client, "cell-2")
    for _ in range(2):
        async with killed(connect, **automatic) as client:
            await call(client, "write_file", path="beside.txt", content="x", session_id="s")
    async with killed(connect, **automatic) as client:
        result = await execute(client, "values, double(2), log.tell(), open('/tmp/scratch').read()", session_id="s")
        assert fields(result)["result"] == "([1, 5], 4, 6, 'one')"
        assert (fields(result)["restored"] is not None, fields(result)["state_lost"]) == (True, False)
    async with connect(**automatic) as client:  # killed at once: perhaps before there was a checkpoint
        found = await run(client, "globals().get('values')", session_id="s")
        assert (found["result"], found["state_lost"]) in [("[1, 5]", False), (None, True)], "never what was before"


async def test_what_has_changed_since_an_automatic_checkpoint_is_never_mixed_with_it(connect: Connect) -> None:
    automatic = {"SESSIONS__AUTOMATIC_CHECKPOINTS": "20"}
    async with killed(connect, **automatic) as client:
        await run(client, "x = 1", session_id="s")
        await until_listed(client, "cell-1")
        await run(client, "x = 2; open('f', 'w').write('2')", session_id="s")
    async with connect() as client:  # after a loss, its first cell would be cell-1, too
        found = await run(client, "globals().get('x'), open('f').read()", session_id="s")
        assert (found["result"], found["state_lost"]) in [("(2, '2')", False), ("(None, '2')", True)]
        await call(client, "restore_session", session_id="s", name="cell-1")
        found = await run(client, "import os; x, os.path.exists('f')", session_id="s")
        assert found["result"] == "(1, False)", "who asks for it has both"


async def test_a_stop_that_cannot_save_keeps_what_was_saved_after_the_last_cell(connect: Connect) -> None:
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        await run(client, "x = 1", session_id="s")
        await until_listed(client, "cell-1")
        [pid] = kernel_pids()
        guests = psutil.Process(pid).children()
        for guest in guests:
            guest.kill()
        while set(psutil.Process(pid).children()) <= set(guests):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # until another one has been started
        await call(client, "stop_session", session_id="s")
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)


async def test_without_a_name_the_last_cell_is_undone_after_a_stop_as_well(connect: Connect) -> None:
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        await run(client, "x = 1", session_id="s")
        await until_listed(client, "cell-1")
        error = await refused(client, "restore_session", session_id="s")
        assert "no checkpoint from before its last cell" in error
        assert "It has cell-1, which is as it is now. reset_workspace" in error
        await run(client, "x = 2", session_id="s")
        await until_listed(client, "cell-2")
        await call(client, "stop_session", session_id="s")
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        assert (await call(client, "restore_session", session_id="s"))["checkpoint"] == "cell-1"
        assert (await run(client, "x", session_id="s"))["result"] == "1"
        await run(client, "x = 3", session_id="s")
        await until_listed(client, "cell-3")
        await run(client, "import os; os.abort()", session_id="s")
        assert (await call(client, "restore_session", session_id="s"))["checkpoint"] == "cell-3", "the newest there is"


async def test_files_are_kept_where_no_variables_can_be(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_command", command="A=5; echo first > f.txt", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="begin")
        await call(client, "execute_command", command="echo second > f.txt", session_id="s")
        await call(client, "create_session", from_session="s", session_id="fork")
        assert (await call(client, "read_file", path="f.txt", session_id="fork"))["content"] == "second\n"
        back = await client.call_tool("restore_session", {"session_id": "s", "name": "begin"})
        assert "Without variables of shell" in text(back)
        assert (await call(client, "read_file", path="f.txt", session_id="s"))["content"] == "first\n"


async def test_every_cell_can_be_gone_back_to(connect: Connect) -> None:
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        for number in range(1, 6):
            await run(client, f"x = {number}; open('f', 'w').write('{number}')", session_id="s")
            await until_listed(client, f"cell-{number}")
        assert await listed(client) == ["cell-3", "cell-4", "cell-5"]
        assert (await call(client, "restore_session", session_id="s"))["checkpoint"] == "cell-4", "undoes the last cell"
        assert (await run(client, "x, open('f').read()", session_id="s"))["result"] == "(4, '4')"
        await call(client, "restore_session", session_id="s", name="cell-3")
        assert (await run(client, "x, open('f').read()", session_id="s"))["result"] == "(3, '3')"
        await call(client, "checkpoint_session", session_id="s", name="asked")
        died = await execute(client, "x = 0; import os; os.abort()", session_id="s")
        assert "restore_session(session_id='s', name='asked') brings back variables and files" in text(died)
        await run(client, "x = 0", session_id="s")
        assert (await call(client, "restore_session", session_id="s"))["checkpoint"] == "asked"
        assert (await run(client, "x", session_id="s"))["result"] == "3"
        await call(client, "create_session", from_session="s", from_checkpoint="asked", session_id="fork")
        await until_listed(client, "cell-4", "fork")


async def test_what_cannot_be_saved_has_no_automatic_checkpoint_and_goes_on(connect: Connect) -> None:
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        task = "import asyncio; x = []; task = asyncio.ensure_future(asyncio.sleep(1000))"
        await run(client, task, session_id="s")
        await run(client, "1", session_id="other")
        await until_listed(client, "cell-1", "other")
        assert await listed(client) == []
        await run(client, "task.cancel(); x.append(1)", session_id="s")
        await until_listed(client, "cell-2")
        assert (await run(client, "x", session_id="s"))["result"] == "[1]"


async def test_a_guest_that_has_died_is_checkpointed_afresh(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await run(client, "import os; os.abort()", session_id="s")
        await run(client, "x = 2", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="b")
        await run(client, "x = 3", session_id="s")
        await call(client, "restore_session", session_id="s", name="b")
        assert (await run(client, "x", session_id="s"))["result"] == "2"
        await call(client, "restore_session", session_id="s", name="a")
        assert (await run(client, "x", session_id="s"))["result"] == "1"


LATER = """
import js
from pyodide.ffi import create_once_callable
x = 'old'; _ = open('f', 'w').write(x)
def change():
    global x
    x = 'new'; open('f', 'w').write(x)
_ = js.setTimeout(create_once_callable(change), 6000)
"""


async def test_what_javascript_runs_after_an_automatic_checkpoint_is_saved_at_the_end(connect: Connect) -> None:
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        await run(client, LATER, session_id="s")
        await until_listed(client, "cell-1")
        while "new" not in text(await client.call_tool("read_file", {"path": "f", "session_id": "s"})):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await call(client, "stop_session", session_id="s")
        found = await run(client, "x, open('f').read()", session_id="s")
        assert (found["result"], found["state_lost"]) == ("('new', 'new')", False)


def disk_bytes(folder: Path) -> int:
    files = [each.stat() for each in folder.glob("home/sessions/*/checkpoints/**/*")]
    return sum({each.st_ino: each.st_size for each in files}.values())


async def test_sharing_is_no_way_around_the_bound(connect: Connect, tmp_path: Path) -> None:
    async with connect(POLICY__CHECKPOINTS_MAX_MB="12") as client:
        for number in range(5):
            await run(client, RANDOM_BYTES.format(name="f", size=3_000_000), session_id="s")
            for name in ("x", f"keep{number}"):
                await call(client, "checkpoint_session", session_id="s", name=name)
            assert disk_bytes(tmp_path) < 13 << 20
        assert "keep4" in await listed(client)


async def test_on_a_full_disk_a_session_ends_with_its_automatic_checkpoint(connect: Connect, small_disk: Path) -> None:
    async with connect(HOME=str(small_disk / "home"), SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        await run(client, "x = 1", session_id="s")
        await until_listed(client, "cell-1")
        with (small_disk / "fill").open("wb", buffering=0) as file:
            while (fill := os.statvfs(small_disk)).f_bavail > (300 << 10) // fill.f_frsize:
                file.write(bytes(1 << 15))
        stopped = await client.call_tool("stop_session", {"session_id": "s"})
        assert "variables and files are kept" in text(stopped)
        (small_disk / "fill").unlink()
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)


async def test_a_cell_asks_for_a_checkpoint_and_goes_back(connect: Connect) -> None:
    async with connect() as client:
        await run(client, BEGIN, session_id="s")
        made = await execute(client, "\n  %checkpoint  a \n", session_id="s")
        assert "Variables and files are kept as checkpoint a (" in text(made)
        await run(client, CHANGE, session_id="s")
        back = await execute(client, "%restore a", session_id="s")
        assert "Variables and files are as they were at checkpoint a, " in text(back)
        assert fields(back)["status"] == "ok"
        assert (await run(client, LOOK, session_id="s"))["result"] == AS_IT_WAS
        await run(client, "%checkpoint", session_id="s")
        names = await listed(client)
        assert names[0] == "a"
        assert names[1].startswith("cell-")
        asker = {"session_id": "s", "name": fields(back)["execution_id"]}
        assert "has no checkpoint" in text(await client.call_tool("restore_session", asker)), "it ran in another state"


async def test_cells_that_wait_go_on_where_the_session_went_back_to(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "n = 1", session_id="s")
        await run(client, "%checkpoint", session_id="s")
        cells = ["n = 2", "%restore", "n += 10; n", "%checkpoint b", "n"]
        results = await asyncio.gather(*(run(client, cell, session_id="s") for cell in cells))
        assert [each["status"] for each in results] == ["ok"] * 5
        assert (results[2]["result"], results[4]["result"]) == ("11", "11")
        assert await listed(client) == ["cell-2", "b"]


async def test_what_a_cell_cannot_ask_for(connect: Connect) -> None:
    asked = [
        ("%restore nowhere", "session 's' has no checkpoint. Make one"),
        ("%restore", "no checkpoint"),
        ("%checkpoint a b", "'a b' is not the name of a checkpoint"),
        ("%checkpoint ../../x", "'../../x' is not the name of a checkpoint"),
        ("%checkpoint " + "n" * 65, "is not the name of a checkpoint"),
        ("x = 1\n%checkpoint a", "the cell's only line"),
        ("get_ipython().run_line_magic('checkpoint', 'a')", "the cell's only line"),
        ("get_ipython().run_cell('%restore a')", "the cell's only line"),
    ]
    async with connect() as client:
        for number, (cell, said) in enumerate(asked):
            await run(client, f"n = {number}", session_id="s")
            result = await execute(client, cell, session_id="s")
            assert said in text(result), cell
            assert await listed(client) == [], cell
            assert (await run(client, "n", session_id="s"))["result"] == str(number), cell


async def test_what_stands_in_the_way_is_an_error_of_the_cell(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "import asyncio; task = asyncio.create_task(asyncio.sleep(600))", session_id="s")
        result = await execute(client, "%checkpoint a", session_id="s")
        assert fields(result)["status"] == "error"
        assert "cannot be saved now" in text(result)
        await run(client, "task.cancel()", session_id="s")
        assert "are kept as checkpoint a" in text(await execute(client, "%checkpoint a", session_id="s"))


async def test_installed_packages_are_as_they_were_and_the_record_stays_small(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "n = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="before")
        await call(client, "install_package", package_name="six", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="after")
        await call(client, "restore_session", session_id="s", name="before")
        found = record_of(tmp_path)
        assert found["packages"] == []
        assert not any("packages" in each for each in found["checkpoints"])
        await call(client, "restore_session", session_id="s", name="after")
        assert (await run(client, "import six; six.__name__", session_id="s"))["result"] == "'six'"
        assert [each["name"] for each in record_of(tmp_path)["packages"]] == ["six"]
        for each in folders(tmp_path):
            (each / "packages.json").write_text("[{}")
        assert "the list of its packages cannot be read" in await refused(
            client, "restore_session", session_id="s", name="before"
        )
        assert (await run(client, "six.__name__", session_id="s"))["result"] == "'six'"


async def test_restored_packages_are_not_given_as_the_reason_for_a_later_death(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "install_package", package_name="six", session_id="s")
        await call(client, "checkpoint_session", session_id="s")
        await call(client, "restore_session", session_id="s")
        died = await run(client, "import os; os._exit(3)", session_id="s")
        assert died["error"]["value"].startswith("The sandbox process ended: it exited with status 3. All variables")


async def test_a_damaged_state_is_not_made_a_checkpoint(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').write('kept')", session_id="s")
        await call(client, "stop_session", session_id="s")
        flip(state_of(tmp_path, "s"))
        assert "is damaged" in await refused(client, "checkpoint_session", session_id="s", name="a")
        assert "is damaged" in await refused(client, "create_session", from_session="s", session_id="fork")
        assert names_of_sessions(tmp_path) == ["s"]
        found = await run(client, "open('f').read(), 'x' in globals()", session_id="s")
        assert (found["result"], found["state_lost"]) == ("('kept', False)", True)
        await call(client, "checkpoint_session", session_id="s", name="a")


async def test_a_cell_that_ends_with_its_session_offers_no_way_back(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        running = asyncio.create_task(
            client.call_tool("execute_code", {"code": "import time; time.sleep(1000)", "session_id": "s"})
        )
        while (await call(client, "get_sessions"))["sessions"][0]["state"] != "busy":
            pass
        await call(client, "destroy_session", session_id="s")
        told = (await running).content[0].text
        assert "are gone" in told
        assert "restore_session" not in told


async def test_who_no_longer_waits_for_a_restore_finds_it_whole_or_not_begun(connect: Connect) -> None:
    look = "x, open('f').read()"
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').write('one')", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        found: set[str] = set()
        for hundredths in (0, 4, 16, 64, 256, 1024):
            await run(client, "x = 2; open('f', 'w').write('two')", session_id="s")
            going = asyncio.create_task(client.call_tool("restore_session", {"session_id": "s", "name": "a"}))
            if hundredths:  # otherwise it is not even sent
                await asyncio.wait({going}, timeout=hundredths / 100)
            going.cancel()
            await asyncio.wait({going})
            seen = await run(client, look, session_id="s")
            assert (seen["state_lost"], seen["error"]) == (False, None)
            found.add(seen["result"])
            if len(found) == 2:
                break
        assert found == {"(1, 'one')", "(2, 'two')"}
        await call(client, "restore_session", session_id="s", name="a")
        assert (await run(client, look, session_id="s"))["result"] == "(1, 'one')"


# -- where a session came from


AUTOMATIC = {"SESSIONS__AUTOMATIC_CHECKPOINTS": "20"}


async def counted(client: Client, *numbers: int) -> None:
    """Cells that leave their number in `x` and in a file, each with its checkpoint."""
    for number in numbers:
        await run(client, f"x = {number}; open('f', 'w').write('{number}')", session_id="s")
        await until_listed(client, f"cell-{number}")


async def gone_back(client: Client) -> str:
    """The checkpoint that is chosen without a name."""
    return (await call(client, "restore_session", session_id="s"))["checkpoint"]


async def test_going_back_twice_goes_back_twice(connect: Connect) -> None:
    async with connect(**AUTOMATIC) as client:
        await counted(client, 1, 2, 3, 4, 5)
        assert [await gone_back(client) for _ in range(3)] == ["cell-4", "cell-3", "cell-2"]
        assert (await run(client, "x, open('f').read()", session_id="s"))["result"] == "(2, '2')"
        assert await gone_back(client) == "cell-2", "the cell is undone"
        await call(client, "stop_session", session_id="s")
    async with connect(**AUTOMATIC) as client:
        assert await gone_back(client) == "cell-1"
        error = await refused(client, "restore_session", session_id="s")
        assert "pass the name of one" in error
        [last] = [name for name in await listed(client) if name.startswith("cell-5-")]
        await call(client, "restore_session", session_id="s", name=last)
        assert (await run(client, "x", session_id="s"))["result"] == "5", "those it went back from are kept"


async def test_after_going_back_the_same_numbers_are_new_cells(connect: Connect) -> None:
    async with connect(**AUTOMATIC) as client:
        await counted(client, 1, 2, 3)
        back = await client.call_tool("restore_session", {"session_id": "s", "name": "cell-1"})
        told = re.search(r"Later ones are kept: (cell-2-\w{4}), (cell-3-\w{4})\.", text(back))
        assert told
        old, last = told.groups()
        await run(client, "x = 'new'", session_id="s")
        await until_listed(client, "cell-2")
        await run(client, "x = 'last'", session_id="s")
        assert await gone_back(client) == "cell-2"
        assert (await run(client, "x", session_id="s"))["result"] == "'new'"
        await call(client, "restore_session", session_id="s", name=old)
        assert (await run(client, "x", session_id="s"))["result"] == "2"
        back = await client.call_tool("restore_session", {"session_id": "s", "name": last})
        assert "cell-1" not in text(back), "it is an earlier one, whenever it was made"


async def test_a_cell_is_gone_back_to_by_its_id_though_its_number_came_again(connect: Connect, tmp_path: Path) -> None:
    async with connect(**AUTOMATIC) as client:
        ids = {}
        for value, number in (("first", 1), ("second", 2), ("third", 2)):
            if value == "third":
                await call(client, "restore_session", session_id="s", name=ids["first"])
                await call(client, "checkpoint_session", session_id="s", name="again")
            ids[value] = (await run(client, f"x = {value!r}", session_id="s"))["execution_id"]
            await until_listed(client, f"cell-{number}")
        for value in ("second", "third", "first"):
            await call(client, "restore_session", session_id="s", name=ids[value])
            assert (await run(client, "x", session_id="s"))["result"] == repr(value)
        await run(client, "%checkpoint within", session_id="s")
        await call(client, "reset_workspace", session_id="s", scope="variables")
        await call(client, "checkpoint_session", session_id="s", name="empty")
        after = {each["name"]: each["execution"] for each in record_of(tmp_path)["checkpoints"]}
        assert (after["again"], after["within"], after["empty"]) == (ids["first"], "", "")


async def test_a_name_that_a_loss_has_told_keeps_its_checkpoint(connect: Connect) -> None:
    async with killed(connect, **AUTOMATIC) as client:
        await counted(client, 1)
        await run(client, "x = 2", session_id="s")
    async with connect(**AUTOMATIC) as client:
        result = await execute(client, "'x' in globals()", session_id="s")
        if fields(result)["state_lost"]:
            assert "restore_session(session_id='s', name='cell-1') brings back" in text(result)
        while len(await listed(client)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await call(client, "restore_session", session_id="s", name="cell-1")
        assert (await run(client, "x", session_id="s"))["result"] == "1"


async def test_lost_variables_are_not_copied_as_none(connect: Connect, tmp_path: Path) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1; open('f', 'w').write('kept')", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="good")
        await run(client, "x = 2", session_id="s")
    async with connect() as client:
        for tool, arguments in (("checkpoint_session", {"session_id": "s"}), ("create_session", {"from_session": "s"})):
            error = await refused(client, tool, **arguments)
            assert "they are lost" in error
            assert "run a cell" in error
        assert (names_of_sessions(tmp_path), await listed(client)) == (["s"], ["good"])
        assert await gone_back(client) == "good"
        assert (await run(client, "x", session_id="s"))["result"] == "1"
    async with killed(connect) as client:
        await run(client, "x = 3", session_id="s")
    async with connect() as client:
        assert (await run(client, "1", session_id="s"))["state_lost"]
        await call(client, "checkpoint_session", session_id="s")  # as it has been said


async def test_a_fork_without_variables_says_so(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "write_file", path="f.txt", content="first", session_id="s")
        made = await client.call_tool("create_session", {"from_session": "s"})
        assert "with the files (there are no variables) of s" in text(made)


async def test_a_file_that_was_written_since_is_undone_alone(connect: Connect) -> None:
    async with connect(**AUTOMATIC) as client:
        await counted(client, 1, 2)
        await call(client, "write_file", path="f", content="written", session_id="s")
        assert await gone_back(client) == "cell-2"
        assert (await run(client, "x, open('f').read()", session_id="s"))["result"] == "(2, '2')"
        await until_listed(client, "cell-3")
        await call(client, "reset_workspace", session_id="s", scope="files")
        assert await gone_back(client) == "cell-3"
        assert (await run(client, "open('f').read()", session_id="s"))["result"] == "'2'"


async def test_a_cell_with_only_restore_undoes_the_cell_before_it(connect: Connect) -> None:
    async with connect(**AUTOMATIC) as client:
        await counted(client, 1, 2)
        assert "at checkpoint cell-1, " in text(await execute(client, "%restore", session_id="s"))
        assert (await run(client, "x, open('f').read()", session_id="s"))["result"] == "(1, '1')"


async def lose_variables(connect: Connect) -> None:
    """Of the default session, whose `x` was 1 at the checkpoint `good`, and 2 when the server was killed."""
    async with killed(connect) as client:
        await run(client, "x = 1")
        await call(client, "checkpoint_session", name="good")
        await run(client, "x = 2")


async def test_a_continued_session_says_what_brings_its_variables_back(connect: Connect) -> None:
    await lose_variables(connect)
    async with connect() as client:
        told = text(await client.call_tool("get_workspace_info", {}))
        assert "restore_session(name='good') brings back variables and files as they were" in told
        assert (await call(client, "restore_session", name="good"))["checkpoint"] == "good"
        assert (await run(client, "x"))["result"] == "1"


async def test_a_disk_that_fails_for_a_moment_costs_no_variables(connect: Connect, tmp_path: Path) -> None:
    key = tmp_path / "home/state.key"
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await call(client, "stop_session", session_id="s")
        key.rename(key.with_name("away"))
        key.mkdir()  # reading it is an error, for any user
        for _ in range(3):
            result = await execute(client, "x", session_id="s")
            assert "cannot be read now: is not a regular file" in text(result)
            assert "reset_workspace(scope='variables')" in text(result)
        assert "cannot be read: is not a regular file" in await refused(
            client, "restore_session", session_id="s", name="a"
        )
        key.rmdir()
        key.with_name("away").rename(key)
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)


async def test_many_small_files_count_as_what_they_take(connect: Connect, tmp_path: Path) -> None:
    def taken() -> int:
        entries = {each.stat().st_ino: each.stat() for each in folders(tmp_path)[0].rglob("*")}
        return sum(each.st_blocks * 512 for each in entries.values())

    code = "import os\nfor n in range(300): os.makedirs(f'd{n}'); open(f'f{n}', 'w').write('x')"
    async with connect(POLICY__CHECKPOINTS_MAX_MB="6") as client:
        await run(client, code, session_id="s")
        made = await call(client, "checkpoint_session", session_id="s", name="a")
        assert made["size_bytes"] >= taken() > 1_000_000
        more = code.replace("300", "2000").replace("d{n}", "e{n}").replace("f{n}", "g{n}")
        await finished(client, more, session_id="s")
        assert "may take 6 MB" in await refused(client, "checkpoint_session", session_id="s", name="b")


async def test_a_cell_for_a_fork_that_is_being_made_finds_it_whole(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1; filler = bytes(50_000_000)", session_id="s")
        for number in range(4):
            name = f"fork{number}"
            forking = asyncio.create_task(client.call_tool("create_session", {"from_session": "s", "session_id": name}))
            while name not in [each["session_id"] for each in (await call(client, "get_sessions"))["sessions"]]:
                pass
            found = await run(client, "x", session_id=name)
            assert (found["result"], found["state_lost"]) == ("1", False)
            assert not (await forking).is_error


async def test_without_a_name_it_never_goes_forward(connect: Connect) -> None:
    async with connect() as client:
        for name in ("a", "b"):
            await run(client, f"x = {name!r}", session_id="s")
            await call(client, "checkpoint_session", session_id="s", name=name)
        await call(client, "restore_session", session_id="s", name="a")
        await run(client, "x = 'risky'", session_id="s")
        assert await gone_back(client) == "a"


async def test_those_it_went_back_from_make_room_first(connect: Connect) -> None:
    async with connect(SESSIONS__AUTOMATIC_CHECKPOINTS="3") as client:
        await counted(client, 1, 2, 3)
        await call(client, "restore_session", session_id="s", name="cell-1")
        await counted(client, 2, 3)
        names = await listed(client)
        assert [name for name in names if "-" not in name[len("cell-") :]] == ["cell-1", "cell-2", "cell-3"]
        assert [await gone_back(client), await gone_back(client)] == ["cell-2", "cell-1"]


async def test_a_fork_that_needs_the_place_of_its_origin_does_not_cost_its_variables(connect: Connect) -> None:
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="1") as client:
        await run(client, "import asyncio; x = 1; task = asyncio.ensure_future(asyncio.sleep(1000))", session_id="s")
        assert "a task is under way" in await refused(client, "create_session", from_session="s", session_id="f")
        assert (await run(client, "x", session_id="s"))["result"] == "1"
        await run(client, "task.cancel()", session_id="s")
        await call(client, "create_session", from_session="s", session_id="f")
        assert (await run(client, "x", session_id="f"))["result"] == "1"
        assert (await run(client, "x", session_id="s"))["result"] == "1"
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="1", SESSIONS__HIBERNATE="false") as client:
        await run(client, "x = 2", session_id="t")
        assert "hibernate = false" in await refused(client, "create_session", from_session="t", session_id="u")
        assert (await run(client, "x", session_id="t"))["result"] == "2"
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="2") as client:
        await run(client, "y = 1", session_id="s")  # idle for longer
        await run(client, "1", session_id="other")
        await call(client, "create_session", from_session="s", session_id="g")
        [other] = (await call(client, "get_sessions", session_id="other"))["sessions"]
        assert other["state"] == "stopped", "not the origin"


async def test_an_automatic_checkpoint_comes_after_a_fork_that_was_in_its_way(connect: Connect) -> None:
    async with connect(**AUTOMATIC) as client:
        await run(client, "x = 1; filler = [bytes([n % 256]) * 1000 for n in range(30_000)]", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await run(client, "x = 2", session_id="s")
        for name in ("f", "g"):
            await call(client, "create_session", from_session="s", from_checkpoint="a", session_id=name)
        await until_listed(client, "cell-2")


async def test_a_record_that_is_half_written_is_the_one_before(connect: Connect, tmp_path: Path) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "checkpoint_session", session_id="s", name="a")
        await run(client, "x = 2; open('precious', 'w').write('new')", session_id="s")
        await call(client, "get_workspace_info", session_id="s")
        [copy] = copies_of(tmp_path)
        copy.unlink()
        (copy / "full").mkdir(parents=True)  # stands for a disk without room for the second of two files
        assert "could not be stored" in await refused(client, "restore_session", session_id="s", name="a")
        assert "could not be stored" in await refused(client, "checkpoint_session", session_id="s", name="b")
    shutil.rmtree(copy)
    async with connect() as client:
        assert await listed(client) == ["a"]
        assert (await run(client, "open('precious').read()", session_id="s"))["result"] == "'new'"


async def test_after_a_loss_was_told_by_a_note_the_next_one_is_told_as_well(connect: Connect) -> None:
    await lose_variables(connect)
    async with connect(SESSIONS__HIBERNATE="false") as client:  # else the checkpoint's variables come back
        assert "are lost" in text(await client.call_tool("get_workspace_info", {}))
        made = await client.call_tool("checkpoint_session", {"name": "b"})
        assert "Files (there are no variables) are kept" in text(made), "the note has said it"
        await call(client, "restore_session", name="good")
        for pid in kernel_pids():
            psutil.Process(pid).kill()
        while (await call(client, "get_sessions"))["sessions"][0]["state"] != "stopped":
            pass
        result = await execute(client, "'x' in globals()")
        assert "restarted before this cell" in text(result)


async def test_a_loss_that_its_cell_has_told_is_not_told_again(connect: Connect) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
        running = asyncio.create_task(execute(client, "while True: pass", session_id="s"))
        while (await call(client, "get_sessions", session_id="s"))["sessions"][0]["state"] != "busy":
            pass
        for pid in kernel_pids():
            psutil.Process(pid).kill()
        assert fields(await running)["state_lost"]
        await call(client, "checkpoint_session", session_id="s", name="files")
    async with connect() as client:
        assert not (await run(client, "1", session_id="s"))["state_lost"]


async def test_restore_in_a_persons_cell_undoes_the_cell_before_it(connect: Connect, tmp_path: Path) -> None:
    async with opened(connect, tmp_path, **AUTOMATIC) as session, session.person() as person:

        async def until_kept(number: int) -> None:
            while True:
                _, found = await session.call("get_sessions")
                if f"cell-{number}" in [each["name"] for each in found["sessions"][0]["checkpoints"]]:
                    return
                await asyncio.sleep(0.05)

        await until_kept(1)
        await session.run("x = 2")
        await until_kept(2)
        await person.execute_interactive("x = 'bad'", timeout=DEADLINE)
        await person.execute_interactive("%restore", timeout=DEADLINE)
        assert (await session.run("x"))[1]["result"] == "2"


async def test_a_persons_cell_while_a_checkpoint_is_made_is_no_part_of_it(connect: Connect, tmp_path: Path) -> None:
    async with (
        opened(connect, tmp_path / "r", SESSIONS__INLINE_WAIT_SECONDS="60") as session,
        session.person() as person,
    ):
        await session.run("import os; x = 'model'; filler = [os.urandom(1000) for _ in range(120_000)]")
        making = asyncio.create_task(session.call("checkpoint_session", name="a"))
        while not making.done() and not states(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await person.execute_interactive("x = 'person'", timeout=DEADLINE)
        text, _ = await making
        if "are kept as checkpoint" in text:
            assert not record_of(tmp_path)["is_unchanged"]
