"""What a guest or a client can make the server hold, in memory, on disk and in descriptors, is bounded and is said."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import nbformat
import psutil
import pytest
from mcp import Client

from ..starting import start_server
from .support import DEADLINE, Connect, server_of_test, wait_until

pytestmark = pytest.mark.anyio


async def run(client: Client, code: str, session_id: str = "s", **more: object) -> dict:
    return (await client.call_tool("execute_code", {"code": code, "session_id": session_id, **more})).structured_content


async def read(client: Client, execution: dict, part: str) -> str:
    uri = f"kernelmcp://executions/{execution['execution_id']}/{part}"
    return (await client.read_resource(uri)).contents[0].text


def notebook_of(tmp_path: Path, session_id: str = "s") -> nbformat.NotebookNode:
    notebook = nbformat.read(tmp_path / "home/sessions" / session_id / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


async def test_displays_updates_metadata_results_and_errors_are_measured(connect: Connect, tmp_path: Path) -> None:
    async with connect(POLICY__OUTPUTS_MAX_BYTES="2000000") as client:
        shown = "for i in range(12): display({'text/plain': 'x'}, raw=True, display_id=f'u{i}')\n"
        update = "from IPython.display import update_display\nfor i in range(12): "
        big = "update_display({'text/plain': 'y' * 1_000_000}, raw=True, display_id=f'u{i}')"
        assert (await run(client, shown + update + big))["outputs_dropped"] == 11

        big = "display({'text/plain': 'x'}, metadata={'a': 'y' * 1_000_000}, raw=True)"
        assert (await run(client, f"for i in range(12): {big}"))["outputs_dropped"] == 11

        heavy = await run(client, "display({'application/json': [[] for i in range(100_000)]}, raw=True)")
        assert heavy["outputs_dropped"] == 1, "its text is small, and its memory is not"

        result = await run(client, "'x' * 3_000_000")
        assert (result["outputs_dropped"], result["truncated"]["result"]["total_chars"]) == (1, 3_000_002)
        assert "kept 100,000 of them" in result["result"]
        assert len(await read(client, result, "result")) == 100_000

        error = await run(client, "raise ValueError('x' * 5_000_000)")
        assert "characters left out" in error["error"]["value"]
        assert len(await read(client, error, "error")) < 300_000

        hostile = (
            "display({'application/json': float('nan'), 'text/plain': {'a': 1}}, metadata={'trusted': True}, raw=True)"
        )
        await run(client, hostile)

        first = await run(client, "h = display({'text/plain': 'before'}, raw=True, display_id='d')")
        await run(client, "update_display({'text/plain': 'after'}, raw=True, display_id='d')")
        assert json.loads(await read(client, first, "outputs/0")) == {"text/plain": "after"}

        for _ in range(3):
            last = await run(client, "display({'text/plain': 'z' * 1_500_000}, raw=True)")
        # The first is not kept any more: it is as the log has it.
        assert json.loads(await read(client, first, "outputs/0")) == {"text/plain": "after"}
        assert len(json.loads(await read(client, last, "outputs/0"))["text/plain"]) == 1_500_000
    cells = notebook_of(tmp_path).cells
    assert len(cells) == 11
    assert "more outputs of this cell were left out" in json.dumps(cells[0].outputs)
    assert "true" not in json.dumps([cell.metadata for cell in cells])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the limit of another process")
async def test_streams_keep_no_descriptor_and_what_cannot_be_kept_is_said(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        both = "import sys\nprint('x' * 1_100_000); print('y' * 1_100_000, file=sys.stderr)"
        await run(client, both)
        server = server_of_test()
        before = server.num_fds()
        for _ in range(5):
            last = await run(client, both)
        assert await anyio.to_thread.run_sync(wait_until, lambda: server.num_fds() <= before)
        assert await read(client, last, "stderr") == "y" * 1_100_000 + "\n"

        used = {int(name) for name in os.listdir(f"/proc/{server.pid}/fd")}
        server.rlimit(psutil.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), 4096))
        lost = await run(client, "for i in range(30): print('x' * 100_000)")
        server.rlimit(psutil.RLIMIT_NOFILE, (4096, 4096))
        assert lost["status"] == "ok"
        assert lost["truncated"]["stdout"]["total_chars"] == 30 * 100_001
        # The second if the result shows all that was kept.
        assert "the server kept" in lost["stdout"] or "characters were not kept" in lost["stdout"]
        assert len(await read(client, lost, "stdout")) <= 2**20
        assert len(await read(client, await run(client, both), "stdout")) == 1_100_001
        assert any((tmp_path / "home/sessions/s/outputs").iterdir())
    assert not (tmp_path / "home/sessions/s/outputs").exists()


async def test_a_notebook_is_bounded_and_says_what_it_lost(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await run(client, "print('a' * 150_000)\n'b' * 150_000")
        for _ in range(9):
            await run(client, "for i in range(2): display({'image/x': 'x' * 2_000_000}, raw=True)")
        await run(client, "display({'image/x': 'x' * 3_000_000}, raw=True)")
        file = tmp_path / "home/sessions/s/notebook.ipynb"
        assert await anyio.to_thread.run_sync(wait_until, lambda: "too large for the notebook" in file.read_text())
        with anyio.fail_after(DEADLINE):  # the notebook follows the log
            while (await client.read_resource("kernelmcp://sessions/s/notebook")).contents[0].text != file.read_text():
                await anyio.lowlevel.checkpoint()
        await run(client, "1")
    notebook = notebook_of(tmp_path)
    assert len(notebook.cells) == 12
    assert file.stat().st_size < 33 * 2**20
    assert "had grown too large" in notebook.cells[1].outputs[0].text
    assert len(notebook.cells[9].outputs) == 2, "the newest keep theirs"


@pytest.mark.parametrize("with_journal", [True, False])
async def test_damage_of_a_transcript_costs_its_own_lines_only(
    connect: Connect, tmp_path: Path, with_journal: bool
) -> None:
    folder = tmp_path / "home/sessions/s"
    async with connect() as client:
        await run(client, "1")
        await client.call_tool("stop_session", {"session_id": "s"})
    deep = b"[" * 200_000
    if with_journal:
        good = (folder / "notebook.jsonl").read_bytes()
        (folder / "notebook.jsonl").write_bytes(b'rubbish\n{"cells": null}\n\xff\n' + deep + b"\n" + good + b'{"torn')
        (folder / "notebook.ipynb").write_bytes(b'{"cells": null}')
    else:
        (folder / "notebook.jsonl").unlink(missing_ok=True)
        (folder / "notebook.ipynb").write_bytes(deep)

    def is_written() -> bool:
        with suppress(FileNotFoundError):  # the damaged one is being put aside
            return any(b'"2"' in file.read_bytes() for file in folder.glob("notebook.ipynb"))
        return False

    async with connect() as client:
        assert (await run(client, "2"))["result"] == "2"
        # A server that ends has two seconds for all of this.
        assert wait_until(is_written)
    assert [cell.source for cell in notebook_of(tmp_path).cells] == (["1", "2"] if with_journal else ["2"])
    assert (folder / "notebook.damaged.ipynb").read_bytes() == (b'{"cells": null}' if with_journal else deep)
    if with_journal:
        assert (folder / "notebook.damaged.jsonl").read_bytes().splitlines()[0] == b"rubbish"


async def test_a_running_cell_is_in_the_notebook_when_the_server_is_ended(connect: Connect, tmp_path: Path) -> None:
    async with connect(SESSIONS__INLINE_WAIT_SECONDS="1") as client:
        result = await run(client, "print('an hour of results')\nwhile True: pass")
        while not result["stdout"]:
            arguments = {"execution_id": result["execution_id"], "wait_seconds": 1}
            result = (await client.call_tool("get_execution", arguments)).structured_content
        server = server_of_test()
        server.send_signal(signal.SIGTERM)
        await anyio.to_thread.run_sync(psutil.wait_procs, [server], DEADLINE)
    [cell] = notebook_of(tmp_path).cells
    assert cell.metadata.kernelmcp.status == "interrupted"
    assert (cell.outputs[0].text, cell.outputs[1].ename) == ("an hour of results\n", "ServerStopped")
    assert json.loads((tmp_path / "home/sessions/s/session.json").read_text())["execution_count"] == 1


def test_a_client_that_does_not_read_is_not_read(server_env: dict[str, str]) -> None:
    server = start_server(env=server_env)
    assert server.stdin is not None
    assert server.stdout is not None

    def send(method: str, number: int | None = None, **params: object) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({"id": number} if number else {})}
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()

    def receive() -> dict:
        return json.loads(server.stdout.readline())

    try:
        client = {"name": "t", "version": "1"}
        send("initialize", 1, protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
        assert receive()["id"] == 1
        send("notifications/initialized")
        send("tools/call", 2, name="execute_code", arguments={"code": "print('x' * 5_000_000)"})
        execution = receive()["result"]["structuredContent"]["execution_id"]
        memory = psutil.Process(server.pid)
        limit = memory.memory_info().rss + 100 * 2**20
        for number in range(3, 33):
            send("resources/read", number, uri=f"kernelmcp://executions/{execution}/stdout")
        assert not wait_until(lambda: memory.memory_info().rss > limit, 3)
        answers = {(one := receive())["id"]: one["result"]["contents"][0]["text"] for _ in range(30)}
        assert (sorted(answers), set(map(len, answers.values()))) == (list(range(3, 33)), {5_000_001})
        # One that has gone without reading is noticed, too.
        for number in range(33, 43):
            send("resources/read", number, uri=f"kernelmcp://executions/{execution}/stdout")
        server.stdin.close()
        server.wait(DEADLINE)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
