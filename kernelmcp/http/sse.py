"""The older transport: one stream of events for all that the server says, and a POST for each message of the client.

mcp's, with what streamable HTTP has by itself: who reads a resource has a place until the answer has left. Must not
know resources.
"""

import re
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import anyio
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from kernelmcp.http.connections import CANCEL, PING, READ, head_of, replaying, whole_body
from kernelmcp.http.guard import share_of
from kernelmcp.http.rate_limits import Throttle

ACCEPTED = 202
# The first event says where a connection's messages go; in the others are ours.
_CONNECTION = re.compile(rb"event: endpoint\r\ndata: [^\r]*\bsession_id=([0-9a-f]{32})\r")
_MESSAGE = b"event: message\r\n"


class Sse:
    """Two ASGI apps, `stream` and `post`. `max_bytes`: of a message from a client."""

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
            body = await whole_body(scope, receive, send, self._max_bytes, take)
            if body is None:
                return
            head, replay = head_of(body), replaying(body, receive)
            answers = self._answers.get(_connection(scope))
            if answers is not None and head.method == READ and head.id is not None:
                async with self._throttle.read(share_of(scope)):
                    await self._read(answers, str(head.id), scope, replay, send)
            elif await self._is_taken(scope, replay, send) and answers is not None and head.method == CANCEL:
                answers.give_up(str(head.cancels))

    async def _read(self, answers: "_Answers", request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Returns once the answer has left. A client that does not take it in time loses its stream, as it does over
        streamable HTTP."""
        answered = answers.expect(request_id)
        try:
            if await self._is_taken(scope, receive, send):
                await answered.wait()
                # mcp and Starlette keep a stream's last message, which is a small one then.
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await answers.send(SessionMessage(PING))
        except anyio.get_cancelled_exc_class():
            answers.scope.cancel()
            raise
        finally:
            answers.forget(request_id, answered)

    async def _is_taken(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Pass a message on: whether it is one of this connection's client."""
        statuses: list[int] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        await self._transport.handle_post_message(scope, receive, noting)
        return ACCEPTED in statuses


def _connection(scope: Scope) -> str:
    """The id that a message is for, as mcp reads it; empty for what is none."""
    with suppress(ValueError):
        return UUID(hex=Request(scope).query_params.get("session_id", "")).hex
    return ""


class _Answers:
    """mcp's stream of what the server says on one connection, and who waits until what has left."""

    def __init__(self) -> None:
        self.writer: Any = None
        self.scope = anyio.CancelScope()
        """Of the connection."""
        self._in_turn = anyio.Lock()
        self._under_way: deque[str | None] = deque()
        """Of each message that mcp has and has not sent yet: the request that it answers."""
        self._expected: dict[str, list[anyio.Event]] = {}

    def expect(self, request_id: str) -> anyio.Event:
        """Set when the answer has left, or nobody waits for it any more."""
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
        """The client has cancelled the request: mcp does not answer it, unless it has begun to."""
        if request_id not in self._under_way:
            self._settle(request_id)

    def sent(self) -> None:
        """One more message has left."""
        if self._under_way and (answered := self._under_way.popleft()) is not None:
            self._settle(answered)

    def _settle(self, request_id: str) -> None:
        if waiting := self._expected.get(request_id):
            waiting[0].set()
            self.forget(request_id, waiting[0])

    def end(self) -> None:
        for answered in [answered for waiting in self._expected.values() for answered in waiting]:
            answered.set()

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        answered = str(message.id) if isinstance(message, JSONRPCResponse | JSONRPCError) else None
        async with self._in_turn:
            self._under_way.append(answered)
            with anyio.CancelScope(shield=True):  # else nobody could say whether mcp has it
                await self.writer.send(item)

    async def aclose(self) -> None:
        await self.writer.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None
