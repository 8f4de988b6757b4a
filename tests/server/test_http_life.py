"""Lost connections, many clients at once, and the end of a server."""

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import nbformat
import psutil
import pytest
from mcp import Client
from mcp_types import ElicitResult

from ..processes import descendants
from .http_support import INITIALIZE, JSON_HEADERS, NO_TLS, HttpServer, error_code, run, serving
from .support import DEADLINE, wait_until

pytestmark = pytest.mark.cold
CLIENTS, SESSIONS, CALLS = 20, 4, 200
STEPS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nfinished = 'all of it'"
FOREVER = "import time\nwhile True: print('.', end=''); time.sleep(0.05)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("life")
    with serving(
        folder,
        SESSIONS__INLINE_WAIT_SECONDS="30",
        SESSIONS__MAX_SESSIONS_PER_CLIENT="20",
        TRANSPORT_HTTP__DRAIN_SECONDS="15",
    ) as found:
        found.folder = folder
        yield found


def call(code: str, session: str) -> dict[str, Any]:
    arguments = {"code": code, "session_id": session}
    return {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "execute_code", "arguments": arguments},
    }


async def until(server: HttpServer, session: str, state: str) -> None:
    """Until somebody who looks sees the session so."""

    async def state_now() -> str | None:
        content = (await client.call_tool("get_sessions", {})).structured_content
        return {found["session_id"]: found["state"] for found in content["sessions"]}.get(session)

    async with server.client() as client:
        while await state_now() != state:  # noqa: ASYNC110  # another process's state
            await anyio.sleep(0.05)


@asynccontextmanager
async def calling(server: HttpServer, how: str, code: str, session: str) -> AsyncIterator[None]:
    """A call whose connection is lost where this ends, without a word to the server."""
    async with httpx2.AsyncClient(timeout=DEADLINE, verify=NO_TLS) as http:
        if how == "streamable":
            opened = await http.post(server.mcp, content=json.dumps(INITIALIZE), headers=JSON_HEADERS)
            headers = {**JSON_HEADERS, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
            async with http.stream("POST", server.mcp, content=json.dumps(call(code, session)), headers=headers):
                yield
            return
        async with http.stream("GET", server.base + "/sse") as events:
            lines = events.aiter_lines()
            address = [await anext(lines), await anext(lines)][1].removeprefix("data: ")
            for message in (INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call(code, session)):
                answer = await http.post(server.base + address, json=message)
                assert answer.status_code == 202
            yield


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["streamable", "sse"])
async def test_a_lost_connection_interrupts_nothing(server: HttpServer, how: str) -> None:
    session = f"lost-{how}"
    with anyio.fail_after(DEADLINE):
        async with calling(server, how, STEPS, session):
            await until(server, session, "busy")
        async with server.client() as client:
            told = await client.call_tool("get_sessions", {"session_id": session})
            execution = told.structured_content["sessions"][0]["running"]
            assert f"busy with execution {execution}, " in told.content[0].text
            await client.call_tool("write_file", {"path": "go", "content": "", "session_id": session})
            found = await client.call_tool("get_execution", {"execution_id": execution, "wait_seconds": 30})
            assert found.structured_content["status"] == "ok"
        await until(server, session, "idle")
    async with server.client() as client:
        told = await client.call_tool("get_sessions", {"session_id": session})
        assert "running" not in told.structured_content["sessions"][0]
        assert (await run(client, "finished", session_id=session))["result"] == "'all of it'"
        await client.call_tool("destroy_session", {"session_id": session})


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto", "sse"])
async def test_a_clients_cancel_interrupts_and_keeps_the_state(server: HttpServer, mode: str) -> None:
    session = f"cancel-{mode}"
    async with server.client(mode=mode) as client:
        await run(client, "kept = 41", session_id=session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run(client, FOREVER, session_id=session))
            await until(server, session, "busy")
            tasks.cancel_scope.cancel()
        await until(server, session, "idle")
        assert (await run(client, "kept + 1", session_id=session))["result"] == "42"
        await client.call_tool("destroy_session", {"session_id": session})


@pytest.mark.anyio
async def test_a_call_that_is_repeated_with_an_answer_stays_in_its_session(server: HttpServer) -> None:
    """It names none: a second session would be made, and a cancel would miss the cell."""

    async def answer(_context: object, _params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "Ada"})

    async def sessions(client: Client) -> list[str]:
        listed = (await client.call_tool("get_sessions", {})).structured_content or {}
        return [each["session_id"] for each in listed["sessions"]]

    async with server.client(mode="auto", elicitation_callback=answer) as client:
        before = await sessions(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client, f"name = input()\nopen('named', 'w').close()\n{FOREVER}")
            with anyio.fail_after(DEADLINE):
                while not (made := [each for each in await sessions(client) if each not in before]):
                    pass
                while (await client.call_tool("read_file", {"path": "named", "session_id": made[0]})).is_error:
                    pass
            tasks.cancel_scope.cancel()
        await until(server, made[0], "idle")
        assert (await run(client, "name", session_id=made[0]))["result"] == "'Ada'"
        assert set(await sessions(client)) - set(before) == set(made)
        await client.call_tool("destroy_session", {"session_id": made[0]})


@pytest.mark.anyio
async def test_what_is_broken_off_in_the_middle_leaves_nothing(server: HttpServer) -> None:
    """Half an upload, a call and a stream without their client, and cancels that are POSTed in both eras."""
    body = json.dumps(call("1", "broken"))
    half = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode()
    headers = "".join(f"{name}: {value}\r\n" for name, value in JSON_HEADERS.items()).encode()
    modern = JSON_HEADERS | {"MCP-Protocol-Version": "2026-07-28"}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    }

    async def leave(http: httpx2.AsyncClient, message: dict[str, Any], headers: dict[str, str]) -> None:
        """Call, cancel by a message of its own, and go."""
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2, "_meta": meta}}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: http.post(server.mcp, content=json.dumps(message), headers=headers))
            await until(server, "broken", "busy")
            cancelling = headers | {"Mcp-Method": "notifications/cancelled"}
            assert (await http.post(server.mcp, json=cancel, headers=cancelling)).status_code == 202
            tasks.cancel_scope.cancel()

    async def once(client: Any) -> None:
        with server.connect() as connection:
            connection.sendall(half + headers + b"\r\n" + body[:20].encode())
        async with httpx2.AsyncClient(timeout=DEADLINE, verify=NO_TLS) as http:
            opened = await http.post(server.mcp, content=json.dumps(INITIALIZE), headers=JSON_HEADERS)
            legacy = JSON_HEADERS | {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            async with http.stream("GET", server.mcp, headers=legacy):
                await leave(http, call(FOREVER, "broken"), legacy)
                await until(server, "broken", "idle")
            new = call(FOREVER, "broken")
            new["params"]["_meta"] = meta
            await leave(http, new, modern | {"Mcp-Method": "tools/call", "Mcp-Name": "execute_code"})
            await http.delete(server.mcp, headers=legacy)
        await until(server, "broken", "idle")
        assert (await run(client, "kept + 1", session_id="broken"))["result"] == "42"
        assert await anyio.to_thread.run_sync(wait_until, lambda: "requests_active 0.0" in server.get("/metrics").text)

    async with server.client(mode="auto") as client:
        await run(client, "kept = 41", session_id="broken")
        await once(client)
        process = psutil.Process(server.process.pid)
        after_one = process.num_fds()
        await once(client)
        await once(client)
        assert await anyio.to_thread.run_sync(wait_until, lambda: process.num_fds() <= after_one)
        await client.call_tool("destroy_session", {"session_id": "broken"})


@pytest.mark.anyio
async def test_many_clients_and_sessions_do_not_mix(server: HttpServer) -> None:
    """The short form of `scripts/bench --soak`."""

    async def work(number: int) -> None:
        mode = ("legacy", "auto")[number % 2]
        async with server.client(mode=mode) as client:
            for index in range(CALLS // CLIENTS):
                mark = f"{number}-{index}"
                found = await run(client, f"print({mark!r}); {mark!r}", session_id=f"soak-{number % SESSIONS}")
                assert (found["status"], found["stdout"], found["result"]) == ("ok", f"{mark}\n", repr(mark))

    async with anyio.create_task_group() as tasks:
        for number in range(CLIENTS):
            tasks.start_soon(work, number)
    async with server.client() as client:
        for number in range(SESSIONS):
            await client.call_tool("destroy_session", {"session_id": f"soak-{number}"})
    active = "kernelmcp_http_requests_active 0.0"
    assert await anyio.to_thread.run_sync(wait_until, lambda: active in server.get("/metrics").text)


@pytest.mark.anyio
async def test_sigterm_drains_and_leaves_nothing_half_done(server: HttpServer) -> None:
    """The last test of this server."""
    kernels = descendants(server.process.pid)
    found: dict[str, dict[str, Any]] = {}

    async def work(name: str, code: str) -> None:
        async with server.client() as client:
            found[name] = await run(client, code, session_id=name)

    async with server.client() as watcher, anyio.create_task_group() as tasks:
        tasks.start_soon(work, "short", STEPS + "\nprint(finished)")
        tasks.start_soon(work, "long", FOREVER)
        await until(server, "short", "busy")
        await until(server, "long", "busy")
        server.process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(wait_until, lambda: server.get("/ready").status_code == 503)
        # It still answers, and begins nothing new.
        assert server.get("/health").json() == {"status": "draining"}
        assert await error_code(watcher, "execute_code", code="1", session_id="new") == "RESOURCE_LIMIT_EXCEEDED"
        assert (await watcher.call_tool("get_sessions", {"session_id": "long"})).is_error is False
        await watcher.call_tool("write_file", {"path": "go", "content": "", "session_id": "short"})
    assert (found["short"]["status"], found["short"]["stdout"]) == ("ok", "all of it\n")
    assert found["long"]["status"] == "interrupted"
    assert await anyio.to_thread.run_sync(server.process.wait, DEADLINE) == 0
    assert wait_until(lambda: not any(kernel.is_running() and kernel.status() != "zombie" for kernel in kernels))
    assert "Traceback" not in server.text(), server.text()
    books = {path.parent.name.rpartition("~")[2]: nbformat.read(path, 4)  # type: ignore[no-untyped-call]
             for path in (server.folder / "home" / "sessions").glob("*/notebook.ipynb")}  # fmt: skip
    assert "all of it" in str(books["short"].cells[-1].outputs)
    assert "KeyboardInterrupt" in str(books["long"].cells[-1].outputs)
