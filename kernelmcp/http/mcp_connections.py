"""The requests of MCP connections over HTTP: each is read whole before mcp sees it, has a unique id, and is answered
even if its connection is deleted.

A connection is opened by an older client (until 2025-11-25) with `initialize`, and ended with DELETE. On DELETE mcp's
transport closes the streams of pending calls, so the calls are ended first.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PARAM_HEADER_PREFIX as PARAM_PREFIX
from mcp.shared.inbound import encode_header_value
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, JSONRPCNotification, JSONRPCRequest
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kernelmcp.errors import RateLimited
from kernelmcp.http.adopted_connections import AdoptedConnections, owner_of
from kernelmcp.http.first_steps import explaining
from kernelmcp.http.guard import CANCEL, replaying, share_of
from kernelmcp.http.rate_limits import BUSY_RETRY_SECONDS, LEAST_PLACES, Throttle
from kernelmcp.mcp_server.callers import CLOSING_KEY, GONE_KEY, Callers, principal_of
from kernelmcp.mcp_server.tools.contract_tool import HEADERS
from kernelmcp.mcp_server.views.pages import may_wait
from kernelmcp.output.sanitize import as_dict
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.stdio.message_bounds import excess

# Time that a DELETE waits for the interrupted executions, and then for the answers of pending calls.
ANSWER_SECONDS = 5.0
# Smaller requests, such as a cancellation, are read however much other data is held.
SMALL_BYTES = 16 * 1024
# Limit for an `initialize`: mcp keeps its parameters as long as the connection is open.
MAX_INITIALIZE_BYTES = 64 * 1024
INITIALIZE = "initialize"
# mcp's answer if a connection has ended, or never existed.
ENDED = "Not Found: Session has been terminated"
# The method whose answers have no size limit.
READ = "resources/read"
PING = JSONRPCRequest(jsonrpc="2.0", id="kernelmcp-ping", method="ping")
"""A small message that replaces a large one, because mcp keeps a connection's last message."""


@dataclass(eq=False)
class _Connection:
    """One connection with pending requests."""

    calls: set[object] = field(default_factory=set[object])
    """The ids of requests; an object for each notification."""
    ending: bool = False
    """It is being deleted: no new requests begin."""
    closing: anyio.Event = field(default_factory=anyio.Event)
    """Calls that still wait for an execution must answer now."""
    empty: anyio.Event = field(default_factory=anyio.Event)


class Connections:
    """An ASGI app around mcp's. `max_bytes` limits a request's body; `adopted` is None if no other server shares the
    home."""

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        throttle: Throttle,
        max_bytes: int,
        registry: Registry,
        callers: Callers,
        adopted: AdoptedConnections | None = None,
    ) -> None:
        self._app = manager.handle_request
        self._manager = manager
        self._throttle = throttle
        self._max_bytes = max_bytes
        self._registry = registry
        self._callers = callers
        self._adopted = adopted
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._shares: dict[str | object, str] = {}
        """Whose share each open connection uses, by its id; one that is being opened has an object instead."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Events have no ids here, so there is nothing to resume after; the specification lets a server start again.
        headers = MutableHeaders(scope=scope)
        del headers["last-event-id"]
        connection = headers.get("mcp-session-id")
        if scope["method"] == "POST":
            with self._throttle.body(share_of(scope)) as take:
                found = await whole_message(scope, receive, send, self._max_bytes, take)
                if found is not None:
                    await self._post(connection, *found, scope, receive, send)
        elif scope["method"] == "DELETE" and connection:
            await self._adopt(connection, scope)
            await self._delete((principal_of(scope), connection), scope, receive, send)
        else:
            if scope["method"] == "GET" and connection:
                await self._adopt(connection, scope)
            await self._app(scope, receive, send if connection else explaining(send))

    async def _post(
        self, connection: str | None, head: "Head", replay: Receive, scope: Scope, receive: Receive, send: Send
    ) -> None:
        method, raw_id = head.method, head.id
        async with AsyncExitStack() as held:
            is_large = method == READ and not head.may_wait
            if is_large and not await _entered(held, self._throttle.read(share_of(scope)), receive):
                return
            _complete(scope, head.mirrored)
            if connection is None:
                if method == INITIALIZE:
                    if self._adopted is not None:
                        send = self._adopted.keeping(scope, head.opening, send)
                    # Outermost: it is counted although its client goes while its record is written.
                    send = held.enter_context(self._opening(share_of(scope), send))
                await self._app(scope, replay, explaining(send))
                return
            await self._adopt(connection, scope)
            key = (principal_of(scope), connection)
            # A notification has no id, but counts as pending: mcp handles it after it has answered.
            call: object = object() if raw_id is None else str(raw_id)
            found = self._connections.get(key)
            if found is not None and found.ending:
                await _refusal(404, raw_id, ENDED)(scope, receive, send)
            elif found is not None and call in found.calls:
                text = "a request with this id is already in progress; give each request of a connection its own id"
                await _refusal(400, raw_id, text)(scope, receive, send)
            else:
                async with self._under_way(key, call) as closing:
                    scope[CLOSING_KEY], scope[GONE_KEY] = closing, anyio.Event()
                    try:
                        await self._app(scope, replay, send)
                    finally:
                        scope[GONE_KEY].set()
                        await self._let_go(key, method, raw_id)

    async def _adopt(self, connection: str, scope: Scope) -> None:
        if self._adopted is not None:
            await self._adopted.adopt(connection, scope, lambda: self._take_place(connection, share_of(scope)))

    async def _let_go(self, key: tuple[str, str], method: str | None, request_id: str | int | None) -> None:
        """Drop the answer: the client has received it, or has gone. mcp keeps an unclaimed answer, and a connection's
        last one, until the connection ends, and continues the work. That is intended for calls; for a read it would
        cost 11 MB. The answers of another principal's connection are not its to drop."""
        manager: Any = self._manager
        principal, connection = key
        transport = manager._server_instances.get(connection)
        if request_id is None or transport is None or owner_of(connection, manager) != principal:
            return
        transport.close_sse_stream(str(request_id))
        if method == READ:
            cancel = JSONRPCNotification(jsonrpc="2.0", method=CANCEL, params={"requestId": request_id})
            # The answer to the ping is then the last one, and has no receiver.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError), anyio.move_on_after(ANSWER_SECONDS):
                for message in (cancel, PING):
                    await transport._read_stream_writer.send(SessionMessage(message))

    @contextmanager
    def _opening(self, share: str, send: Send) -> Iterator[Send]:
        """Count a connection that is being opened, from the answer on by its id. Raises `RateLimited`."""
        place = object()
        self._take_place(place, share)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                del self._shares[place]
                if (connection := Headers(raw=message["headers"]).get("mcp-session-id")) is not None:
                    self._shares[connection] = share
            await send(message)

        try:
            yield sending
        finally:
            self._shares.pop(place, None)

    def _take_place(self, connection: str | object, share: str) -> None:
        """Raises `RateLimited` if this share has as many connections open as others can still open."""
        manager: Any = self._manager
        opened = manager._server_instances
        for each in [each for each in self._shares if isinstance(each, str) and each not in opened]:
            del self._shares[each]  # it has ended
        mine = sum(each == share for each in self._shares.values())
        left = (self._manager.max_sessions or 0) - len(opened)
        if mine >= max(left, LEAST_PLACES):
            raise RateLimited(
                f"you have {mine:,} connections open, and the remaining {left:,} are reserved for others",
                "Close those that you no longer need (DELETE with their Mcp-Session-Id).",
                retry_after_seconds=BUSY_RETRY_SECONDS,
            )
        self._shares[connection] = share

    @asynccontextmanager
    async def _under_way(self, key: tuple[str, str], call: object) -> AsyncIterator[anyio.Event]:
        connection = self._connections.setdefault(key, _Connection())
        connection.calls.add(call)
        try:
            yield connection.closing
        finally:
            connection.calls.discard(call)
            if not connection.calls:
                connection.empty.set()
                if not connection.ending:
                    del self._connections[key]

    async def _delete(self, key: tuple[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        """End a connection and its own session: the running execution is interrupted before the pending calls are
        answered, and the kernel ends after that. Files and transcript stay, as with every session."""
        connection = self._connections.setdefault(key, _Connection())
        connection.ending = True
        try:
            with anyio.move_on_after(ANSWER_SECONDS):
                if (session := self._own_session(*key)) is not None:
                    session.queue.interrupt_all()
                    await session.queue.until_idle()
            connection.closing.set()
            with anyio.move_on_after(ANSWER_SECONDS):
                if connection.calls:
                    await connection.empty.wait()
            if self._adopted is not None:
                await self._adopted.forget(key[1], key[0])  # first: no later request finds the record
            await self._app(scope, receive, send)
            if (session := self._own_session(*key)) is not None and not session.life.is_ending:
                await session.stop()
        finally:
            self._connections.pop(key, None)

    def _own_session(self, principal: str, connection: str) -> Session | None:
        return self._registry.find_open(principal, self._callers.own_handle(principal, connection))


async def _entered(held: AsyncExitStack, waiting: AbstractAsyncContextManager[Any], receive: Receive) -> bool:
    """Enter a context that may have to wait. False if the client has gone meanwhile: nobody wants the answer."""
    entered = False
    async with anyio.create_task_group() as tasks:

        async def cancel_when_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(cancel_when_gone)
        await held.enter_async_context(waiting)
        entered = True
        tasks.cancel_scope.cancel()
    return entered


async def whole_message(
    scope: Scope, receive: Receive, send: Send, max_bytes: int, take: Callable[[int], None]
) -> "tuple[Head, Receive] | None":
    """Read a request's body; returns its kind, and the body for mcp. None if it was rejected, or if its client
    disconnected before the end, or sent invalid HTTP. Raises `RateLimited` if there is no room for it."""
    body, more = bytearray(), True
    length = Headers(scope=scope).get("content-length", "")
    declared = int(length) if length.isdecimal() else 0
    while more and declared <= max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        before = len(body)
        body += message.get("body", b"")
        if len(body) > max_bytes:
            break
        take(max(0, len(body) - SMALL_BYTES) - max(0, before - SMALL_BYTES))
        more = message.get("more_body", False)
    if more:
        await _refusal(413, None, f"a request may have at most {max_bytes:,} bytes")(scope, receive, send)
        return None
    whole = bytes(body)
    if (refusal := excess(whole)) is not None:
        await _refusal(413, None, refusal)(scope, receive, send)
        return None
    head = _head_of(whole)
    if head.method == INITIALIZE and len(whole) > MAX_INITIALIZE_BYTES:
        text = f"an {INITIALIZE} may have at most {MAX_INITIALIZE_BYTES:,} bytes"
        await _refusal(413, head.id, text)(scope, receive, send)
        return None
    return head, replaying([{"type": "http.request", "body": whole, "more_body": False}], receive)


@dataclass(frozen=True, slots=True)
class Head:
    """The kind of a JSON-RPC message. All fields are None for a response, or for a message that mcp will reject."""

    method: str | None = None
    id: str | int | None = None
    """None for a notification."""
    opening: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The parameters of an `initialize`."""
    cancels: str | int | None = None
    """The request that a cancellation refers to."""
    mirrored: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arguments of a tool that have a header, by its name."""
    may_wait: bool = False
    """It reads a page of a view, whose size is bounded, and whose answer may be held until there are outputs."""


def _head_of(body: bytes) -> Head:
    try:
        message = as_dict(json.loads(body))
    except (ValueError, RecursionError):
        return Head()
    if not isinstance(method := message.get("method"), str):
        return Head()
    params = as_dict(message.get("params"))
    return Head(
        method,
        _id(message.get("id")),
        opening=params if method == INITIALIZE else {},
        mirrored=_mirrored(params) if method == "tools/call" else {},
        cancels=_id(params.get("requestId")),
        may_wait=may_wait(params.get("uri")),
    )


def _mirrored(params: dict[str, Any]) -> dict[str, str]:
    given = as_dict(params.get("arguments"))
    found = {header: given[name] for name, header in HEADERS.items() if isinstance(given.get(name), str | int | float)}
    return {
        f"{PARAM_PREFIX}{header}": str(value).lower() if isinstance(value, bool) else str(value)
        for header, value in found.items()
    }


def _complete(scope: Scope, mirrored: Mapping[str, str]) -> None:
    """Add the headers that repeat arguments, where the client has sent none: for us they only help a load balancer,
    and a program that has not read the list of tools cannot know them. mcp refuses one that differs."""
    headers = MutableHeaders(scope=scope)
    for name, text in mirrored.items():
        with suppress(UnicodeEncodeError):  # a lone surrogate, which is refused anyway
            headers.setdefault(name, encode_header_value(text))


def _id(value: Any) -> str | int | None:
    return value if isinstance(value, str | int) else None


def _refusal(status: int, request_id: str | int | None, text: str) -> Response:
    error = {"code": INVALID_REQUEST, "message": text}
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})
    return Response(body, status, media_type="application/json")
