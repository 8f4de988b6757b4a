"""The older transport: one stream of events for all of the server's messages, and a POST for each message of the
client.

mcp's transport, plus a feature that streamable HTTP already has: a client that reads a resource keeps its place until
the answer was sent. Must not know resources.
"""

import re
from collections import deque
from contextlib import suppress
from typing import Any
from uuid import UUID

import anyio
from anyio.abc import ObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from kernelmcp.errors import RateLimited
from kernelmcp.http.guard import CANCEL, share_of
from kernelmcp.http.mcp_connections import PING, READ, whole_message
from kernelmcp.http.rate_limits import BUSY_RETRY_SECONDS, Throttle

ACCEPTED = 202
# Answers of one connection that its client has not read: requests are accepted before they are answered, so no other
# limit counts these.
MAX_UNREAD = 64
# The first event contains the address for a connection's messages; later events contain our messages.
_CONNECTION = re.compile(rb"event: endpoint\r\ndata: [^\r]*\bsession_id=([0-9a-f]{32})\r")
_MESSAGE = b"event: message\r\n"


class Sse:
    """Two ASGI apps, `stream` and `post`. `max_bytes` limits a message from a client."""

    def __init__(self, server: Server[Any], throttle: Throttle, max_bytes: int) -> None:
        self._server = server
        self._throttle = throttle
        self._max_bytes = max_bytes
        self._transport = SseServerTransport("/messages/", max_request_body_size=max_bytes)
        self._answers: dict[str, _Answers] = {}
        """By the connection's id."""

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers, connection = _Answers(), ""

        async def sending(message: Message) -> None:
            nonlocal connection
            body: bytes = message.get("body", b"")
            if not connection and (found := _CONNECTION.match(body)) is not None:
                connection = found[1].decode()
                self._answers[connection] = answers
            await send(message)
            if body.startswith(_MESSAGE):
                answers.sent()

        try:
            with answers.scope:
                async with self._transport.connect_sse(scope, receive, sending) as (reader, writer):
                    answers.writer = writer
                    await self._server.run(reader, answers, self._server.create_initialization_options())
        finally:
            self._answers.pop(connection, None)
            answers.end()

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._throttle.body(share_of(scope)) as take:
            found = await whole_message(scope, receive, send, self._max_bytes, take)
            if found is None:
                return
            head, replay = found
            answers = self._answers.get(_connection(scope))
            if answers is not None and head.id is not None and answers.unread >= MAX_UNREAD:
                text = f"{MAX_UNREAD} answers of this connection are unread"
                raise RateLimited(text, "Read its events.", retry_after_seconds=BUSY_RETRY_SECONDS)
            if answers is not None and head.method == READ and not head.may_wait and head.id is not None:
                async with self._throttle.read(share_of(scope)):
                    await self._read(answers, str(head.id), scope, replay, send)
            elif await self._is_taken(scope, replay, send) and answers is not None and head.method == CANCEL:
                answers.give_up(str(head.cancels))

    async def _read(self, answers: "_Answers", request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Return once the answer was sent. A client that does not read it in time loses its stream, as over streamable
        HTTP."""
        answered = answers.expect(request_id)
        try:
            if await self._is_taken(scope, receive, send):
                await answered.wait()
                # mcp and Starlette keep a stream's last message, which is then a small one.
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await answers.send(SessionMessage(PING))
        except anyio.get_cancelled_exc_class():
            answers.scope.cancel()
            raise
        finally:
            answers.forget(request_id, answered)

    async def _is_taken(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Pass a message on; returns whether it belongs to this connection's client, and the stream has not ended."""
        statuses: list[int] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            await self._transport.handle_post_message(scope, receive, noting)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # mcp accepts a message, then passes it on
            return False
        return ACCEPTED in statuses


def _connection(scope: Scope) -> str:
    """The connection id of a message, as mcp parses it; empty if it is invalid."""
    with suppress(ValueError):
        return UUID(hex=Request(scope).query_params.get("session_id", "")).hex
    return ""


class _Answers(ObjectSendStream[SessionMessage]):
    """mcp's stream of the server's messages on one connection, and the tasks that wait until one was sent."""

    def __init__(self) -> None:
        self.writer: Any = None
        self.scope = anyio.CancelScope()
        """The scope of the connection."""
        self._in_turn = anyio.Lock()
        self._under_way: deque[str | None] = deque()
        """For each message that mcp has and has not sent yet: the request that it answers."""
        self._expected: dict[str, list[anyio.Event]] = {}

    @property
    def unread(self) -> int:
        return self._in_turn.statistics().tasks_waiting

    def expect(self, request_id: str) -> anyio.Event:
        """Return an event that is set when the answer was sent, or nobody waits for it any more."""
        answered = anyio.Event()
        self._expected.setdefault(request_id, []).append(answered)  # a client may use an id twice
        return answered

    def forget(self, request_id: str, answered: anyio.Event) -> None:
        waiting = self._expected.get(request_id, [])
        if answered in waiting:
            waiting.remove(answered)
        if not waiting:
            self._expected.pop(request_id, None)

    def give_up(self, request_id: str) -> None:
        """Handle a cancellation by the client: mcp does not answer the request, unless it has already begun."""
        if request_id not in self._under_way:
            self._settle(request_id)

    def sent(self) -> None:
        """Note that one more message was sent."""
        if self._under_way and (answered := self._under_way.popleft()) is not None:
            self._settle(answered)

    def _settle(self, request_id: str) -> None:
        if waiting := self._expected.get(request_id):
            waiting[0].set()
            self.forget(request_id, waiting[0])

    def end(self) -> None:
        for answered in [answered for waiting in self._expected.values() for answered in waiting]:
            answered.set()

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        answered = str(message.id) if isinstance(message, JSONRPCResponse | JSONRPCError) else None
        async with self._in_turn:
            self._under_way.append(answered)
            with anyio.CancelScope(shield=True):  # otherwise it would be unknown whether mcp has it
                await self.writer.send(item)

    async def aclose(self) -> None:
        await self.writer.aclose()
