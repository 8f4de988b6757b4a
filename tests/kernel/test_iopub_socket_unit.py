"""The iopub socket: messages from any thread, whole and in order; subscriptions; the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import zmq
from jupyter_client.session import Session

from kernelmcp_kernel.jupyter.channels.iopub_socket import IopubSocket

DEADLINE_MS = 30_000
MESSAGES = 500


class Pair:
    """An iopub socket, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/iopub"
        self.session = Session(key=b"key")
        self.clients: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.sndhwm = 0
        self._socket.linger = DEADLINE_MS
        self._socket.bind(self.address)

    def open(self) -> IopubSocket:
        """In the event loop's thread."""
        self.iopub = IopubSocket(self._socket, self.session)
        return self.iopub

    def client(self, topic: bytes = b"") -> zmq.Socket[bytes]:
        client = self.clients.socket(zmq.SUB)
        client.rcvhwm = 0
        client.rcvtimeo = DEADLINE_MS
        client.subscribe(topic)
        client.connect(self.address)
        return client

    def end(self) -> None:
        self.iopub.close()
        self._context.term()

    async def welcomed(self, topic: bytes = b"") -> zmq.Socket[bytes]:
        client = self.client(topic)
        parts = await asyncio.to_thread(client.recv_multipart)
        idents, parts = self.session.feed_identities(parts)
        message = self.session.deserialize(parts)
        assert (idents, message["msg_type"]) == ([topic] if topic else [], "iopub_welcome")
        assert message["content"] == {"subscription": topic.decode()}
        return client


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.clients.destroy(linger=0)


def test_a_late_subscriber_is_welcomed_and_gets_what_follows(pair: Pair) -> None:
    async def run() -> None:
        iopub = pair.open()
        early = await pair.welcomed()
        iopub.send_multipart([b"one"])
        late = await pair.welcomed(b"t")  # XPUB reports the first client of each topic
        iopub.send_multipart([b"two", b"parts"])
        found = [early.recv_multipart() for _ in range(3)]
        assert (found[0], found[1][0], found[2]) == ([b"one"], b"t", [b"two", b"parts"])
        assert late.recv_multipart() == [b"two", b"parts"]

    asyncio.run(run())
    pair.end()


def test_a_subscriber_is_welcomed_while_another_thread_sends_without_a_pause(pair: Pair) -> None:
    async def run() -> None:
        iopub, ends = pair.open(), list[bool]()

        def flood() -> None:
            while not ends:
                iopub.send_multipart([b"other", b"x"])

        thread = Thread(target=flood)
        thread.start()
        try:
            for number in range(20):
                (await pair.welcomed(b"topic %d" % number)).close()
        finally:
            ends.append(True)
            thread.join()

    asyncio.run(run())
    pair.end()


def test_messages_of_several_threads_arrive_whole_and_each_threads_in_order(pair: Pair) -> None:
    async def run() -> zmq.Socket[bytes]:
        iopub = pair.open()
        client = await pair.welcomed()

        def send(name: bytes) -> None:
            for number in range(MESSAGES):
                iopub.send_multipart([name, b"%d" % number, name], copy=number % 2 == 0)

        threads = [Thread(target=send, args=(name,)) for name in (b"control", b"other")]
        for thread in threads:
            thread.start()
        send(b"main")
        for thread in threads:
            thread.join()
        return client

    client = asyncio.run(run())
    found = [client.recv_multipart() for _ in range(3 * MESSAGES)]
    for name in (b"main", b"control", b"other"):
        assert [each for each in found if each[0] == name] == [[name, b"%d" % n, name] for n in range(MESSAGES)]
    pair.end()


def test_all_that_was_sent_arrives_after_the_end_and_nothing_that_came_later(pair: Pair) -> None:
    async def run() -> zmq.Socket[bytes]:
        iopub = pair.open()
        client = await pair.welcomed()
        for number in range(MESSAGES):
            iopub.send_multipart([b"%d" % number, bytes(20_000)])
        iopub.close()
        iopub.send_multipart([b"late"])
        return client

    client = asyncio.run(run())
    ending = Thread(target=pair.end)  # waits until the client has it
    ending.start()
    assert [client.recv_multipart()[0] for _ in range(MESSAGES)] == [b"%d" % number for number in range(MESSAGES)]
    ending.join()
    assert client.poll(0) == 0
