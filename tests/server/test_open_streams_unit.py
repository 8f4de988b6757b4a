"""Streams of events that the server ends: when their token is gone, and when it ends itself."""

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from pydantic import SecretStr
from starlette.types import Message, Receive, Scope, Send

from kernelmcp.config.load import load
from kernelmcp.http import guard
from kernelmcp.http.guard import Gate, Guard
from kernelmcp.http.rate_limits import Throttle
from kernelmcp.http.tokens import Authenticator

from .http_support import bearer
from .support import DEADLINE

ALICE, BOB = "alice-0123456789", "bob-0123456789"
Tokens = dict[str, SecretStr]


class Stream:
    """A GET of a client, and what it has received; `event()` is something that the server has to tell."""

    def __init__(self) -> None:
        self.settings = load(environ={"KERNELMCP_AUTH__TOKENS__ALICE": ALICE})
        self.tokens = self.settings.config.auth.tokens
        self.throttle = Throttle(self.settings)
        self.received: list[Message] = []
        self._told, self._events = anyio.create_memory_object_stream[bytes](10)

    async def run(self) -> None:
        guard = Guard(self._app, Gate(self.settings, Authenticator(self.settings), self.throttle))
        raw = [(name.lower().encode(), value.encode()) for name, value in bearer(ALICE).items()]
        scope = {"type": "http", "method": "GET", "path": "/mcp", "headers": raw, "client": ("127.0.0.1", 1)}
        await guard(scope, anyio.sleep_forever, self._send)  # type: ignore[arg-type]

    async def event(self) -> None:
        await self._told.send(b"data: 1\n\n")
        await anyio.wait_all_tasks_blocked()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with anyio.create_task_group() as tasks:  # as those that mcp makes
            tasks.start_soon(self._pass_on, send)

    async def _pass_on(self, send: Send) -> None:
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})

    async def _send(self, message: Message) -> None:
        self.received.append(message)


def removed(tokens: Tokens) -> None:
    tokens.clear()


def of_somebody_else(tokens: Tokens) -> None:
    tokens["bob"] = tokens.pop("alice")


def replaced(tokens: Tokens) -> None:
    tokens["alice"] = SecretStr(BOB)


@pytest.mark.anyio
@pytest.mark.parametrize("change", [removed, of_somebody_else, replaced])
async def test_an_open_stream_ends_with_its_token(change: Callable[[Tokens], None]) -> None:
    stream = Stream()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            await stream.event()
            change(stream.tokens)
            await stream.event()
            assert [message.get("body") for message in stream.received] == [None, b"data: 1\n\n", b""]
            assert not stream.received[-1].get("more_body", False)
            assert stream.throttle.streams == 0


@pytest.mark.anyio
async def test_an_open_stream_is_ended_properly_with_the_server() -> None:
    stream = Stream()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            await stream.event()
            stream.throttle.close_streams()
            await anyio.wait_all_tasks_blocked()
    assert [message.get("body") for message in stream.received] == [None, b"data: 1\n\n", b""]
    assert not stream.received[-1].get("more_body", False)


@pytest.mark.anyio
async def test_nothing_comes_between_the_pieces_of_an_event() -> None:
    sent: list[bytes] = []

    async def slowly(message: Message) -> None:
        sent.append(message["body"][:1])
        await anyio.lowlevel.checkpoint()

    send = vars(guard)["_bounded"](slowly)
    async with anyio.create_task_group() as tasks:
        for body in (b"d" * 3 * guard.SEND_BYTES, b": ping"):
            tasks.start_soon(send, {"type": "http.response.body", "body": body, "more_body": True})
    assert sent == [b"d", b"d", b"d", b":"]
