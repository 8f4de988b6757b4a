"""Limits, damage, many sessions at once and one after another: through a real client."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from ..processes import children_of
from .support import Connect, kernel_pids, server_of_test, wait_until

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    return (await client.call_tool(tool, arguments)).structured_content


def files_in(folder: Path) -> dict[str, str]:
    """Every file of every workspace."""
    return {path.name: path.read_text() for path in folder.glob("home/sandboxes/*/workspace/*")}


async def states(client: Client) -> dict[str, str]:
    return {one["session_id"]: one["state"] for one in (await call(client, "get_sessions"))["sessions"]}


async def test_at_the_limit_the_longest_idle_session_is_stopped_and_its_files_are_kept(connect: Connect) -> None:
    async with connect(SESSIONS__MAX_SESSIONS_PER_CLIENT="2") as client:
        for name in ("a", "b"):
            await call(client, "execute_code", code=f"open('f', 'w').write('{name}')", session_id=name)
        await call(client, "execute_code", code="1", session_id="a")
        await call(client, "execute_code", code="1", session_id="c")
        assert await states(client) == {"a": "idle", "b": "stopped", "c": "idle"}
        back = await call(client, "execute_code", code="open('f').read()", session_id="b")
        assert (back["result"], back["state_lost"]) == ("'b'", False)
        assert await states(client) == {"a": "stopped", "b": "idle", "c": "idle"}


async def test_at_the_limit_nothing_that_runs_is_stopped(connect: Connect) -> None:
    settings = {"MAX_SESSIONS_PER_CLIENT": "1", "INLINE_WAIT_SECONDS": "0"}
    async with connect(**{f"SESSIONS__{name}": value for name, value in settings.items()}) as client:
        running = await call(client, "execute_code", code="while True: pass", session_id="a")
        assert running["status"] == "running"
        error = (await call(client, "create_session", session_id="b"))["error"]
        assert error["error_code"] == "RESOURCE_LIMIT_EXCEEDED"
        await call(client, "destroy_session", session_id="a")
        assert (await call(client, "create_session", session_id="b"))["created"]


async def test_sessions_of_an_earlier_server_are_listed_without_being_started(connect: Connect) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="open('f', 'w').write('12345')", session_id="s")
    async with connect() as client:
        [info] = (await call(client, "get_sessions"))["sessions"]
        assert (info["session_id"], info["state"], info["workspace_bytes"]) == ("s", "stopped", 5)
        assert info["execution_count"] == 1
        [info] = (await call(client, "get_sessions", session_id="s"))["sessions"]
        assert (info["state"], kernel_pids()) == ("stopped", [])
        assert (await call(client, "execute_code", code="open('f').read()", session_id="s"))["result"] == "'12345'"


@pytest.mark.parametrize("rubbish", [b"", b"\xff\xfe", b"[]", b'{"sandboxes": []}', b'{"sandboxes": [".."]}'])
async def test_a_damaged_record_is_read_from_its_copy(connect: Connect, tmp_path: Path, rubbish: bytes) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="open('f', 'w').write('kept')", session_id="s")
    (tmp_path / "home/sessions/s/session.json").write_bytes(rubbish)
    async with connect() as client:
        assert (await call(client, "execute_code", code="open('f').read()", session_id="s"))["result"] == "'kept'"


async def test_what_a_later_version_has_written_into_a_record_stays_there(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="1", session_id="s")
    files = [tmp_path / "home/sessions/s" / name for name in ("session.json", "session.copy.json")]
    for file in files:
        record = json.loads(file.read_text())
        record.pop("checksum")
        file.write_text(json.dumps(record | {"of_later": {"a": [1]}}))
    async with connect() as client:
        await call(client, "execute_code", code="1", session_id="s")
    records = [json.loads(file.read_text()) for file in files]
    assert [(record["execution_count"], record["of_later"]) for record in records] == [(2, {"a": [1]})] * 2


async def test_a_session_damaged_beyond_that_is_a_clear_error_and_loses_no_file(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="open('f', 'w').write('kept')", session_id="s")
    for name in ("session.json", "session.copy.json"):
        (tmp_path / "home/sessions/s" / name).write_bytes(b"rubbish")
    # A record that names a path, and is old enough to be deleted with what it names; and one that nobody can read.
    (tmp_path / "home/sessions/t").mkdir()
    record = {"session_id": "t", "principal": "local", "sandboxes": [".."]}
    record |= dict.fromkeys(("created_at", "last_used_at"), "2020-01-01T00:00:00+00:00")
    for name in ("session.json", "session.copy.json"):
        (tmp_path / "home/sessions/t" / name).write_text(json.dumps(record))
    (tmp_path / "home/sessions/u").mkdir()
    os.mkfifo(tmp_path / "home/sessions/u/session.json")
    async with connect() as client:
        error = (await call(client, "execute_code", code="1", session_id="s"))["error"]
        assert "damaged" in error["message"]
        assert error["recovery_suggestions"]
        assert (await call(client, "execute_code", code="1 + 1", session_id="other"))["result"] == "2"
        assert [one["session_id"] for one in (await call(client, "get_sessions"))["sessions"]] == ["other"]
    assert files_in(tmp_path) == {"f": "kept"}


async def test_a_damaged_transcript_is_put_aside_and_the_session_goes_on(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="open('f', 'w').write('kept')", session_id="s")
    folder = tmp_path / "home/sessions/s"
    (folder / "notebook.ipynb").write_text("rubbish")
    async with connect() as client:
        assert (await call(client, "execute_code", code="open('f').read()", session_id="s"))["result"] == "'kept'"
        assert wait_until((folder / "notebook.damaged.ipynb").exists)  # a server that ends has two seconds for it
    assert (folder / "notebook.damaged.ipynb").read_text() == "rubbish"
    assert len(json.loads((folder / "notebook.ipynb").read_text())["cells"]) == 2, "the journal has the first"


async def test_sessions_that_nobody_used_for_long_go_to_the_trash(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        for name in ("old", "new"):
            await call(client, "execute_code", code="open('f', 'w').write('kept')", session_id=name)
    for name in ("session.json", "session.copy.json"):
        file = tmp_path / "home/sessions/old" / name
        record = json.loads(file.read_text())
        record.pop("checksum")  # as a version before had none
        record["last_used_at"] = (datetime.now(UTC) - timedelta(days=31)).isoformat()
        file.write_text(json.dumps(record))
    async with connect() as client:
        folder = tmp_path / "home/sessions"
        assert await anyio.to_thread.run_sync(wait_until, lambda: [one.name for one in folder.iterdir()] == ["new"])
        assert [one["session_id"] for one in (await call(client, "get_sessions"))["sessions"]] == ["new"]
        assert [one.name for one in (tmp_path / "home/trash").iterdir()] == ["old"]  # for a week: test_clock.py
        assert files_in(tmp_path) == {"f": "kept"}


@pytest.mark.slow
async def test_fifty_sessions_one_after_another_leave_nothing(connect: Connect, tmp_path: Path) -> None:
    async with connect() as client:
        server = server_of_test()

        def what_is_left() -> list[object]:
            kept = [path.name for path in (tmp_path / "home").rglob("*") if not path.name.endswith(".lock")]
            runtime = [path.name for path in Path(f"/tmp/kmt-{os.getpid()}").glob("*/*")]
            return [server.children(recursive=True), server.num_fds(), sorted(kept), sorted(runtime)]

        async def use(name: str) -> None:
            code = f"open('f', 'w').write('x'); print('{name}')"
            assert (await call(client, "execute_code", code=code, session_id=name))["stdout"] == f"{name}\n"
            assert (await call(client, "destroy_session", session_id=name))["destroyed"]

        await use("first")
        files = [tmp_path / "home/sandboxes", tmp_path / "home/sessions"]
        assert await anyio.to_thread.run_sync(
            wait_until,
            lambda: not children_of(server) and not any(path.is_dir() for one in files for path in one.iterdir()),
        )
        before = what_is_left()
        for number in range(50):
            await use(f"s{number}")
        assert await anyio.to_thread.run_sync(wait_until, lambda: what_is_left() == before), (before, what_is_left())


@pytest.mark.slow
async def test_twenty_sessions_in_parallel_do_not_mix(connect: Connect) -> None:
    settings = {"MAX_SESSIONS_PER_CLIENT": "20"}
    code = (
        "import asyncio, sys\nmine = {name!r}\nfor i in range(40):\n"
        "    print(mine, i); print(mine, file=sys.stderr)\n    await asyncio.sleep(0.005)\n"
        "open('f', 'w').write(mine)\ndisplay({{'text/plain': mine}}, raw=True)\nmine"
    )
    async with connect(**{f"SESSIONS__{name}": value for name, value in settings.items()}) as client:
        seen: dict[str, list[dict]] = {}
        heard: dict[str, str] = {}

        async def use(name: str) -> None:
            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                heard[name] = heard.get(name, "") + (message or "")

            arguments = {"code": code.format(name=name), "session_id": name}
            first = await client.call_tool("execute_code", arguments, progress_callback=on_progress)
            again = await call(client, "execute_code", code="print(mine, open('f').read())", session_id=name)
            seen[name] = [first.structured_content, again]

        names = [f"only-{number:02}-" for number in range(20)]
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(use, name)
        for name in names:
            first, again = seen[name]
            assert first["stdout"] == "".join(f"{name} {i}\n" for i in range(40))
            assert first["stderr"] == f"{name}\n" * 40
            assert (first["result"], again["stdout"]) == (repr(name), f"{name} {name}\n")
            others = json.dumps([*seen[name], heard[name]])
            assert not any(other in others for other in names if other != name)
