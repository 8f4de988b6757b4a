"""A session's variables survive its kernel and its server: through real clients, servers and kernels."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from mcp import Client
from mcp_types import CallToolResult

from kernelmcp.files.home import RECORD_FILES
from kernelmcp.sessions.hibernation.envelope import key_of, seal, unseal

from ..prepared_home import prepared_home
from ..pyodide_packages import pyodide_folder
from .http_support import serving
from .support import Connect, kernel_pids, server_of_test
from .test_continuing import fields, killed, text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="its variables are lost"),
]
BACK = "variables are back"
GONE = "All variables, imports and definitions"
FILL = """
import os, random, statistics
class Point:
    def __init__(self, x): self.x = x
def double(x): return 2 * x
points = [Point(1), Point(2)]
text = open('notes.txt', 'w+'); text.write('one\\ntwo\\n'); text.seek(0); text.readline()
open('/tmp/scratch', 'w').write('kept')
os.makedirs('deep', exist_ok=True); os.chdir('deep')
random.seed(7); first = random.random()
"""
LOOK = """[double(points[1].x), statistics.mean([1, 3]), text.readline(), os.path.basename(os.getcwd()),
 open('/tmp/scratch').read(), random.random(), len(In)]"""


async def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    return fields(await execute(client, code, **arguments))


async def execute(client: Client, code: str, **arguments: Any) -> CallToolResult:
    return await client.call_tool("execute_code", {"code": code, **arguments})


async def call(client: Client, tool: str, **arguments: Any) -> None:
    assert not (await client.call_tool(tool, arguments)).is_error


async def state(client: Client, session_id: str) -> str:
    found = fields(await client.call_tool("get_sessions", {"session_id": session_id}))
    return found["sessions"][0]["state"]


def states(folder: Path) -> list[Path]:
    return list(folder.glob("home/sessions/*/*state*"))


def state_of(folder: Path, session: str) -> Path:
    [found] = [file for file in states(folder) if session in file.parent.name]
    return found


async def test_what_stops_has_its_variables_back(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        assert (await run(client, FILL, session_id="s"))["status"] == "ok"
        beside = await run(client, FILL + LOOK, session_id="beside")
        stopped = await client.call_tool("stop_session", {"session_id": "s"})
        assert "variables and files are kept" in text(stopped)
        result = await execute(client, LOOK, session_id="s")
        found = fields(result)
        assert (found["status"], found["state_lost"]) == ("ok", False), text(result)
        expected = beside["result"].rpartition(",")[0]
        assert found["result"].rpartition(",")[0] == expected, "`random` goes on where it was"
        assert found["result"].endswith("3]"), "In has both cells"
        assert found["execution_count"] == 2
        assert found["restored"] is not None
        assert text(result).count(BACK) == 1
        again = await execute(client, "1", session_id="s")
        assert (fields(again)["restored"], BACK in text(again)) == (None, False), "said once"
        assert states(tmp_path) == [], "what has changed since is kept nowhere"


async def test_a_restart_of_the_client_costs_nothing(connect: Connect) -> None:
    async with connect() as client:
        default = await run(client, FILL)
        await run(client, "kept = 40", session_id="named")
    for number in range(3):
        async with connect() as client:
            named = await run(client, "kept += 1; kept", session_id="named")
            assert (named["result"], named["state_lost"]) == (str(41 + number), False)
            result = await execute(client, "double(21)")
            assert (fields(result)["result"], fields(result)["session_id"]) == ("42", default["session_id"])
            assert text(result).count(BACK) == 1
            assert GONE not in text(result)


async def test_the_note_on_a_continued_session_says_that_they_are_saved(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1")
    async with connect() as client:
        listed = await client.call_tool("get_workspace_info", {})
        assert "Its variables are saved" in text(listed)
        result = await execute(client, "x")
        assert (fields(result)["result"], BACK in text(result)) == ("1", True)
        await run(client, "x = 2")
    async with connect() as client:
        result = await execute(client, "x")
        assert text(result).count(BACK) == 1
        assert "This continues your session" in text(result)
        assert "saved" not in text(result), "the cell has brought them back"


async def test_a_server_that_is_killed_after_the_save_loses_nothing(connect: Connect, tmp_path: Path) -> None:
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
    async with connect() as client:
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_server_that_is_killed_between_the_state_and_its_record_loses_nothing(
    connect: Connect, tmp_path: Path, stops: int
) -> None:
    async with killed(connect) as client:
        for number in range(stops):
            await run(client, f"x = {number}", session_id="s")
            [folder] = (tmp_path / "home" / "sessions").iterdir()
            records = {folder / name: (folder / name).read_bytes() for name in RECORD_FILES}
            await client.call_tool("stop_session", {"session_id": "s"})
    for file, content in records.items():
        file.write_bytes(content)
    async with connect() as client:
        found = await run(client, "x += 10; x", session_id="s")
        assert (found["result"], found["state_lost"]) == (str(stops + 9), False)
        await client.call_tool("stop_session", {"session_id": "s"})
        assert (await run(client, "x", session_id="s"))["result"] == str(stops + 9)


async def test_an_older_state_never_comes_back(connect: Connect, tmp_path: Path) -> None:
    """Files have changed since, and a mixture of both times is worse than none."""
    async with killed(connect) as client:
        await run(client, "x = 1", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
        assert (await run(client, "x = 2; x", session_id="s"))["restored"] is not None
    async with connect() as client:
        result = await execute(client, "'x' in globals()", session_id="s")
        found = fields(result)
        assert (found["result"], found["state_lost"], found["restored"]) == ("False", True, None)
        assert text(result).count(GONE) == 1
        assert not (await run(client, "1", session_id="s"))["state_lost"], "said once"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import asyncio\nasync def wait(): await asyncio.sleep(1000)\ntask = asyncio.ensure_future(wait())", "wait"),
        ("import asyncio\ntimer = asyncio.get_event_loop().call_later(1000, print)", "later"),
        ("import os\nfile = open('x', 'w'); os.unlink('x')", "/workspace/x"),
    ],
    ids=["a task", "a timer", "a deleted file"],
)
async def test_what_stands_in_the_way_is_named(connect: Connect, tmp_path: Path, code: str, why: str) -> None:
    async with connect() as client:
        assert (await run(client, code, session_id="s"))["status"] == "ok"
        stopped = await client.call_tool("stop_session", {"session_id": "s"})
        assert why in text(stopped)
    async with connect() as client:  # the reason survives the server
        result = await execute(client, "1", session_id="s")
        assert (fields(result)["state_lost"], fields(result)["restored"]) == (True, None)
        [line] = [line for line in text(result).splitlines() if GONE in line]
        assert why in line
        assert states(tmp_path) == []


async def test_what_does_not_come_back_is_named(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "import js\nobject, x = js.Object.new(), 1\njs.counter = 5", session_id="s")
        await run(client, "setTimeout(() => {}, 1e6)", session_id="s", language="javascript")
        await client.call_tool("execute_command", {"command": "y=2", "session_id": "s"})
        await client.call_tool("stop_session", {"session_id": "s"})
        result = await execute(client, "x", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("1", False)
        [line] = [line for line in text(result).splitlines() if BACK in line]
        assert "variables of javascript (a timer or a request is under way)" in line
        assert "variables of shell" in line
        assert "a JavaScript object (Object)" in line
        assert "a JavaScript object (globalThis.counter)" in line
        dead = await execute(client, "object.key", session_id="s")
        assert "belonged to a process that has ended" in text(dead)


async def test_variables_of_javascript_come_back_beside_those_of_python(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await run(
            client, "let y = [1, 2]; const next = () => y.push(y.length + 1)", session_id="s", language="javascript"
        )
        for number in (3, 4):
            await call(client, "stop_session", session_id="s")
            result = await execute(client, "next()", session_id="s", language="javascript")
            assert (fields(result)["result"], fields(result)["state_lost"]) == (str(number), False)
            [line] = [line for line in text(result).splitlines() if BACK in line]
            assert line.endswith("ago.]")  # with nothing that is not back
            assert (await run(client, "x", session_id="s"))["result"] == "1"


async def test_a_session_of_javascript_alone_comes_back(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "create_session", session_id="s", language="javascript")
        await run(client, "let y = 2", session_id="s")
        await call(client, "stop_session", session_id="s")
        result = await execute(client, "y", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("2", False)


async def test_variables_of_javascript_that_cannot_be_saved_are_lost_alone(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "create_session", session_id="s", language="javascript")
        await run(client, "let y = 2; setInterval(() => {}, 1e6)", session_id="s")
        await call(client, "stop_session", session_id="s")
        result = await execute(client, "typeof y", session_id="s")
        assert (fields(result)["state_lost"], fields(result)["restored"]) == (True, None)
        assert "variables of javascript (a timer or a request is under way)" in text(result)


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_guest_that_died_unnoticed_is_not_said_to_be_back(connect: Connect, language: str) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await run(client, "let y = 2", session_id="s", language="javascript")
        [pid] = kernel_pids()
        before = psutil.Process(pid).children()
        for guest in before:
            if ("javascript_guest" in " ".join(guest.cmdline())) == (language == "javascript"):
                guest.kill()
        while set(psutil.Process(pid).children()) <= set(before):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # until another one has been started
        await call(client, "stop_session", session_id="s")
        result = await execute(client, "'x' in globals()", session_id="s")
        assert fields(result)["state_lost"] == (language == "python"), text(result)
        assert ("variables of javascript (" in text(result)) == (language == "javascript")
        assert fields(result)["result"] == str(language == "javascript")


async def test_a_session_that_ran_nothing_since_it_came_back_keeps_its_state(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await call(client, "stop_session", session_id="s")
        before = state_of(tmp_path, "s").read_bytes()
        await call(client, "create_session", session_id="s")  # it gets a kernel, and no cell
        while await state(client, "s") != "idle":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        [pid] = kernel_pids()
        os.kill(pid, signal.SIGKILL)
        while await state(client, "s") != "stopped":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (await run(client, "x", session_id="s"))["result"] == "1"
        await call(client, "stop_session", session_id="s")
        assert state_of(tmp_path, "s").read_bytes() != before


def flip(state: Path) -> None:
    with state.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 1]))


def change_key(state: Path) -> None:
    (state.parents[2] / "state.key").write_bytes(os.urandom(32))


DAMAGE = {
    "flipped": (flip, "is damaged"),
    "cut": (lambda state: os.truncate(state, 100_000), "is cut short"),
    "empty": (lambda state: os.truncate(state, 0), "is cut short"),
    "missing": (Path.unlink, "cannot be read"),
    "another key": (change_key, "another key"),
}


@pytest.mark.parametrize("name", DAMAGE)
async def test_a_damaged_state_is_refused_by_name(connect: Connect, tmp_path: Path, name: str) -> None:
    damage, why = DAMAGE[name]
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').write('kept')", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
        damage(state_of(tmp_path, "s"))
        result = await execute(client, "open('f').read(), 'x' in globals()", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("('kept', False)", True)
        [line] = [line for line in text(result).splitlines() if GONE in line]
        assert why in line
        await run(client, "x = 2", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
        assert (await run(client, "x", session_id="s"))["result"] == "2", "the next one is whole"


def _reseal(state: Path, change: Callable[[bytearray], None]) -> None:
    """As if its guest had made it so: the server finds nothing wrong."""
    key = key_of(state.parents[2])
    envelope = unseal(state, key)
    content = bytearray(state.read_bytes()[: envelope.size])
    change(content)
    state.write_bytes(content)
    seal(state, msgspec.structs.replace(envelope, size=len(content)), key)


def _flip_late(content: bytearray) -> None:
    content[-5000] ^= 1


def _cut(content: bytearray) -> None:
    del content[len(content) // 2 :]


def _zeros(content: bytearray) -> None:
    content[:] = bytes(1000)


def _empty(content: bytearray) -> None:
    content.clear()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_flip_late, "the saved state was not loaded"),
        (_cut, "cut short"),
        (_zeros, "not a saved session"),
        (_empty, "cut short"),
    ],
)
async def test_what_a_guest_refuses_costs_its_session_the_variables_and_no_cell(
    connect: Connect, tmp_path: Path, change: Callable[[bytearray], None], why: str
) -> None:
    async with connect() as client:
        await run(client, "x = 1; open('f', 'w').write('kept')", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
        _reseal(state_of(tmp_path, "s"), change)
        result = await execute(client, "open('f').read(), 'x' in globals()", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("('kept', False)", True), text(result)
        [line] = [line for line in text(result).splitlines() if GONE in line]
        assert why in line
        assert (await run(client, "1 + 1", session_id="s"))["result"] == "2"


async def test_a_state_of_javascript_that_is_not_loaded_costs_only_its_variables(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await run(client, "let y = 2", session_id="s", language="javascript")
        await call(client, "stop_session", session_id="s")
        _reseal(state_of(tmp_path, "s"), _flip_late)  # the last part is JavaScript's
        result = await execute(client, "x", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("1", False)
        [line] = [line for line in text(result).splitlines() if BACK in line]
        assert re.search(r"variables of javascript \(.*(damaged|checksum).*\)", line)
        assert (await run(client, "typeof y", session_id="s", language="javascript"))["result"] == "'undefined'"


async def test_a_flavor_that_has_become_too_small_says_what_the_variables_need(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "filler = bytearray(b'x') * 150_000_000; open('f', 'w').write('kept')", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
    async with connect(POLICY__MEMORY_MB="128") as client:
        result = await execute(client, "open('f').read(), 'filler' in globals()", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("('kept', False)", True), text(result)
        [line] = [line for line in text(result).splitlines() if GONE in line]
        assert re.search(r"it needs \d+ MB of memory", line)
        assert (await run(client, "1 + 1", session_id="s"))["result"] == "2"


async def test_after_an_upgrade_the_loss_is_said_with_its_reason(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await client.call_tool("checkpoint_session", {"session_id": "s"})
        await client.call_tool("stop_session", {"session_id": "s"})
        state = state_of(tmp_path, "s")
        key = key_of(tmp_path / "home")
        seal(state, msgspec.structs.replace(unseal(state, key), image="of another build"), key)
        assert "of memory" not in text(await client.call_tool("get_sessions", {}))
        result = await execute(client, "'x' in globals()", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("False", True)
        assert "it was saved by another build of kernelmcp" in text(result)
        assert "restore_session" not in text(result), "the checkpoint is of that build, too"
        assert "[create_session(from_notebook='kernelmcp://sessions/s/notebook') makes" in text(result)


async def test_a_state_of_another_session_or_time_is_refused_by_name(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        for session in ("s", "other"):
            await run(client, f"secret = '{session}'", session_id=session)
            await client.call_tool("stop_session", {"session_id": session})
        older = tmp_path / "older"
        shutil.copy(state_of(tmp_path, "s"), older)
        shutil.copy(state_of(tmp_path, "other"), state_of(tmp_path, "s"))
        result = await execute(client, "'secret' in globals()", session_id="s")
        assert fields(result)["result"] == "False"
        assert "belongs to another session" in text(result)
        await client.call_tool("stop_session", {"session_id": "s"})
        shutil.copy(older, state_of(tmp_path, "s"))
        result = await execute(client, "'secret' in globals()", session_id="s")
        assert fields(result)["result"] == "False"
        assert "is not the one that the session's record names" in text(result)


async def test_cleared_variables_do_not_come_back(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "x = 1", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
        await client.call_tool("reset_workspace", {"session_id": "s", "scope": "variables"})
        assert states(tmp_path) == []
        result = await execute(client, "'x' in globals()", session_id="s")
        assert (fields(result)["result"], fields(result)["state_lost"]) == ("False", False)
        assert BACK not in text(result)


async def test_it_can_be_turned_off(connect: Connect, tmp_path: Path) -> None:
    async with connect(SESSIONS__HIBERNATE="false") as client:
        await run(client, "x = 1", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
        assert states(tmp_path) == []
        assert (await run(client, "1", session_id="s"))["state_lost"]


async def test_idle_sessions_and_those_that_make_room_are_saved(connect: Connect) -> None:
    settings = {"SESSIONS__MAX_SESSIONS_PER_CLIENT": "1", "SESSIONS__DEFAULT_TIMEOUT_SECONDS": "2"}
    async with connect(**settings) as client:
        await run(client, "x = 'a'", session_id="a")
        await run(client, "x = 'b'", session_id="b")
        found = await run(client, "x", session_id="a")
        assert (found["result"], found["state_lost"]) == ("'a'", False)
        while await state(client, "a") != "stopped":  # noqa: ASYNC110  # nothing tells a client
            await asyncio.sleep(0.1)
        for name in ("a", "b"):
            found = await run(client, "x", session_id=name)
            assert (found["result"], found["restored"] is not None) == (f"'{name}'", True)


async def test_on_a_full_disk_an_idle_session_lives_on_and_is_saved_later(connect: Connect, small_disk: Path) -> None:
    async with connect(HOME=str(small_disk / "home"), SESSIONS__DEFAULT_TIMEOUT_SECONDS="1") as client:
        await run(client, "import os; x, large = 1, os.urandom(2_000_000)", session_id="s")
        wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
        running = asyncio.create_task(run(client, wait, session_id="s"))  # it is not idle before the disk is full
        while await state(client, "s") != "busy":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with (small_disk / "fill").open("wb", buffering=0) as file:
            while (fill := os.statvfs(small_disk)).f_bavail > (1 << 20) // fill.f_frsize:
                file.write(bytes(1 << 16))
        await call(client, "write_file", session_id="s", path="go", content="")
        await running
        for is_there in (True, False):  # the draft of an attempt
            while bool(states(small_disk)) != is_there:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await state(client, "s") == "idle"
        assert (await run(client, "x", session_id="s"))["result"] == "1"
        (small_disk / "fill").unlink()
        while await state(client, "s") != "stopped":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)


async def test_a_cell_that_runs_at_the_stop_costs_the_variables(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0") as client:
        await run(client, "x = 1", session_id="s")
        await run(client, "import time; time.sleep(1000)", session_id="s")
        await client.call_tool("stop_session", {"session_id": "s"})
    async with connect() as client:
        result = await execute(client, "1", session_id="s")
        assert fields(result)["state_lost"]
        assert "a cell was running" in text(result)


@pytest.mark.slow
async def test_files_and_variables_of_many_sessions_stay_apart(connect: Connect) -> None:
    names = [f"s{number}" for number in range(4)]
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="2") as client:
        for round_ in range(3):
            for name in names:
                code = "total = globals().get('total', 0) + 1; open('f', 'a').write(str(total)); total"
                assert (await run(client, code, session_id=name))["result"] == str(round_ + 1)
        for name in reversed(names):
            assert (await run(client, "total, open('f').read()", session_id=name))["result"] == "(3, '123')"


SCIENCE = """import numpy as np, pandas as pd, matplotlib.pyplot as plt
drawn = np.random.random()
generator = np.random.default_rng(3); generator.random()
expected = np.random.default_rng(3); expected.random(); expected = expected.random()
frame = pd.DataFrame({'a': range(1000), 'b': pd.Categorical(['x', 'y'] * 500)})
view = (array := np.arange(12.0).reshape(3, 4))[:, 1]
figure, axes = plt.subplots(); lines = axes.plot([1, 3, 2]); plt.close(figure)"""
SCIENCE_IS_BACK = """array[0, 1] = 50
from IPython.display import display
display(figure)
frame.groupby('b', observed=True).a.sum().tolist(), view[0], generator.random() == expected, len(axes.lines)"""


@pytest.mark.slow
async def test_numpy_pandas_and_figures_come_back_from_the_image_and_from_a_cell(connect: Connect) -> None:
    with prepared_home() as home:
        settings = {"HOME": str(home), "PACKAGES__PYODIDE_URL": str(pyodide_folder())}
        async with connect(**settings) as client:
            drawn: set[str] = set()
            for name in ("one", "other"):
                assert (await run(client, SCIENCE, session_id=name))["status"] == "ok"
                drawn.add((await run(client, "drawn, np.random.random()", session_id=name))["result"])
            assert len(drawn) == 2, "sessions of one image draw numbers of their own"
            later = (
                "import regex, lxml.etree; found = regex.compile('(a)'); tree = lxml.etree.fromstring('<a><b/></a>')"
            )
            assert (await run(client, later, session_id="one"))["status"] == "ok"
        for is_still_prepared in (True, False):
            if (
                not is_still_prepared
            ):  # as after another `kernelmcp setup`: the image of then is there, and the session's
                (home / "setup.json").unlink()
            async with connect(**settings) as client:
                result = await execute(client, SCIENCE_IS_BACK, session_id="one")
                found = fields(result)
                expected = "([249500, 250000], np.float64(50.0), True, 1)"
                assert (found["result"], found["state_lost"]) == (expected, False), text(result)
                assert "image/png" in str(found["outputs"])
                await run(client, "generator = np.random.default_rng(3); _ = generator.random()", session_id="one")
                later = "found.match('a').group(1), tree[0].tag, lxml.etree.tostring(tree), frame.describe().shape"
                assert (await run(client, later, session_id="one"))["result"] == "('a', 'b', b'<a><b/></a>', (8, 1))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_sessions_of_a_server_on_stdio_survive_a_signal(connect: Connect, number: signal.Signals) -> None:
    with suppress(BaseException):  # the client's streams break with its server
        async with connect() as client:
            await run(client, "x = 1", session_id="s")
            server = server_of_test()
            server.send_signal(number)
            while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    async with connect() as client:
        found = await run(client, "x", session_id="s")
        assert (found["result"], found["state_lost"]) == ("1", False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sessions_of_a_server_over_http_survive_its_end(tmp_path: Path, number: signal.Signals) -> None:
    for round_ in range(2):
        with serving(tmp_path) as server:
            async with server.client() as client:
                found = await run(client, "n = globals().get('n', 0) + 1; n", session_id="s")
                assert (found["result"], found["state_lost"]) == (str(round_ + 1), False)
            server.stop(number)


CUT = "x = 2; open('f', 'w').write('cut'); print('begun', flush=True)\nimport time; time.sleep(1000); x = 3"
CUT_RESULT = "(2, 'cut')"
CUT_NOTE = "Not back: the rest of the cell that ran when the server ended."


async def test_a_cell_that_runs_when_a_server_on_stdio_ends_is_interrupted_and_the_next_result_says_so(
    connect: Connect,
) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="0") as client:
        cut = await begun(client)
    async with connect() as client:
        await says_that_it_was_cut(client)
        found = fields(await client.call_tool("get_execution", {"execution_id": cut}))
        assert (found["status"], found["state_lost"], found["error"]["name"]) == ("interrupted", False, "ServerStopped")
        assert GONE not in found["error"]["value"]


async def test_a_cell_that_a_drain_interrupts_is_told_to_the_next_server(tmp_path: Path) -> None:
    settings = {"SESSIONS__INLINE_WAIT_SECONDS": "0", "TRANSPORT_HTTP__DRAIN_SECONDS": "0"}
    with serving(tmp_path, **settings) as server:
        async with server.client() as client:
            await begun(client)
        server.stop(signal.SIGTERM)
    with serving(tmp_path) as server:
        async with server.client() as client:
            await says_that_it_was_cut(client)


async def begun(client: Client) -> str:
    """The id of a cell that has begun, and goes on; there is a checkpoint of what was before."""
    await printed(client, "x = 1; print('done', flush=True)", "done")
    while (await client.call_tool("checkpoint_session", {"session_id": "s", "name": "before"})).is_error:
        pass  # the cell has printed, and not ended
    return await printed(client, CUT, "begun")


async def printed(client: Client, code: str, words: str) -> str:
    found = await run(client, code, session_id="s")
    while words not in found["stdout"]:
        asked = {"execution_id": found["execution_id"], "wait_seconds": 1}
        found = fields(await client.call_tool("get_execution", asked))
    return found["execution_id"]


async def says_that_it_was_cut(client: Client) -> None:
    result = await execute(client, "x, open('f').read()", session_id="s")
    assert (fields(result)["result"], fields(result)["state_lost"]) == (CUT_RESULT, False), text(result)
    assert CUT_NOTE in text(result)
    assert "restore_session(session_id='s', name='before')" in text(result)
    assert CUT_NOTE not in text(await execute(client, "x", session_id="s"))
