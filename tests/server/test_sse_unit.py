"""The older transport, without a server process."""

from typing import Any

import anyio
import pytest
from mcp.server.lowlevel.server import Server
from starlette.types import Message, Scope

from kernelmcp.config.load import load
from kernelmcp.errors import RateLimited
from kernelmcp.http.guard import SHARE_KEY
from kernelmcp.http.rate_limits import Throttle
from kernelmcp.http.sse import MAX_UNREAD, Sse

from .support import DEADLINE


class Events:
    """What a client has got of its stream; it takes the next one once it `reads`."""

    def __init__(self) -> None:
        self.opened, self.reads = anyio.Event(), anyio.Event()
        self.got: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if body := message.get("body"):
            self.got.append(body)
            self.opened.set()
            if len(self.got) > 1:
                await self.reads.wait()

    async def query(self) -> bytes:
        """Of the address for messages, which is the first event."""
        await self.opened.wait()
        return self.got[0].split(b"?")[1].split()[0]


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["ping", "resources/read"])
async def test_a_message_to_a_stream_that_ends_meanwhile_is_no_error(method: str) -> None:
    sse = Sse(Server[Any]("server"), Throttle(load(environ={})), 2**20)
    events, leaves = Events(), anyio.Event()
    events.reads.set()
    statuses: list[int] = []

    async def until_it_leaves() -> Message:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def answered(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            leaves.set()
            await anyio.wait_all_tasks_blocked()

    async def body() -> Message:
        return {"type": "http.request", "body": b'{"jsonrpc":"2.0","id":1,"method":"%s"}' % method.encode()}

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sse.stream, _scope("GET", b""), until_it_leaves, events)
            query = await events.query()
            await sse.post(_scope("POST", query), body, answered)
    assert statuses == [202]


@pytest.mark.anyio
async def test_a_client_that_reads_no_answer_can_ask_no_more() -> None:
    sse = Sse(Server[Any]("server"), Throttle(load(environ={})), 2**20)
    events = Events()
    statuses: list[int] = []

    async def until_it_leaves() -> Message:
        await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    async def status(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def ask() -> None:
        await sse.post(_scope("POST", query), _body, status)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sse.stream, _scope("GET", b""), until_it_leaves, events)
            query = await events.query()
            for _ in range(MAX_UNREAD + 3):  # three more are on their way
                await ask()
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RateLimited, match="answers of this connection are unread"):
                await ask()
            events.reads.set()
            await anyio.wait_all_tasks_blocked()
            await ask()
            tasks.cancel_scope.cancel()
    assert set(statuses) == {202}


async def _body() -> Message:
    return {"type": "http.request", "body": b'{"jsonrpc":"2.0","id":1,"method":"ping"}'}


def _scope(method: str, query: bytes) -> Scope:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "method": method,
        "path": "/",
        "query_string": query,
        "headers": headers,
        SHARE_KEY: "local",
    }
