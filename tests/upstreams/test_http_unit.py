"""What servers over HTTP answer, and what becomes of it: without processes."""

from __future__ import annotations

import pytest

from kernelmcp.upstreams.catalogue import ToolCallResult, UpstreamError
from kernelmcp.upstreams.upstreams import Upstreams

from .conftest import Opened, ready
from .scripted_http import Request, error, initialized, ordinary, serving

pytestmark = pytest.mark.anyio


async def echo(upstreams: Upstreams, seconds: float = 60.0) -> ToolCallResult:
    return await upstreams.tool_call("one", "echo", {}, timeout_seconds=seconds)


def one(url: str) -> str:
    return f'[upstreams.servers.one]\nurl = "{url}"\n'


@pytest.mark.parametrize(
    "message", ["Bad Request: No valid session ID provided", "Bad Request: Server not initialized"]
)
async def test_a_server_that_wants_initialize_first_gets_it(opened: Opened, message: str) -> None:
    async def answers(request: Request) -> None:
        if request.method == "POST" and request.message["method"] == "server/discover":
            error(request, 400, -32000, message)
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url)) as upstreams:
        await ready(upstreams, "one")
        assert (await echo(upstreams)).value is not None


async def test_an_error_with_the_code_of_a_lost_connection_is_the_servers_and_is_not_repeated(opened: Opened) -> None:
    calls: list[Request] = []

    async def answers(request: Request) -> None:
        if request.method == "POST" and request.message["method"] == "tools/call":
            calls.append(request)
            error(request, 200, -32000, "the budget is used up")
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url)) as upstreams:
        await ready(upstreams, "one")
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams)
        assert (caught.value.kind, caught.value.message) == ("ToolError", "one.echo: the budget is used up")
        assert len(calls) == 1


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [(404, -32001, "Session not found"), (400, -32000, "Bad Request: No valid session ID provided")],
)
async def test_a_session_that_the_server_no_longer_knows_is_opened_again(
    opened: Opened, status: int, code: int, message: str
) -> None:
    opened_sessions: list[str] = []

    async def answers(request: Request) -> None:
        method = request.message["method"] if request.method == "POST" else ""
        if method == "initialize":
            opened_sessions.append(f"s{len(opened_sessions)}")
            initialized(request, opened_sessions[-1])
        elif method == "tools/call" and request.headers["mcp-session-id"] == "s0":
            error(request, status, code, message)
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url)) as upstreams:
        await ready(upstreams, "one")
        assert (await echo(upstreams)).value is not None
        assert opened_sessions == ["s0", "s1"]
