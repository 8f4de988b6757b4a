"""An upstream over HTTP: streamable, or the older SSE. Uses mcp's transports on a client of ours.

The client's transport stands between them and the network: it sets large answers aside, limits incoming data, and turns
a failed request into a JSON-RPC error for that request, where mcp would end all others too.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from kernelmcp.output.sanitize import weight
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.bounded_http import BoundedTransport, Pieces
from kernelmcp.upstreams.large_results import LARGE_BYTES, LargeResults, Lines, TooLong
from kernelmcp.upstreams.link import (
    BYTES_PER_LINE,
    NUMBER_HEADER,
    OURS,
    SESSION_GONE,
    TOO_LARGE,
    UNREACHED,
    UNSENT,
    Link,
    ReadThrottle,
    cost_of,
)

CONNECT_SECONDS = 30.0
# A quiet stream of events is closed after this time, in seconds. Calls have their own limit.
QUIET_SECONDS = 86_400.0
# Time limits in seconds for requests other than calls, and for ending a session. Calls have their own limit.
REQUEST_SECONDS, DELETE_SECONDS = 300.0, 2.0
# The most that the events of a request cost: its answer, which is set aside if it is larger, and the event's name, id
# and end.
COST_OF_AN_ANSWER = LARGE_BYTES / BYTES_PER_LINE + 3
# Of an event's data in several lines, which mcp joins and parses at once: in a tenth of a second.
MAX_SPLIT_BYTES = 256 * 1024
# If an upstream closes streams at once, mcp reopens them as soon as the upstream says; this limits the rate.
STREAMS_BURST, STREAMS_PER_SECOND = 10.0, 0.2
# Requests of a server that wait for it to take our answer, and the memory of the parameters of each. All but pings are
# rejected, whatever their parameters.
MAX_UNANSWERED, MAX_KEPT_BYTES = 100, 64 * 1024
_DATA = re.compile(rb"data: ?")
# An event's id, and the same after its call's number (0: no call): mcp opens a lost stream again with the id alone.
_EVENT_ID, _ID_OF_CALL = re.compile(rb"\Aid: ?(?=.)"), re.compile(r"(\d+) (.*)")
# Servers on mcp's TypeScript library answer so to a session that they do not know, in place of HTTP 404.
_NO_SESSION = re.compile(rb'(?is)\A(?=.*"code"\s*:\s*-32000\b)(?=.*(?:session|not initialized))')
_SESSION_HEADER, _EVENT_HEADER = "mcp-session-id", "last-event-id"
_CALL = "kernelmcp.call"
# Ends the stream of a call that nobody waits for: mcp opens one without an answer again. It puts in the call's id.
_ABANDONED = b'data: {"jsonrpc": "2.0", "id": null, "error": {"code": %d, "message": "cancelled"}}\n\n' % UNREACHED
NOT_SENT = "kernelmcp.not-sent"
"""Extension of a request that is not sent: the reason, as a clause for a person."""
FAILED = "kernelmcp.failed"
"""Extension of an answer that no server gave: the reason, as a clause for a person."""


@asynccontextmanager
async def open_http(
    rules: AddressRules, headers: Mapping[str, str], auth: httpx2.Auth | None, large: LargeResults
) -> AsyncIterator[Link]:
    """Open streamable HTTP. Connects with the first request."""
    ended = asyncio.Event()
    # Anything larger than an event's limit was set aside before.
    most, guard = large.max_line_bytes, _Guard(rules, large, ended)
    async with (
        _client(headers, auth, guard) as client,
        streamable_http_client(rules.url, http_client=client, max_sse_event_size=most) as (read, write),
    ):
        noticed = _Noticed(read, guard)
        yield Link(noticed, _Answering(write, noticed), ended, guard.reason)


@asynccontextmanager
async def open_sse(
    rules: AddressRules, headers: Mapping[str, str], auth: httpx2.Auth | None, large: LargeResults
) -> AsyncIterator[Link]:
    """Open the older transport. Raises httpx2's errors if there is no stream of events."""
    ended = asyncio.Event()
    guard = _Guard(rules, large, ended, answers_elsewhere=True)

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return _client(headers or {}, auth, guard)

    opened = sse_client(
        rules.url, dict(headers), CONNECT_SECONDS, QUIET_SECONDS, httpx_client_factory=client, auth=auth
    )
    async with opened as (read, write):
        noticed = _Noticed(read, guard)
        yield Link(noticed, _Answering(write, noticed), ended, guard.reason)


def _client(
    headers: Mapping[str, str], auth: httpx2.Auth | None, transport: httpx2.AsyncBaseTransport
) -> httpx2.AsyncClient:
    # A small compressed answer may be a large one.
    plain = {**headers, "accept-encoding": "identity"}
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=QUIET_SECONDS, pool=None)
    return httpx2.AsyncClient(headers=plain, auth=auth, timeout=timeout, transport=transport)


class _Guard(httpx2.AsyncBaseTransport):
    def __init__(
        self, rules: AddressRules, large: LargeResults, ended: asyncio.Event, *, answers_elsewhere: bool = False
    ) -> None:
        """`ended` is set when the server is unreachable, or when a message fails whose answer comes on another
        stream."""
        self._large = large
        self._ended = ended
        self._answers_elsewhere = answers_elsewhere
        self._streams = ReadThrottle(STREAMS_BURST, STREAMS_PER_SECOND)
        # For the whole connection: a reopened stream brings no new credit.
        self._lines = ReadThrottle()
        self._inner = BoundedTransport(rules)
        self._failure = ""

    async def reason(self) -> str:
        return self._failure

    def end(self, why: str = "") -> None:
        self._failure = why or self._failure
        self._ended.set()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (why := request.extensions.get(NOT_SENT)) is not None:
            return self._unsent(request, why)
        # After a login was renewed, the request is sent a second time, without what names its call.
        if (number := request.headers.pop(NUMBER_HEADER, None)) is not None:
            request.extensions = {**request.extensions, _CALL: int(number)}
        elif _CALL not in request.extensions and (
            resumed := _ID_OF_CALL.fullmatch(request.headers.get(_EVENT_HEADER, ""))
        ):
            request.extensions = {**request.extensions, _CALL: int(resumed[1]) or None}
            request.headers[_EVENT_HEADER] = resumed[2]
        if request.method == "POST":
            self._lines.forgive(COST_OF_AN_ANSWER)
        with self._bound(request):
            if request.method == "GET" and (wait := self._streams.delay()):
                await asyncio.sleep(wait)
            return await self._answer(request)
        if request.method == "GET":
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=_ABANDONED)
        return self._failed("it did not answer in time")

    def _bound(self, request: httpx2.Request) -> AbstractContextManager[anyio.CancelScope]:
        """Limit the wait for an answer, and the time to read it if it is not a stream of events."""
        number: int | None = request.extensions.get(_CALL)
        if number is not None:
            return self._large.while_expected(number)
        seconds = {"POST": REQUEST_SECONDS, "DELETE": DELETE_SECONDS}.get(request.method)
        return anyio.move_on_after(seconds)

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as exc:
            if isinstance(exc, httpx2.ConnectError):
                self._ended.set()
            if request.method != "POST":
                raise
            if isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout):
                return self._unsent(request, _in_words(exc))
            return self._failed(_in_words(exc))
        pieces = Pieces(response)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._failed("it compresses its answers, though it was asked not to")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream" and response.status_code < 400:
            events = _Events(pieces, self._large, self._lines, request.extensions.get(_CALL))
            headers = httpx2.Headers(response.headers)
            headers["content-type"] = kind  # it is UTF-8, as it is read here, whatever the server says
            return httpx2.Response(response.status_code, headers=headers, stream=events, extensions=response.extensions)
        return await self._whole(request, response, pieces, kind)

    async def _whole(
        self, request: httpx2.Request, response: httpx2.Response, pieces: Any, kind: str
    ) -> httpx2.Response:
        """The answer with its body; a large result is set aside."""
        number: int | None = request.extensions.get(_CALL)
        body = bytearray()
        try:
            async for chunk in pieces:
                body += chunk
                if len(body) > self._large.max_line_bytes:
                    if number is not None:
                        self._large.refuse(number)
                    return self._failed("its answer is too large")
        except httpx2.TransportError as exc:
            return self._failed(_in_words(exc))
        finally:
            await response.aclose()
        status, headers = response.status_code, _without_length(response.headers)
        if response.is_redirect:
            if request.method == "GET":  # part of a login, which then tries other addresses
                headers.pop("location", None)
                return httpx2.Response(status, headers=headers)
            return self._failed(f"it answered with HTTP {status}, and redirects are not followed")
        says_gone = status == 404 or (status == 400 and len(body) <= LARGE_BYTES and _NO_SESSION.search(body))
        gone = says_gone and _SESSION_HEADER in request.headers
        says_itself = kind == "application/json" and b'"error"' in body and b'"jsonrpc"' in body
        if status >= 400 and request.method == "POST" and (gone or not says_itself):
            code = SESSION_GONE if gone else TOO_LARGE if status == 413 else UNREACHED
            return self._failed(f"it answered with HTTP {status}", status, headers, code)
        return httpx2.Response(status, headers=headers, content=self._large.shrunk(body))

    def _unsent(self, request: httpx2.Request, why: str) -> httpx2.Response:
        if self._answers_elsewhere and request.method == "POST":  # mcp drops the answer given here
            with suppress(ValueError):  # a request of a login is no JSON
                self._large.not_sent(json.loads(request.content).get("id"), why)
        return self._failed(why, code=UNSENT)

    def _failed(
        self, why: str, status: int = 502, headers: httpx2.Headers | None = None, code: int = UNREACHED
    ) -> httpx2.Response:
        """An answer that mcp treats as a JSON-RPC error of the request; the status and its headers are for OAuth."""
        self._failure = why
        if self._answers_elsewhere:
            self._ended.set()
        error = {"code": code, "message": why, "data": OURS}
        content = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        said = httpx2.Headers(headers)
        said["content-type"] = "application/json"
        return httpx2.Response(status, headers=said, content=content, extensions={FAILED: why})


class _Events(httpx2.AsyncByteStream):
    """A stream of events: large answers are set aside, and lines are throttled. It ends where it breaks, and with the
    call that it answers, and at an event whose data is large and has several lines: mcp would join them. Events' ids
    are given the number of the call."""

    def __init__(self, stream: Any, large: LargeResults, throttle: ReadThrottle, call: int | None) -> None:
        self._stream = stream
        self._large = large
        self._lines = Lines(large, _DATA)
        self._throttle = throttle
        self._call = call
        self._after_return = False
        self._data_bytes = 0
        """Of the event's lines of data so far."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        try:
            while True:
                chunk: bytes | None = None
                with self._large.while_expected(self._call):
                    chunk = await anext(chunks)
                if chunk is None:
                    yield b"\n" + _ABANDONED  # after the end of an event that has begun
                    return
                for line in self._lines.feed(self._with_newlines(chunk)):
                    self._check_data(line)
                    cost = cost_of(line) + self._large.take_unread()
                    if wait := self._throttle.delay(cost):
                        await asyncio.sleep(wait)
                    yield _EVENT_ID.sub(b"id: %d " % (self._call or 0), line, count=1) + b"\n"
        except (StopAsyncIteration, TooLong, httpx2.TransportError):
            return

    def _with_newlines(self, chunk: bytes) -> bytes:
        """End lines with newlines only: mcp's reader ends them at carriage returns too."""
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_data(self, line: bytes) -> None:
        """Raises `TooLong`."""
        if not line:
            self._data_bytes = 0
        elif _DATA.match(line):
            if self._data_bytes and self._data_bytes + len(line) > MAX_SPLIT_BYTES:
                raise TooLong
            self._data_bytes += len(line)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Noticed(ObjectReceiveStream[SessionMessage | Exception]):
    """mcp's stream. The connection ends with it, and if too many requests of the server wait to be answered."""

    def __init__(self, stream: Any, guard: _Guard) -> None:
        self._stream = stream
        self._guard = guard
        self.unanswered = 0

    async def receive(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._stream.receive()
        except BaseException:
            self._guard.end()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest):
            if weight(item.message.params) > MAX_KEPT_BYTES:
                item.message.params = None
            # Only mcp knows when a request has ended without an answer: a cancellation may come too late for that.
            item.metadata = ServerMessageMetadata(on_request_unanswered=self.settled)
            self.unanswered += 1
            if self.unanswered > MAX_UNANSWERED:
                self._guard.end("it sends requests and does not take the answers")
                raise anyio.EndOfStream
        return item

    async def settled(self) -> None:
        self.unanswered -= 1

    async def aclose(self) -> None:
        self._guard.end()
        await self._stream.aclose()


class _Answering(ObjectSendStream[SessionMessage]):
    """mcp's stream; counts the answers to requests of the server."""

    def __init__(self, stream: Any, noticed: _Noticed) -> None:
        self._stream = stream
        self._noticed = noticed

    async def send(self, item: SessionMessage) -> None:
        try:
            await self._stream.send(item)
        finally:
            if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                self._noticed.unanswered -= 1

    async def aclose(self) -> None:
        await self._stream.aclose()


def _without_length(headers: httpx2.Headers) -> httpx2.Headers:
    """Drop the headers that describe the length of a body that is replaced."""
    kept = httpx2.Headers(headers)
    for name in ("content-length", "transfer-encoding"):
        kept.pop(name, None)
    return kept


def _in_words(exc: httpx2.TransportError) -> str:
    """Explain an error without its text, which may contain an address or a header."""
    match exc:
        case httpx2.ConnectError():
            return f"it cannot be reached: {exc}"
        case httpx2.TimeoutException():
            return "it did not answer in time"
        case httpx2.ReadError() | httpx2.WriteError() | httpx2.RemoteProtocolError():
            return "it closed the connection"
        case _:
            return f"the request failed: {type(exc).__name__}"
