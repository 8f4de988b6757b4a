"""The wire of stdio towards a client that does not read: over pipes, without a server."""

import json
import logging
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
import anyio.abc
import anyio.to_thread
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse
from structlog.testing import capture_logs

from kernelmcp.observability import unread_stderr
from kernelmcp.stdio import serve
from kernelmcp.stdio import wire as module
from kernelmcp.stdio.wire import Wire, open_wire

pytestmark = pytest.mark.anyio
DEADLINE = 60


@dataclass
class Client:
    """The other ends of the two pipes."""

    to_server: int
    from_server: int

    def ask(self, *numbers: int) -> None:
        """Write these requests at once, so that the server has read them all when it has the first one."""
        lines = [json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}) + "\n" for number in numbers]
        os.write(self.to_server, "".join(lines).encode())

    async def read(self, answers: int) -> list[int]:
        """The ids of the next answers."""

        def lines() -> list[bytes]:
            with os.fdopen(os.dup(self.from_server), "rb") as stream:
                return [stream.readline() for _ in range(answers)]

        return [json.loads(line)["id"] for line in await anyio.to_thread.run_sync(lines)]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Wire, Client]]:
    server_in, to_server = os.pipe()
    from_server, server_out = os.pipe()
    try:
        async with open_wire(server_in, server_out) as wire:
            yield wire, Client(to_server, from_server)
    finally:
        for fd in (to_server, from_server):
            with suppress(OSError):  # a test has closed it
                os.close(fd)


async def next_id(wire: Wire) -> str | int:
    received = await wire.receive()
    assert isinstance(received, SessionMessage)
    assert isinstance(received.message, JSONRPCRequest)
    return received.message.id


async def answer(wire: Wire, number: int, size: int) -> None:
    await wire.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={"text": "x" * size})))


class Next:
    """The next request, which is waited for in the background."""

    def __init__(self, wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        self.ids: list[str | int] = []
        self.ended = anyio.Event()
        self._wire = wire
        tasks.start_soon(self._receive)

    async def _receive(self) -> None:
        try:
            self.ids.append(await next_id(self._wire))
        except anyio.EndOfStream:
            pass
        finally:
            self.ended.set()


async def test_a_client_that_leaves_a_large_answer_unread_is_not_read_either() -> None:
    with anyio.fail_after(DEADLINE):
        async with connected() as (wire, client), anyio.create_task_group() as tasks:
            client.ask(1, 2)
            assert await next_id(wire) == 1
            await answer(wire, 1, 2 * module.MAX_PENDING_BYTES)
            following = Next(wire, tasks)
            await anyio.wait_all_tasks_blocked()
            assert following.ids == []
            assert await client.read(1) == [1]
            await following.ended.wait()
            assert following.ids == [2]


async def test_a_client_that_leaves_many_answers_unread_is_not_read_either() -> None:
    requests = module.MAX_PENDING_MESSAGES + 2
    with anyio.fail_after(DEADLINE):
        async with connected() as (wire, client), anyio.create_task_group() as tasks:
            client.ask(*range(requests))
            # More than a pipe and asyncio's buffer hold, so that the others wait; less than the limit in bytes.
            assert await next_id(wire) == 0
            await answer(wire, 0, module.MAX_PENDING_BYTES // 2)
            for number in range(1, requests - 1):
                assert await next_id(wire) == number
                tasks.start_soon(answer, wire, number, 10)
            following = Next(wire, tasks)
            await anyio.wait_all_tasks_blocked()
            assert following.ids == []
            assert await client.read(requests - 1) == list(range(requests - 1))
            await following.ended.wait()
            assert following.ids == [requests - 1]


async def test_a_client_that_leaves_without_reading_ends_the_wire() -> None:
    with anyio.fail_after(DEADLINE):
        async with connected() as (wire, client), anyio.create_task_group() as tasks:
            client.ask(1, 2)
            assert await next_id(wire) == 1
            await answer(wire, 1, 2 * module.MAX_PENDING_BYTES)
            following = Next(wire, tasks)
            await anyio.wait_all_tasks_blocked()
            os.close(client.to_server)
            await following.ended.wait()
            assert following.ids == []


@pytest.mark.parametrize("head", [b'"jsonrpc":"2.0","id":7,"method":"ping","params":', b'"method":"ping","params":'])
async def test_a_message_of_too_many_values_is_answered_and_not_parsed(head: bytes) -> None:
    """Sixteen megabytes of empty lists took the server from 88 to 493 MB."""
    end = b"" if b"id" in head else b',"jsonrpc":"2.0","id":7'
    with anyio.fail_after(DEADLINE):
        async with connected() as (wire, client), anyio.create_task_group() as tasks:
            following = Next(wire, tasks)
            tracemalloc.start()
            message = b"{" + head + b"[" + b"[]," * 5_000_000 + b"[]]" + end + b"}\n"
            before = tracemalloc.get_traced_memory()[0]
            await anyio.to_thread.run_sync(write_all, client.to_server, message)
            assert await client.read(1) == [7]
            peak = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
            assert peak < 5 * len(message)
            client.ask(8)
            await following.ended.wait()
            assert following.ids == [8]


def write_all(fd: int, data: bytes) -> None:
    with os.fdopen(os.dup(fd), "wb") as stream:
        stream.write(data)


@pytest.mark.parametrize(
    "line", [b"code = 'private'\n", b'{"jsonrpc": "2.0", "id": 1, "method": {"private": "private"}}\n']
)
async def test_the_log_quotes_nothing_of_a_refused_message(line: bytes) -> None:
    with capture_logs() as logged:
        async with connected() as (wire, client):
            os.write(client.to_server, line)
            client.ask(2)
            assert await next_id(wire) == 2
    [refused] = logged
    assert refused["reason"]
    assert "private" not in str(refused)


@pytest.mark.parametrize("is_one", [True, False])
async def test_sockets_carry_messages_both_ways_and_may_be_half_closed(is_one: bool) -> None:
    """One socket as stdin and stdout, as of inetd and socat, or two, as of Node."""
    to_server, server_in = socket.socketpair()
    from_server, server_out = (to_server, server_in) if is_one else socket.socketpair()
    async with open_wire(server_in.detach() if not is_one else os.dup(server_in.fileno()), server_out.detach()) as wire:
        client = Client(to_server.fileno(), from_server.fileno())
        client.ask(1, 2)
        assert [await next_id(wire), await next_id(wire)] == [1, 2]
        await answer(wire, 1, 10)
        assert await client.read(1) == [1]
        from_server.shutdown(socket.SHUT_WR)
        if is_one:
            with pytest.raises(anyio.EndOfStream):
                await wire.receive()
        else:
            client.ask(3)
            assert await next_id(wire) == 3
        await answer(wire, 2, 10)
        assert await client.read(1) == [2]
    to_server.close()
    from_server.close()


@pytest.mark.parametrize("answers", [1, 2])
async def test_one_socket_that_is_closed_with_an_answer_unread_is_at_its_end(answers: int) -> None:
    client, server = socket.socketpair()
    async with open_wire(os.dup(server.fileno()), server.detach()) as wire:
        Client(client.fileno(), client.fileno()).ask(1, 2)
        assert [await next_id(wire), await next_id(wire)] == [1, 2]
        await answer(wire, 1, 10)
        client.close()
        if answers == 2:
            await answer(wire, 2, 10)  # nobody has noticed yet
        with anyio.fail_after(DEADLINE), pytest.raises(anyio.EndOfStream):
            await wire.receive()


def test_a_socket_that_is_stderr_too_carries_messages_only(standard_fds: None) -> None:
    """As of inetd, and of systemd with StandardInput=socket."""
    client, server = socket.socketpair()
    with client, server:
        for fd in (0, 1, 2):
            os.dup2(server.fileno(), fd)
        log = unread_stderr.UnreadStderr(2)  # it is made before the wire is claimed
        wire_in, wire_out = serve.claim()
        log.handle(logging.makeLogRecord({"msg": "a line of the log"}))
        log.flush()
        os.write(1, b"a print")
        os.write(wire_out, b"a message")
        assert client.recv(100) == b"a message"
        os.close(wire_in)
        os.close(wire_out)


@pytest.fixture
def standard_fds() -> Iterator[None]:
    """A test may change them."""
    kept = [os.dup(fd) for fd in (0, 1, 2)]
    yield
    for fd, copy in enumerate(kept):
        os.dup2(copy, fd)
        os.close(copy)
