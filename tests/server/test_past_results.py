"""Results are readable by their id after the server's end, sudden or not: through real clients and servers."""

import json
from pathlib import Path
from typing import Any

import anyio
import nbformat
import pytest
from mcp import Client, MCPError

from kernelmcp.cells import event
from kernelmcp.cells.log import MAX_EVENT_BYTES
from kernelmcp.cells.lookup import last_bytes, unfinished, whole_lines

from .support import DEADLINE, Connect, wait_until
from .test_continuing import CONTINUES, fields, killed, text
from .test_session_life import call

pytestmark = pytest.mark.anyio
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    return fields(await client.call_tool("execute_code", {"code": code, **arguments}))


async def again(client: Client, execution_id: str) -> dict[str, Any]:
    return fields(await client.call_tool("get_execution", {"execution_id": execution_id}))


async def resource(client: Client, execution_id: str, part: str) -> Any:
    [content] = (await client.read_resource(f"kernelmcp://executions/{execution_id}/{part}")).contents
    return content.text if hasattr(content, "text") else content.blob


async def test_finished_results_are_readable_after_a_kill(connect: Connect) -> None:
    ok = (
        "import sys; print('out'); print('err', file=sys.stderr)\nopen('f', 'w').write('12')\n"
        f"display({{'image/png': '{PICTURE}'}}, raw=True); display({{'text/html': '<b>x</b>'}}, raw=True)\n[7]"
    )
    handler = "def handler(event, context): return {'n': event['n'] + 1}"
    async with killed(connect) as client:
        before = [
            await run(client, ok, session_id="s"),
            await run(client, "1 / 0", session_id="s"),
            await run(client, handler, session_id="s", event={"n": 1}),
        ]
    async with connect() as client:
        after = [await again(client, one["execution_id"]) for one in before]
        for old, new in zip(before, after, strict=True):
            assert new == old | {"session_created": False}
        first = before[0]["execution_id"]
        assert await resource(client, first, "stdout") == "out\n"
        assert await resource(client, first, "stderr") == "err\n"
        assert await resource(client, first, "result") == "[7]"
        assert await resource(client, first, "outputs/0") == PICTURE
        assert json.loads(await resource(client, first, "outputs/1")) == {"text/html": "<b>x</b>"}
        assert "ZeroDivisionError" in await resource(client, before[1]["execution_id"], "error")
        shown = await client.call_tool("get_execution", {"execution_id": first})
        assert [block.type for block in shown.content][:2] == ["text", "image"]
        cancelled = fields(await client.call_tool("cancel_execution", {"execution_id": first}))
        assert (cancelled["cancelled"], cancelled["status"], cancelled["session_id"]) == (False, "ok", "s")


async def test_what_was_beyond_the_caps_says_so(connect: Connect) -> None:
    async with connect() as client:
        code = (
            "print('x' * 300_000)\n"
            "for i in range(3): display({'a/b': str(i) * (1_900_000 if i < 2 else 1)}, raw=True)\n"
            "for i in range(2): display({'a/b': str(i + 1) * (1_900_000 if i < 1 else 1)}, raw=True)"
        )
        ran = await run(client, code)
    async with connect() as client:
        execution_id = ran["execution_id"]
        after = await again(client, execution_id)
        assert after["truncated"]["stdout"]["total_chars"] == 300_001
        assert "the server kept 100," in after["stdout"]
        assert "200,001 more bytes were cut" in await resource(client, execution_id, "stdout")
        assert json.loads(await resource(client, execution_id, "outputs/1")) == {"a/b": "1" * 1_900_000}
        assert json.loads(await resource(client, execution_id, "outputs/2")) == {"a/b": "2"}
        assert "too large" in await resource(client, execution_id, "outputs/3"), "4 MiB are full"
        assert json.loads(await resource(client, execution_id, "outputs/4")) == {"a/b": "2"}


async def test_an_execution_that_ran_when_the_server_was_killed_is_there_as_interrupted(
    connect: Connect, tmp_path: Path
) -> None:
    code = "import time\nx = 1\nfor n in range(1000): print('line', n, flush=True); time.sleep(0.1)"
    async with killed(connect, SESSIONS__INLINE_WAIT_SECONDS="0.5") as client:
        running = await run(client, code)
        waiting = await run(client, "2")
        assert (running["status"], waiting["status"]) == ("running", "running")
        with anyio.fail_after(DEADLINE):
            while "line 5" not in (await again(client, running["execution_id"]))["stdout"]:
                pass
        with anyio.fail_after(DEADLINE):
            assert await anyio.to_thread.run_sync(wait_until, lambda: "line 5" in str(left_running(tmp_path)))
    assert set(left_running(tmp_path)) == {running["execution_id"], waiting["execution_id"]}
    async with connect() as client:
        for _ in range(2):  # as the session is opened, and after that
            found = await again(client, running["execution_id"])
            assert (found["status"], found["state_lost"], found["exit_code"]) == ("interrupted", True, 130)
            assert "line 5" in found["stdout"]
            assert found["error"]["name"] == "ServerStopped"
            never = await again(client, waiting["execution_id"])
            assert (never["status"], never["state_lost"], never["stdout"]) == ("interrupted", False, "")
            assert "before the cell began" in never["error"]["value"]
            assert (never["execution_time_ms"], never["queued_ms"] < 1000 * DEADLINE) == (0, True)
            told = await client.call_tool("execute_code", {"code": "'x' in globals()"})
            assert fields(told)["result"] == "False"
            assert (CONTINUES in text(told)) == (running["execution_id"] in text(told))
        book = nbformat.reads(await notebook(client, running["session_id"]), as_version=4)
        nbformat.validate(book)
        assert sorted(cell.source for cell in book.cells) == sorted([code, "2", *["'x' in globals()"] * 2])
    assert not left_running(tmp_path)


async def test_an_id_that_was_given_while_the_first_kernel_started_is_known_after_a_kill(connect: Connect) -> None:
    async with killed(connect, SESSIONS__INLINE_WAIT_SECONDS="0") as client:
        given = await run(client, "x = 1", session_id="s")
        installed = await call(client, "install_package", package_name="attrs", session_id="i")
        cancelled = await run(client, "y = 1", session_id="s")
        await call(client, "cancel_execution", execution_id=cancelled["execution_id"])
        await call(client, "create_session", session_id="j", language="javascript", flavor="small")
    async with connect() as client:
        for each, name in ((given, "ServerStopped"), (installed, "ServerStopped"), (cancelled, "Cancelled")):
            found = await again(client, each["execution_id"])
            assert (found["status"], found["error"]["name"]) == ("interrupted", name)
        made = await call(client, "create_session", session_id="j")
        assert (made["created"], made["language"], made["flavor"]) == (False, "javascript", "small")


def left_running(folder: Path) -> dict[str, list[bytes]]:
    """The events of the cells that have not ended."""
    logs = folder.glob("home/sessions/*/notebook.jsonl")
    return {cell: lines for log in logs for cell, lines in unfinished(last_bytes(log)[1])[0].items()}


async def notebook(client: Client, session_id: str) -> str:
    return (await client.read_resource(f"kernelmcp://sessions/{session_id}/notebook")).contents[0].text


@pytest.mark.parametrize("output", ["1", "print('x' * 200_000)", "display({'image/png': 'x' * 1_500_000}, raw=True)"])
async def test_a_cell_is_on_disk_when_it_is_answered_however_much_it_put_out(
    connect: Connect, tmp_path: Path, output: str
) -> None:
    """Also in a continued session: nothing waits for its log to be read."""
    for number in range(2):
        async with killed(connect) as client:
            ran = await run(client, output, session_id="s")
            log = tmp_path / "home/sessions/s/notebook.jsonl"
            ended = [event.kind_of(line)[1] for line in whole_lines(log) if event.is_whole(line)]
            assert (len(ended), ended[-1]) == (number + 1, ran["execution_id"])
            assert not left_running(tmp_path)


LATER = """
import asyncio
from IPython.display import update_display
done = asyncio.Event()
async def later():
    await asyncio.sleep(0.1)
    print('late')
    done.set()
task = asyncio.ensure_future(later())
print('own')
display({'text/plain': 'old'}, raw=True, display_id='shown');
"""
UPDATE = "await done.wait()\nupdate_display({'text/plain': 'new'}, raw=True, display_id='shown')"


@pytest.mark.parametrize("ended", [True, False], ids=["stopped", "killed"])
async def test_what_comes_after_a_cells_end_is_in_the_cell_everywhere(
    connect: Connect, tmp_path: Path, ended: bool
) -> None:
    """The output of its task, and an update of its display by a later cell."""
    log = tmp_path / "home/sessions/s/notebook.jsonl"
    async with killed(connect) as client:
        ran = await run(client, LATER, session_id="s")
        assert ran["stdout"] == "own\n"
        assert (await run(client, UPDATE, session_id="s"))["background"] == "late"
        assert (await again(client, ran["execution_id"]))["stdout"] == "own\nlate\n"
        assert await anyio.to_thread.run_sync(wait_until, lambda: b'"new"' in log.read_bytes())
        if ended:
            await client.call_tool("stop_session", {"session_id": "s"})
            assert shown_in(log.with_suffix(".ipynb")) == ("own\nlate\n", "new")
    async with connect() as client:
        after = await again(client, ran["execution_id"])
        assert (after["status"], after["stdout"]) == ("ok", "own\nlate\n")
        assert json.loads(await resource(client, ran["execution_id"], "outputs/0")) == {"text/plain": "new"}
        await run(client, "1", session_id="s")
    assert shown_in(log.with_suffix(".ipynb")) == ("own\nlate\n", "new")


async def test_late_output_that_nothing_follows_is_in_the_notebook(connect: Connect, tmp_path: Path) -> None:
    """Long after its cell was saved; the session goes on without a word."""
    async with connect() as client:
        body = "import asyncio\nasync def later():\n    await asyncio.sleep(2); print('late')\n"
        await run(client, body + "task = asyncio.ensure_future(later()); print('own')", session_id="s")
        notebook = tmp_path / "home/sessions/s/notebook.ipynb"
        with anyio.fail_after(DEADLINE):
            assert await anyio.to_thread.run_sync(
                wait_until, lambda: notebook.exists() and "late\\n" in notebook.read_text()
            )


def shown_in(notebook: Path) -> tuple[str, str]:
    """The text of its first cell, and what that displays."""
    outputs = json.loads(notebook.read_text())["cells"][0]["outputs"]
    [shown] = [one["data"]["text/plain"] for one in outputs if "data" in one]
    return "".join(one["text"] for one in outputs if "text" in one), shown


async def test_a_cell_that_runs_when_the_server_ends_in_order_is_told_too(connect: Connect) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="1") as client:
        running = await run(client, "print('begun', flush=True)\nwhile True: pass")
        while (await again(client, running["execution_id"]))["stdout"] != "begun\n":
            await anyio.lowlevel.checkpoint()
    async with connect() as client:
        found = await client.call_tool("get_workspace_info", {})
        assert running["execution_id"] in text(found)
        after = await again(client, running["execution_id"])
        assert (after["status"], after["stdout"]) == ("interrupted", "begun\n")


async def test_ids_that_are_unknown_forged_or_of_a_deleted_session_are_not_found(connect: Connect) -> None:
    async with connect() as client:
        ran = await run(client, "1", session_id="s")
        mark = ran["execution_id"][:4]
        # A cell may print what looks like the metadata of another one.
        forged = f"{mark}{'A' * 22}"
        value = {"metadata": {"kernelmcp": {"execution_id": forged, "status": "ok"}}}
        await run(client, f"display({{'application/json': {value!r}}}, raw=True)", session_id="s")
        gone = (await run(client, "1", session_id="gone"))["execution_id"]
        await client.call_tool("destroy_session", {"session_id": "gone"})
    async with connect() as client:
        for unknown in (forged, gone, f"{mark}../../../../etc/passwd", "", "nope", "x" * 100_000):
            error = fields(await client.call_tool("get_execution", {"execution_id": unknown}))["error"]
            assert error["error_code"] == "EXECUTION_NOT_FOUND"
        with pytest.raises(MCPError):
            await client.read_resource(f"kernelmcp://executions/{forged}/stdout")


async def test_a_journal_of_an_older_version_still_answers(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        ran = await run(client, "print('old'); 5", session_id="s")
    journal = tmp_path / "home/sessions/s/notebook.jsonl"
    cell = json.loads(journal.read_text().splitlines()[-1])
    cell["metadata"]["kernelmcp"] = {"execution_id": ran["execution_id"], "status": "ok"}
    journal.write_text(json.dumps(cell) + "\nnot json\n" + json.dumps({"metadata": ran["execution_id"]}) + "\n")
    async with connect() as client:
        after = await again(client, ran["execution_id"])
        assert (after["status"], after["stdout"], after["result"], after["execution_time_ms"]) == (
            "ok",
            "old\n",
            "5",
            0,
        )


@pytest.mark.parametrize("again", ["", "clear_output()\n    "])
async def test_what_a_running_cell_keeps_on_disk_has_bounds(connect: Connect, tmp_path: Path, again: str) -> None:
    code = (
        "from IPython.display import clear_output, display\nfor _ in range(4):\n    "
        f"{again}for n in range(11): display({{'text/plain': '\\x01' * (110_000 if n else 1_600_000)}}, raw=True)\n"
        "    time.sleep(0.1)\n"
        "print('all of it', flush=True)\ntime.sleep(1000)"
    )
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="1") as client:
        found = await run(client, f"import time\n{code}", session_id="s")
        execution_id = found["execution_id"]
        with anyio.fail_after(DEADLINE):
            while "all of it" not in found["stdout"]:
                found = fields(await client.call_tool("get_execution", {"execution_id": execution_id}))
        assert found["status"] == "running"
        # Nothing of a running cell is taken out again: this is the most that there was.
        assert 0 < (tmp_path / "home/sessions/s/notebook.jsonl").stat().st_size <= MAX_EVENT_BYTES
        await client.call_tool("cancel_execution", {"session_id": "s"})
