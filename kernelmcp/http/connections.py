"""The requests of MCP connections over HTTP: read whole before mcp sees them, each id once, and none left without an
answer when its connection is deleted.

A connection is what an older client (until 2025-11-25) opens with `initialize` and ends with DELETE. On DELETE mcp's
transport closes the streams of calls under way, so calls are ended first.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelmcp.http.first_steps import explaining
from kernelmcp.mcp_server.callers import CLOSING_KEY, Callers, principal_of
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.stdio.message_bounds import excess

# How long a DELETE waits for what it interrupts, and then for the answers of the calls under way.
ANSWER_SECONDS = 5.0
# JSON-RPC 2.0.
INVALID_REQUEST = -32600
# What mcp answers when a connection has ended, or never was.
ENDED = "Not Found: Session has been terminated"

OnDelete = Callable[[str, str], Awaitable[None]]
"""Called with a principal and a connection's id."""


@dataclass(eq=False)
class _Connection:
    """One connection with requests under way."""

    calls: set[object] = field(default_factory=set[object])
    """Requests by their ids, and notifications."""
    ending: bool = False
    """It is being deleted: nothing new begins."""
    closing: anyio.Event = field(default_factory=anyio.Event)
    """Who still waits for an execution must answer now."""
    empty: anyio.Event = field(default_factory=anyio.Event)


class Connections:
    """An ASGI app around mcp's. `interrupt` and `stop` are called for a connection that is being deleted: before its
    calls are answered, and after. `max_bytes`: of a request's body."""

    def __init__(self, app: ASGIApp, max_bytes: int, *, interrupt: OnDelete, stop: OnDelete) -> None:
        self._app = app
        self._bounded = RequestBodyLimitMiddleware(self._serve, max_bytes)
        self._interrupt = interrupt
        self._stop = stop
        self._connections: dict[tuple[str, str], _Connection] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._bounded(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Events have no ids here, so there is nothing to resume after; the specification lets a server begin afresh.
        headers = MutableHeaders(scope=scope)
        del headers["last-event-id"]
        connection = headers.get("mcp-session-id")
        if scope["method"] == "POST":
            await self._post(connection, scope, receive, send)
        elif scope["method"] == "DELETE" and connection:
            await self._delete((principal_of(scope), connection), scope, receive, send)
        else:
            await self._app(scope, receive, send if connection else explaining(send))

    async def _post(self, connection: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        messages = await _whole(receive)
        if messages is None:
            return  # the client has gone: nobody is there to be answered
        replay = _replaying(messages, receive)
        if (refusal := excess(_body(messages))) is not None:
            await _refusal(413, None, refusal)(scope, receive, send)
            return
        raw_id = _request_id(messages) if connection else None
        if connection is None:
            await self._app(scope, replay, explaining(send))
            return
        key = (principal_of(scope), connection)
        # A notification has no id, and is under way all the same: mcp handles it after it has answered.
        call: object = object() if raw_id is None else str(raw_id)
        found = self._connections.get(key)
        if found is not None and found.ending:
            await _refusal(404, raw_id, ENDED)(scope, receive, send)
        elif found is not None and call in found.calls:
            text = "a request with this id is under way already; give each request of a connection an id of its own"
            await _refusal(400, raw_id, text)(scope, receive, send)
        else:
            async with self._under_way(key, call) as closing:
                scope[CLOSING_KEY] = closing
                await self._app(scope, replay, send)

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
        connection = self._connections.setdefault(key, _Connection())
        connection.ending = True
        try:
            with anyio.move_on_after(ANSWER_SECONDS):
                await self._interrupt(*key)
            connection.closing.set()
            with anyio.move_on_after(ANSWER_SECONDS):
                if connection.calls:
                    await connection.empty.wait()
            await self._app(scope, receive, send)
            await self._stop(*key)
        finally:
            self._connections.pop(key, None)


def within_bounds(app: ASGIApp, max_bytes: int) -> ASGIApp:
    """The app, for requests whose JSON may be parsed. `max_bytes`: of their bodies."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        messages = await _whole(receive)
        if messages is None:
            return
        if (refusal := excess(_body(messages))) is not None:
            await _refusal(413, None, refusal)(scope, receive, send)
        else:
            await app(scope, _replaying(messages, receive), send)

    return RequestBodyLimitMiddleware(bounded, max_bytes)


class ConnectionEnds:
    """What becomes of a connection's own session when its client deletes the connection: what runs is interrupted, and
    its kernel ends. Files and transcript stay, as with every session."""

    def __init__(self, registry: Registry, callers: Callers) -> None:
        self._registry = registry
        self._callers = callers

    def _session(self, principal: str, connection: str) -> Session | None:
        return self._registry.find_open(principal, self._callers.own_handle(principal, connection))

    async def interrupt(self, principal: str, connection: str) -> None:
        if (session := self._session(principal, connection)) is not None:
            session.interrupt_all()
            await session.until_idle()

    async def stop(self, principal: str, connection: str) -> None:
        if (session := self._session(principal, connection)) is not None and not session.destroyed:
            await session.stop()


async def _whole(receive: Receive) -> list[Message] | None:
    """A request's messages; None when its client has gone before the end, or sent what is not HTTP."""
    messages: list[Message] = []
    while not messages or messages[-1].get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        messages.append(message)
    return messages


def _body(messages: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


def _replaying(messages: list[Message], receive: Receive) -> Receive:
    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay


def _request_id(messages: list[Message]) -> str | int | None:
    """The id of a JSON-RPC request; None for a notification, a response, or what mcp will refuse."""
    try:
        found: Any = json.loads(_body(messages))
    except (ValueError, RecursionError):
        return None
    message = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if "method" not in message or not isinstance(message.get("id"), str | int):
        return None
    return cast("str | int", message["id"])


def _refusal(status: int, request_id: str | int | None, text: str) -> Response:
    error = {"code": INVALID_REQUEST, "message": text}
    body = json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})
    return Response(body, status, media_type="application/json")
