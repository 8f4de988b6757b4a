"""What servers over HTTP answer, and what becomes of it: without processes."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import anyio
import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from kernelmcp.config.load import load
from kernelmcp.upstreams import http
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.bounded_http import BoundedTransport
from kernelmcp.upstreams.catalogue import ToolCallResult, UpstreamError
from kernelmcp.upstreams.http import MAX_UNANSWERED, _Events, _Guard, _Noticed
from kernelmcp.upstreams.large_results import FIRST_NUMBER, LargeResults
from kernelmcp.upstreams.link import SESSION_GONE, TOO_LARGE, UNREACHED, UNSENT, ReadThrottle
from kernelmcp.upstreams.logins import login_file
from kernelmcp.upstreams.upstreams import Upstreams

from .conftest import DEADLINE, Opened, ready, until
from .scripted_http import Request, error, initialized, ordinary, serving

pytestmark = pytest.mark.anyio


async def echo(upstreams: Upstreams, seconds: float = 60.0) -> ToolCallResult:
    return await upstreams.tool_call("one", "echo", {}, timeout_seconds=seconds)


def one(url: str) -> str:
    return f'[upstreams.servers.one]\nurl = "{url}"\n'


TOKENS = {"access_token": "a0", "token_type": "Bearer"}


def store_login(folder: Path, url: str, tokens: dict[str, str]) -> None:
    file = folder / "home" / "upstreams" / "logins" / "one.json"
    file.parent.mkdir(parents=True)
    client = {"client_id": "c", "redirect_uris": [url]}
    file.write_text(json.dumps({"url": url, "tokens": tokens, "client": client}))


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


# -32000: a connection that was lost, in mcp.
@pytest.mark.parametrize("code", [-32000, UNREACHED, SESSION_GONE, TOO_LARGE, UNSENT])
async def test_an_error_with_a_code_of_ours_is_the_servers_and_is_not_repeated(opened: Opened, code: int) -> None:
    calls: list[Request] = []

    async def answers(request: Request) -> None:
        if request.method == "POST" and request.message["method"] == "tools/call":
            calls.append(request)
            error(request, 200, code, "half of it is done")
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url)) as upstreams:
        await ready(upstreams, "one")
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams)
        assert (caught.value.kind, caught.value.message) == ("ToolError", "one.echo: half of it is done")
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


class Streaming:
    """Answers as an ordinary server, and sends `events` on its stream."""

    def __init__(self, events: bytes, content_type: str = "text/event-stream") -> None:
        self._events = events
        self._content_type = content_type
        self.answered: list[dict[str, object]] = []

    async def __call__(self, request: Request) -> None:
        if request.method == "GET":
            request.begin(200, Content_Type=self._content_type)
            request.writer.write(self._events)
            await request.writer.drain()
            await asyncio.sleep(3600)
        elif request.method == "POST" and "method" not in request.message:
            self.answered.append(request.message)
            await self.take()
            request.answer(202)
        else:
            await ordinary(request)

    async def take(self) -> None:
        """An answer of ours."""


class TakingNone(Streaming):
    async def take(self) -> None:
        await asyncio.sleep(3600)


LOST = b"retry: 1\nid: 7 of 9\ndata: \n\n"


async def test_a_lost_answer_is_asked_for_by_its_id_while_its_call_waits(opened: Opened) -> None:
    resumed: list[Request] = []
    call, closed = asyncio.Queue[object](), asyncio.Event()

    async def answers(request: Request) -> None:
        if request.method == "POST" and request.message.get("method") == "tools/call":
            call.put_nowait(request.message["id"])
            request.begin(200, Content_Type="text/event-stream", Connection="close")
            request.writer.write(LOST)
            request.writer.close()
        elif "last-event-id" in request.headers:
            resumed.append(request)
            request.begin(200, Content_Type="text/event-stream")
            if len(resumed) == 1:
                request.writer.write(event({"id": await call.get(), "result": {"content": []}}))
                return
            try:
                while True:
                    request.writer.write(b": waiting\n\n")
                    await request.writer.drain()
                    await asyncio.sleep(0.01)
            finally:
                closed.set()
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url)) as upstreams:
        await ready(upstreams, "one")
        assert (await echo(upstreams)).value == {"content": []}
        waiting = asyncio.create_task(echo(upstreams))
        await until(lambda: len(resumed) == 2)
        waiting.cancel()
        await closed.wait()
        assert {request.headers["last-event-id"] for request in resumed} == {"7 of 9"}


class _Pieces:
    """A stream that stays open."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        await asyncio.sleep(3600)


@pytest.mark.parametrize("begun", [b"", b"event: odd\n", b'data: {"jsonrpc"\n'])
async def test_an_abandoned_call_is_over_for_mcp_which_would_open_its_stream_again(begun: bytes) -> None:
    large = LargeResults(lambda: 1)
    received = b""
    with anyio.fail_after(DEADLINE):
        with large.expecting(FIRST_NUMBER):
            events = aiter(_Events(_Pieces(LOST + begun), large, ReadThrottle(), FIRST_NUMBER))
            for _ in (LOST + begun).splitlines():
                received += await anext(events)
        received += b"".join([piece async for piece in events])
    about: dict[str, Any] = {
        "headers": {"content-type": "text/event-stream"},
        "request": httpx2.Request("POST", "http://127.0.0.1:1"),
    }
    last = [sse async for sse in httpx2.EventSource(httpx2.Response(200, content=received, **about))][-1]
    assert (last.event, json.loads(last.data)["error"]["message"]) == ("message", "cancelled")


def event(message: dict[str, object]) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_server_whose_requests_pile_up_is_disconnected(opened: Opened, cancelled: bool) -> None:
    """It may cancel each as well: mcp has an answer to a ping by then, which waits to be taken."""
    pings: list[bytes] = []
    for number in range(3 * MAX_UNANSWERED):
        pings.append(event({"id": number, "method": "ping"}))
        if cancelled:
            before = {"requestId": max(0, number - 20)}
            pings.append(event({"method": "notifications/cancelled", "params": before}))
    async with serving(TakingNone(b"".join(pings))) as url, opened(one(url)) as upstreams:
        await until(lambda: "does not take the answers" in (upstreams.status("one").error or ""))


async def test_requests_are_answered_whatever_they_contain(opened: Opened) -> None:
    methods = ["ping", "sampling/createMessage", "elicitation/create", "roots/list", "unknown"] * 10
    asked = [event({"id": number, "method": name, "params": {"x": [[]] * 9}}) for number, name in enumerate(methods)]
    server = Streaming(b"".join(asked))
    async with serving(server) as url, opened(one(url)) as upstreams:
        await until(lambda: len(server.answered) == len(methods))
        assert {said["id"] for said in server.answered} == set(range(len(methods)))
        assert [said["id"] for said in server.answered if "result" in said] == list(range(0, len(methods), 5))
        assert (await echo(upstreams)).value is not None


@pytest.mark.parametrize(("many", "kept"), [(10, True), (10_000, False)])
async def test_large_parameters_of_a_request_that_waits_are_not_kept(many: int, kept: bool) -> None:
    rules = AddressRules("http://127.0.0.1:1", allow_private=False)
    sent, received = anyio.create_memory_object_stream[SessionMessage](1)
    noticed = _Noticed(received, _Guard(rules, LargeResults(lambda: 1), asyncio.Event()))
    async with sent, noticed:
        await sent.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping", params={"x": [[]] * many})))
        item = await noticed.receive()
        assert isinstance(item, SessionMessage)
        assert isinstance(item.message, JSONRPCRequest)
        assert (item.message.params is not None) == kept


async def test_a_stream_is_utf_8_whatever_the_server_calls_it(opened: Opened) -> None:
    """Read otherwise, its lines would be others than those that are bounded."""
    server = Streaming(event({"id": 1, "method": "ping"}), "Text/Event-Stream; charset=utf-16-le")
    async with serving(server) as url, opened(one(url)) as upstreams:
        await ready(upstreams, "one")
        await until(lambda: bool(server.answered))


@pytest.mark.parametrize("how", ["result", "structured", "large", "error", "list"])
async def test_the_token_of_a_login_is_not_in_what_a_server_says_of_it(
    opened: Opened, tmp_path: Path, how: str
) -> None:
    token = "correct-horse-battery-staple"

    async def answers(request: Request) -> None:
        method = request.message["method"] if request.method == "POST" else ""
        words = f"rejected: {request.headers['authorization']}"
        if method == ("tools/list" if how == "list" else "tools/call"):
            result: dict[str, object] = {"content": [{"type": "text", "text": words}], "isError": True}
            if how == "structured":
                result = {"content": [], "structuredContent": {words: [words]}, "isError": True}
            if how == "large":
                result = {"content": [{"type": "text", "text": words * 1000}], "isError": True}
            if how in ("result", "structured", "large"):
                request.answer(200, {"jsonrpc": "2.0", "id": request.message["id"], "result": result})
            else:
                error(request, 200, -32001, words)
        else:
            await ordinary(request)

    async with serving(answers) as url:
        store_login(tmp_path, url, {**TOKENS, "access_token": token})
        async with opened(one(url)) as upstreams:
            if how == "list":
                await until(lambda: upstreams.status("one").state == "unavailable")
                said = upstreams.status("one").error
            elif how == "error":
                with pytest.raises(UpstreamError) as caught:
                    await echo(upstreams)
                said = caught.value.message
            else:
                result = await echo(upstreams)
                assert (result.raw is not None) == (how == "large")
                said = str(result.value or result.raw)
    assert "rejected: Bearer (login)" in str(said)
    assert token not in str(said)


class Person:
    """Enters a value in the page that is shown."""

    def __init__(self, value: str) -> None:
        self._value = value

    async def __call__(self, address: str) -> None:
        async with httpx2.AsyncClient(trust_env=False) as browser:
            assert "Saved" in (await browser.post(address, data={"CRM_TOKEN": self._value})).text


@pytest.mark.parametrize("how", ["refused", "cancelled"])
async def test_a_value_with_which_no_connection_came_about_is_asked_for_again(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.delenv("CRM_TOKEN", raising=False)
    came, goes_on = asyncio.Event(), asyncio.Event()

    async def answers(request: Request) -> None:
        if request.headers["x-token"] == "wrong":
            came.set()
            await goes_on.wait()
            request.answer(403)
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url) + 'headers = { x-token = "${CRM_TOKEN}" }\n') as upstreams:
        await until(lambda: upstreams.status("one").needs_person)
        connecting = asyncio.create_task(upstreams.connect("one", Person("wrong")))
        await came.wait()
        if how == "cancelled":
            connecting.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else UpstreamError):
            await connecting
        await until(lambda: upstreams.status("one").needs_person)
        await upstreams.connect("one", Person("right"))
        assert (await echo(upstreams)).value is not None


async def test_a_renewed_login_that_cannot_be_written_outlives_its_connection(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authorization server may take a second use of the stored refresh token for a theft."""
    used: list[str] = []

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def answers(request: Request) -> None:
        if request.headers.get("content-type") == "application/x-www-form-urlencoded":
            used.extend(parse_qs(request.body.decode())["refresh_token"])
            number = len(used)
            request.answer(200, {"access_token": f"a{number}", "refresh_token": f"r{number}", "token_type": "Bearer"})
        elif request.headers["authorization"] == "Bearer a1":
            await ordinary(request)
        else:
            request.answer(401)

    async with serving(answers) as url:
        store_login(tmp_path, url, {**TOKENS, "refresh_token": "r0"})
        async with opened(one(url)) as upstreams:
            monkeypatch.setattr(login_file, "replace_text", full)
            assert (await echo(upstreams)).value is not None
            (tmp_path / "mcp.toml").write_text(one(url) + "headers = { x-other = '1' }\n")
            await upstreams.apply(load(tmp_path / "mcp.toml", environ={"KERNELMCP_HOME": str(tmp_path / "home")}))
            assert (await echo(upstreams)).value is not None
    assert used == ["r0"]


def writing(request: Request) -> None:
    """A tool that may have done something, so that its calls are not repeated."""
    listed = [{"name": "echo", "inputSchema": {}}]
    request.answer(200, {"jsonrpc": "2.0", "id": request.message["id"], "result": {"tools": listed}})


class Unreachable(BoundedTransport):
    """No call reaches the server."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if b'"tools/call"' in await request.aread():
            raise httpx2.ConnectError("All connection attempts failed")
        return await super().handle_async_request(request)


@pytest.mark.parametrize("how", ["no connection", "no login"])
async def test_a_call_that_was_not_sent_is_not_told_as_lost_on_its_way(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def answers(request: Request) -> None:
        is_message = request.method == "POST" and request.headers["content-type"] == "application/json"
        method = request.message.get("method") if is_message else None
        if request.method == "POST" and not is_message:
            request.answer(503)  # to the renewal of the login
        elif method == "tools/call":
            request.answer(401)
        elif method == "tools/list":
            writing(request)
        else:
            await ordinary(request)

    if how == "no connection":
        monkeypatch.setattr(http, "BoundedTransport", Unreachable)
    async with serving(answers) as url:
        store_login(tmp_path, url, {**TOKENS, "refresh_token": "r0"})
        async with opened(one(url)) as upstreams:
            with pytest.raises(UpstreamError) as caught:
                await echo(upstreams)
    why = {
        "no connection": "it cannot be reached: All connection attempts failed",
        "no login": "its login could not be renewed: the authorization server answered with HTTP 503",
    }[how]
    assert caught.value.message.startswith(f"the MCP server one is not available: {why}")
    assert caught.value.message.endswith("; nothing was done")
    assert (caught.value.kind, caught.value.was_sent) == ("ServerUnavailable", False)


class Elsewhere:
    """Answers on its stream of events, as the older transport does."""

    def __init__(self) -> None:
        self._streams: list[asyncio.StreamWriter] = []

    async def __call__(self, request: Request) -> None:
        if request.method == "GET":
            request.begin(200, Content_Type="text/event-stream")
            request.writer.write(b"event: endpoint\ndata: /messages\n\n")
            self._streams.append(request.writer)
            await request.writer.drain()
            await asyncio.sleep(3600)
        request.answer(202)
        if "id" in request.message:
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "scripted", "version": "1"}}
            results = {
                "initialize": {"result": {"protocolVersion": "2025-06-18", **about}},
                "tools/list": {"result": {"tools": [{"name": "echo", "inputSchema": {}}]}},
            }
            said = results.get(request.message["method"], {"error": {"code": -32601, "message": "Method not found"}})
            self._streams[-1].write(event({"id": request.message["id"], **said}))


async def test_a_call_that_was_not_sent_is_not_told_as_lost_by_the_older_transport_either(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BoundedTransport", Unreachable)
    async with serving(Elsewhere()) as url, opened(one(url) + 'type = "sse"\n') as upstreams:
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams)
    why = "it cannot be reached: All connection attempts failed"
    assert caught.value.message == f"the MCP server one is not available: {why}; nothing was done"
    assert (caught.value.kind, caught.value.was_sent) == ("ServerUnavailable", False)


async def test_a_call_without_a_usable_answer_is_not_told_as_a_lost_server(opened: Opened) -> None:
    async def answers(request: Request) -> None:
        if request.method == "POST" and request.message["method"] == "tools/call":
            request.answer(429)
        else:
            await ordinary(request)

    async with serving(answers) as url, opened(one(url)) as upstreams:
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams)
    assert caught.value.message == "the MCP server one gave no result of echo: it answered with HTTP 429"
    assert (caught.value.kind, caught.value.was_sent) == ("ServerUnavailable", True)
