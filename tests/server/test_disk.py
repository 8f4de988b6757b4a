"""What a principal's sessions may take on disk together, how many are kept, and how they are listed."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from kernelmcp.sessions.storage.disk_use import measure
from kernelmcp.sessions.storage.record import Record, now

from .support import DEADLINE, Connect

pytestmark = pytest.mark.anyio
MB = 2**20
# Files, a transcript and a record in blocks, for each session.
SMALL = MB


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    found = await client.call_tool(tool, arguments)
    assert found.structured_content is not None, found.content
    return found.structured_content


async def store(client: Client, session: str, megabytes: int) -> dict[str, Any]:
    code = f"with open('file', 'wb', buffering=0) as file: [file.write(bytes(2**20)) for _ in range({megabytes})]"
    return await call(client, "execute_code", session_id=session, code=code)


def record(home: Path, name: str, last_used_at: str) -> None:
    directory = home / "sessions" / name
    directory.mkdir(parents=True)
    Record(session_id=name, principal="local", created_at=now(), last_used_at=last_used_at).write(directory)


async def test_sessions_of_one_principal_share_a_bound_that_each_alone_would_not_meet(
    connect: Connect, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("a native kernel keeps no quota")
    limits = {"POLICY__STORAGE_MAX_MB": "40", "POLICY__WORKSPACE_MAX_MB": "32"}
    # Saved variables would take a part of it, too.
    settings = {"SESSIONS__MAX_SESSIONS_PER_CLIENT": "2", "SESSIONS__HIBERNATE": "false"}
    async with connect(**settings, **limits) as client:
        assert (await store(client, "s0", 30))["success"]
        for number in range(1, 5):
            ended = await store(client, f"s{number}", 30)
            assert not ended["success"]
            assert "No space left on device" in ended["error"]["value"]
        assert sum(measure(path)[1] for path in (tmp_path / "home" / "sandboxes").iterdir()) < 40 * MB + 5 * SMALL
        written = await client.call_tool("write_file", {"session_id": "s0", "path": "new", "content": "x" * MB})
        assert written.is_error
        # What is there can be read and deleted, and makes room for the others.
        assert (await call(client, "execute_code", session_id="s0", code="import os; os.remove('file')"))["success"]
        assert (await store(client, "s1", 8))["success"]


async def test_a_new_session_is_refused_when_nothing_is_left_and_the_others_go_on(
    connect: Connect, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("a native kernel keeps no quota")
    async with connect(POLICY__STORAGE_MAX_MB="5") as client:
        assert (await store(client, "s", 4))["success"]
        refused = await client.call_tool("execute_code", {"session_id": "new", "code": "1"})
        assert refused.is_error
        assert "RESOURCE_LIMIT_EXCEEDED: your sessions take" in refused.content[0].text
        assert "destroy_session" in refused.content[0].text
        assert (await call(client, "execute_code", session_id="s", code="import os; os.remove('file')"))["success"]
        assert (await call(client, "execute_code", session_id="new", code="1"))["success"]


async def test_what_stopped_sessions_take_counts_in_the_next_server(connect: Connect, kernelspec: str) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("a native kernel keeps no quota")
    limits = {"POLICY__STORAGE_MAX_MB": "9"}
    async with connect(**limits) as client:
        assert (await store(client, "old", 8))["success"]
    async with connect(**limits) as client:

        async def is_refused() -> bool:
            made = await client.call_tool("write_file", {"session_id": "new", "path": "f", "content": ""})
            if not made.is_error:
                await call(client, "destroy_session", session_id="new")
            return bool(made.is_error)

        with anyio.fail_after(DEADLINE):
            while not await is_refused():  # noqa: ASYNC110  # until the first sweep has measured, which tells nobody
                await anyio.sleep(0.05)
        assert (await call(client, "destroy_session", session_id="old"))["destroyed"]
        assert not await is_refused()


async def test_sessions_beyond_max_stored_are_deleted_the_longest_unused_first(
    connect: Connect, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for day in range(10, 22):
        record(home, f"day{day}", f"2026-11-{day}T12:00:00+00:00")
    async with connect(SESSIONS__MAX_STORED="3", SESSIONS__KEEP_DAYS="0") as client:
        while (listed := await call(client, "get_sessions"))["total"] > 3:  # noqa: ASYNC110  # the disk tells nobody
            await anyio.sleep(0.05)
        assert [one["session_id"] for one in listed["sessions"]] == ["day21", "day20", "day19"]


async def test_many_sessions_are_listed_in_pages_the_newest_first(connect: Connect, tmp_path: Path) -> None:
    names = [f"s{number:03}" for number in range(120)]
    for number, name in enumerate(names):
        record(tmp_path / "home", name, f"2026-11-20T{number // 60:02}:{number % 60:02}:00+00:00")
    async with connect(SESSIONS__KEEP_DAYS="0") as client:
        pages: list[dict[str, Any]] = [await call(client, "get_sessions")]
        while pages[-1]["next_cursor"] is not None:
            pages.append(await call(client, "get_sessions", cursor=pages[-1]["next_cursor"]))
        assert [len(page["sessions"]) for page in pages] == [50, 50, 20]
        assert {page["total"] for page in pages} == {120}
        assert [one["session_id"] for page in pages for one in page["sessions"]] == names[::-1]
        text = (await client.call_tool("get_sessions", {"limit": 1})).content[0].text
        assert text.startswith("s119: stopped, python, medium, 0 executions")
        assert "[120 in all; the next ones: get_sessions(cursor=" in text
        resource = (await client.read_resource("kernelmcp://sessions")).contents[0].text
        assert len(json.loads(resource)["sessions"]) == 50
