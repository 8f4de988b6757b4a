"""MCP connections of older clients over HTTP, without a server process."""

import json
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolResult
from starlette.types import Message

from kernelmcp.config.load import load
from kernelmcp.http.guard import Gate, Guard
from kernelmcp.http.mcp_connections import Connections
from kernelmcp.http.rate_limits import Throttle
from kernelmcp.http.tokens import Authenticator

from .http_support import INITIALIZE, JSON_HEADERS, bearer
from .support import DEADLINE

ALICE, BOB = "alice-0123456789", "bob-0123456789"


class Answer:
    """Of one request to an ASGI app: its status, its headers, and its body until now."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def to(self, app: Guard, token: str, body: dict[str, Any], **headers: str) -> None:
        sent = JSON_HEADERS | bearer(token) | headers
        raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": raw, "client": ("127.0.0.1", 1)}
        arriving = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Message:
            if not arriving:
                await anyio.sleep_forever()  # as uvicorn does until the client leaves
            return arriving.pop()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self.body += message.get("body", b"")

        await app(scope, receive, send)


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 2, "method": method, "params": params}


@pytest.mark.anyio
@pytest.mark.parametrize("attack", [request("tools/list"), request("resources/read", uri="file:///x")])
async def test_the_calls_of_a_connection_go_on_whatever_another_principal_sends_with_its_id(
    attack: dict[str, Any],
) -> None:
    begun, go = anyio.Event(), anyio.Event()

    async def call(*_: Any) -> CallToolResult:
        begun.set()
        await go.wait()
        return CallToolResult(content=[], structured_content={"is": "whole"})

    manager = StreamableHTTPSessionManager(Server("server", on_call_tool=call))
    settings = load(environ={"KERNELMCP_AUTH__TOKENS__ALICE": ALICE, "KERNELMCP_AUTH__TOKENS__BOB": BOB})
    throttle = Throttle(settings)
    nothing: Any = None  # of what only a DELETE needs
    connections = Connections(manager, throttle, 2**20, nothing, nothing)
    app = Guard(connections, Gate(settings, Authenticator(settings), throttle))
    opened, own, foreign = Answer(), Answer(), Answer()
    with anyio.fail_after(DEADLINE):
        async with manager.run(), anyio.create_task_group() as tasks:
            await opened.to(app, ALICE, INITIALIZE)
            connection = {"mcp-session-id": opened.headers["mcp-session-id"]}
            body = request("tools/call", name="call", arguments={})
            tasks.start_soon(lambda: own.to(app, ALICE, body, **connection))
            await begun.wait()
            await foreign.to(app, BOB, attack, **connection)
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert foreign.status == 404
    assert (own.status, b'"is":"whole"' in own.body) == (200, True), own.body
