"""The shell channel: every request is handled, in order, and each reply is sent at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
import zmq

from kernelmcp_kernel.jupyter.channels.shell_stream import ShellStream

DEADLINE_MS = 30_000
REQUESTS = 300

kept: ContextVar[int] = ContextVar("kept")


class Channel:
    """A router socket, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/shell"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(self.address)

    def client(self) -> zmq.Socket[bytes]:
        client = self.context.socket(zmq.DEALER)
        client.rcvtimeo = DEADLINE_MS
        client.connect(self.address)
        return client


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    channel = Channel(tmp_path)
    yield channel
    channel.context.destroy(linger=0)


def read(parts: list[zmq.Frame]) -> list[bytes]:
    return [part.bytes for part in parts]


def test_a_reply_is_sent_at_once(channel: Channel) -> None:
    """Even if the handler keeps the event loop from turning, as an idle status that follows must come later."""

    async def run() -> list[bytes]:
        client, stream = channel.client(), ShellStream(channel.socket)
        found = asyncio.get_running_loop().create_future()

        async def handle(parts: list[zmq.Frame]) -> None:
            ident, request = read(parts)
            stream.send_multipart([ident, request, b"reply"])
            found.set_result(client.recv_multipart())

        stream.on_recv(handle, copy=False)
        client.send_multipart([b"request"])
        return await found

    assert asyncio.run(run()) == [b"request", b"reply"]


def test_requests_that_arrive_while_replies_are_sent_are_all_handled(channel: Channel) -> None:
    """A send can take the event of a message that has arrived: none may be left lying."""

    async def run() -> list[bytes]:
        client, stream = channel.client(), ShellStream(channel.socket)

        async def handle(parts: list[zmq.Frame]) -> None:
            stream.send_multipart(read(parts))
            stream.send_multipart([parts[0].bytes, b"x" * 100_000], copy=False)

        def exchange() -> list[bytes]:
            found: list[bytes] = []
            for number in range(REQUESTS):
                client.send_multipart([b"%d" % number])
                if number % 3 == 2:
                    while len(found) < number:
                        if len(answer := client.recv()) < 100:
                            found.append(answer)
            while len(found) < REQUESTS:
                if len(answer := client.recv()) < 100:
                    found.append(answer)
            return found

        stream.on_recv(handle, copy=False)
        return await asyncio.to_thread(exchange)

    assert asyncio.run(run()) == [b"%d" % number for number in range(REQUESTS)]


def test_requests_that_were_there_before_are_handled_and_share_a_context(channel: Channel) -> None:
    async def run() -> list[int]:
        client, stream = channel.client(), ShellStream(channel.socket)
        for number in range(1, 4):
            client.send_multipart([b"%d" % number])
        assert channel.socket.poll(DEADLINE_MS)
        counts: list[int] = []
        done = asyncio.Event()

        async def handle(parts: list[zmq.Frame]) -> None:
            counts.append(kept.get(0))
            kept.set(int(parts[1].bytes))
            if len(counts) == 3:
                done.set()

        stream.on_recv(handle, copy=False)
        await done.wait()
        assert kept.get(0) == 0
        return counts

    assert asyncio.run(run()) == [0, 1, 2]


def test_a_flush_receives_what_has_arrived_in_order(channel: Channel) -> None:
    async def run() -> list[bytes]:
        client, stream = channel.client(), ShellStream(channel.socket)
        handled: list[bytes] = []

        async def handle(parts: list[zmq.Frame]) -> None:
            handled.append(parts[1].bytes)

        stream.on_recv(handle, copy=False)
        client.send_multipart([b"one"])
        client.send_multipart([b"two"])
        while stream.flush(limit=1) < 1:
            assert channel.socket.poll(DEADLINE_MS)
        while stream.flush() < 1:
            assert channel.socket.poll(DEADLINE_MS)
        assert handled == []  # each is a task
        await asyncio.sleep(0)
        return handled

    assert asyncio.run(run()) == [b"one", b"two"]


def test_a_handler_that_fails_and_a_client_that_is_gone_stop_nothing(channel: Channel) -> None:
    async def run() -> list[bytes]:
        client, stream = channel.client(), ShellStream(channel.socket)

        async def handle(parts: list[zmq.Frame]) -> None:
            ident, request = read(parts)
            if request == b"fails":
                raise ValueError
            stream.send_multipart([b"nobody", b"lost"])
            stream.send_multipart([ident, request])

        stream.on_recv(handle, copy=False)
        client.send_multipart([b"fails"])
        client.send_multipart([b"works"])
        return await asyncio.to_thread(client.recv_multipart)

    assert asyncio.run(run()) == [b"works"]
