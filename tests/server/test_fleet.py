"""Several servers with one home: any of them answers for any session, and a session has one kernel at a time."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from .http_support import HttpServer, error_code, run, serving
from .support import wait_until

MODERN = "2026-07-28"
SLOTS = ("s1", "s2")


class Servers:
    """Servers with these slots and one home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self.by_slot: dict[str, HttpServer] = {}

    def start(self, slot: str, **settings: str) -> HttpServer:
        server = self._stack.enter_context(serving(self.folder, SERVER__SLOT=slot, **settings))
        self.by_slot[slot] = server
        return server

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers(tmp_path)
    yield found
    found.close()


@pytest.fixture
def both(servers: Servers) -> tuple[HttpServer, HttpServer]:
    return servers.start("s1"), servers.start("s2")


async def listed(client: Client) -> Client:
    """A client that knows the tools, and so the headers of their arguments."""
    await client.list_tools()
    return client


def test_ids_begin_with_the_slot(both: tuple[HttpServer, HttpServer]) -> None:
    async def scenario() -> None:
        for server, slot in zip(both, SLOTS, strict=True):
            async with server.client(mode=MODERN) as client:
                first = await run(await listed(client), "1")
                assert first["session_id"].startswith(f"{slot}.")
                assert first["execution_id"].startswith(f"{slot}-")
                found = await client.call_tool("get_execution", {"execution_id": first["execution_id"]})
                assert found.structured_content["status"] == "ok"
                made = await client.call_tool("create_session", {})
                assert made.structured_content["session_id"].startswith(f"{slot}.")

    anyio.run(scenario)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_a_session_moves_with_its_calls(both: tuple[HttpServer, HttpServer], mode: str) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=mode) as one, both[1].client(mode=mode) as two:
            await listed(one), await listed(two)
            first = await run(one, "x = 1\nopen('f.txt', 'w').write('kept')", session_id="moving")
            for number in range(2, 6):
                client = (one, two)[number % 2]
                found = await run(client, "x += 1\nprint(x, open('f.txt').read())", session_id="moving")
                assert found["stdout"] == f"{number} kept\n", found
            past = await two.call_tool("get_execution", {"execution_id": first["execution_id"]})
            assert past.structured_content["status"] == "ok"
            notebook = await two.read_resource("kernelmcp://sessions/moving/notebook")
            assert len(json.loads(notebook.contents[0].text)["cells"]) == 5
            listing = (await one.call_tool("get_sessions", {})).structured_content["sessions"]
            assert [session["session_id"] for session in listing] == ["moving"]

    anyio.run(scenario)


def test_a_busy_session_stays_where_it_runs(both: tuple[HttpServer, HttpServer], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 1", session_id="busy")
            async with anyio.create_task_group() as tasks:

                async def long() -> None:
                    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nx += 1"
                    assert (await run(one, code, session_id="busy"))["status"] == "ok"

                tasks.start_soon(long)
                while (await state_of(one, "busy")) != "busy":  # noqa: ASYNC110  # another process's state
                    await anyio.sleep(0.05)
                assert await error_code(two, "execute_code", code="x", session_id="busy") == "RESOURCE_LIMIT_EXCEEDED"
                await one.call_tool("write_file", {"path": "go", "content": "", "session_id": "busy"})
            assert (await run(two, "x", session_id="busy"))["result"] == "2"

    anyio.run(scenario)


async def state_of(client: Client, session_id: str) -> str:
    found = (await client.call_tool("get_sessions", {"session_id": session_id})).structured_content
    return found["sessions"][0]["state"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_sessions_of_a_server_that_ended_answer_elsewhere(
    both: tuple[HttpServer, HttpServer], number: signal.Signals
) -> None:
    async def scenario() -> dict[str, Any]:
        async with both[0].client(mode=MODERN) as one:
            await run(await listed(one), "x = 1\nopen('f.txt', 'w').write('kept')", session_id="left")
        both[0].stop(number)
        async with both[1].client(mode=MODERN) as two:
            return await run(await listed(two), "print(open('f.txt').read(), 'x' in globals())", session_id="left")

    found = anyio.run(scenario)
    assert found["stdout"] == f"kept {number is signal.SIGTERM}\n"
    assert found["state_lost"] is (number is signal.SIGKILL), found


def test_a_paused_server_writes_nothing_that_its_successor_sees(both: tuple[HttpServer, HttpServer]) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 'first'\nopen('f.txt', 'w').write('first')", session_id="paused")
            code = "import time\nfor n in range(10_000): open('f.txt', 'w').write(f'late {n}'); time.sleep(0.01)"
            async with anyio.create_task_group() as tasks:

                async def late() -> None:
                    await one.call_tool("execute_code", {"code": code, "session_id": "paused"})

                tasks.start_soon(late)
                while (await state_of(one, "paused")) != "busy":  # noqa: ASYNC110  # another process's state
                    await anyio.sleep(0.05)
                both[0].process.send_signal(signal.SIGSTOP)
                found = await run(two, "y = 'second'\nprint(open('f.txt').read())", session_id="paused")
                assert found["state_lost"], found
                seen = found["stdout"]
                both[0].process.send_signal(signal.SIGCONT)
                assert await anyio.to_thread.run_sync(
                    lambda: wait_until(lambda: both[0].logged("another server has taken over a session"))
                )
                tasks.cancel_scope.cancel()
            found = await run(two, "print(y, open('f.txt').read())", session_id="paused")
            assert found["stdout"] == f"second {seen}"
            # The paused one is a server like the others again: the session moves back to it when it is called there.
            assert (await run(one, "print(y)", session_id="paused"))["stdout"] == "second\n"
            notebook = await one.read_resource("kernelmcp://sessions/paused/notebook")
            sources = [cell["source"] for cell in json.loads(notebook.contents[0].text)["cells"]]
            assert [source.splitlines()[0] for source in map("".join, sources)] == [
                "x = 'first'", "import time", "y = 'second'", "print(y, open('f.txt').read())", "print(y)",
            ]  # fmt: skip

    anyio.run(scenario)


def test_two_servers_with_one_slot(servers: Servers) -> None:
    servers.start("s1")
    with pytest.raises(AssertionError, match="another server with the slot 's1' uses this home"):
        servers.start("s1")
