"""MCP connections of older clients over HTTP: how they end, and requests that mcp's transport would trip over."""

import json
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from .http_support import INITIALIZE, JSON_HEADERS, NO_TLS, HttpServer, run, serving
from .support import DEADLINE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with serving(tmp_path_factory.mktemp("connections"), SESSIONS__INLINE_WAIT_SECONDS="60") as found:
        yield found


def raw_client(server: HttpServer) -> httpx2.AsyncClient:
    """Requests as nobody's library would send them."""
    return httpx2.AsyncClient(base_url=server.base, headers=JSON_HEADERS, timeout=DEADLINE, verify=NO_TLS)


@pytest.mark.anyio
async def test_deleting_a_connection_answers_its_calls_and_ends_its_kernel(server: HttpServer) -> None:
    async with server.client(mode="legacy") as watcher:
        async with raw_client(server) as http:
            headers = await opened(http)
            own = call_body(2, code="print('half', flush=True); open('begun', 'w').close()\nwhile True: pass")
            wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n'whole'"
            named = call_body(3, code=wait, session_id="goes-on")
            answers: dict[int, dict[str, Any]] = {}

            async def post(body: dict[str, Any]) -> None:
                answers[body["id"]] = sse_result(await http.post("/mcp", json=body, headers=headers))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(post, own)
                tasks.start_soon(post, named)
                while len(running := await states(watcher)) < 2 or set(running.values()) != {"busy"}:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
                [session] = running.keys() - {"goes-on"}
                begun = {"path": "begun", "session_id": session}
                while (await watcher.call_tool("read_file", begun)).is_error:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
                again = await http.post("/mcp", json=call_body(2, code="1"), headers=headers)
                assert (again.status_code, again.json()["error"]["code"]) == (400, -32600), "an id that is under way"
                assert again.json()["id"] == 2
                assert (await http.delete("/mcp", headers=headers)).status_code == 200
            assert (answers[2]["status"], answers[2]["stdout"]) == ("interrupted", "half\n")
            assert answers[3]["status"] == "running"
            late = await http.post("/mcp", json=call_body(4, code="1"), headers=headers)
            assert late.status_code == 404
        await watcher.call_tool("write_file", {"path": "go", "content": "", "session_id": "goes-on"})
        found = await watcher.call_tool(
            "get_execution", {"execution_id": answers[3]["execution_id"], "wait_seconds": 30}
        )
        assert found.structured_content["result"] == "'whole'"
        while (await states(watcher))[answers[2]["session_id"]] != "stopped":  # noqa: ASYNC110
            await anyio.sleep(0.05)


@pytest.mark.anyio
async def test_a_cancel_that_races_a_delete_and_a_lost_body_make_no_error(server: HttpServer) -> None:
    async with raw_client(server) as http:
        for _ in range(10):
            headers = await opened(http)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
            statuses: list[int] = []

            async def send(method: str, body: Any, into: list[int] = statuses, headers: Any = headers) -> None:
                into.append((await http.request(method, "/mcp", json=body, headers=headers)).status_code)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, "POST", call_body(2, code="1"))
                tasks.start_soon(send, "POST", cancel)
                tasks.start_soon(send, "DELETE", None)
                tasks.start_soon(send, "POST", cancel)
            assert set(statuses) <= {200, 202, 404}, statuses
        headers = await opened(http)
        resumed = {**headers, "Last-Event-ID": "7", "Accept": "text/event-stream"}
        async with http.stream("GET", "/mcp", headers=resumed) as stream:
            assert stream.status_code == 200, "a server that keeps no events begins a new stream"
    for end in (b"5\r\nabcde\r\n", b"5\r\nabcde\r\nZZ\r\n"):
        with server.connect() as broken:
            broken.sendall(
                b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Accept: application/json, text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + end
            )
    async with server.client(mode="legacy") as client:
        answer = await run(client, "1")
        assert answer.get("result") == "1", (answer, server.lines)
    assert "Traceback" not in str(server.lines)


async def states(client: Client) -> dict[str, str]:
    found = (await client.call_tool("get_sessions", {})).structured_content
    return {one["session_id"]: one["state"] for one in found["sessions"]}


def call_body(number: int, **arguments: Any) -> dict[str, Any]:
    params = {"name": "execute_code", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def opened(http: httpx2.AsyncClient) -> dict[str, str]:
    """The headers of a connection that was just opened."""
    response = await http.post("/mcp", json=INITIALIZE)
    return {"Mcp-Session-Id": response.headers["mcp-session-id"]}


def sse_result(response: httpx2.Response) -> dict[str, Any]:
    """The structured content of the one result in a stream of events."""
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return json.loads(data[-1])["result"]["structuredContent"]
