"""Sockets of a kernel in the event loop: every message, in order, and the loop's other tasks in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import zmq
import zmq.asyncio

from kernelmcp.kernel import sockets
from kernelmcp.kernel.sockets import MAX_PARTS, MESSAGES_PER_TURN, KernelSocket
from kernelmcp.output.sanitize import SMALL_MESSAGE_BYTES

from .support import DEADLINE

pytestmark = pytest.mark.anyio


class Pair:
    """A socket of the server, what it has received, and the kernel's socket."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.kernel = zmq.Context.shadow(context.underlying).socket(zmq.PAIR)
        self.kernel.sndhwm = 0
        self.kernel.bind("inproc://kernel")
        connected = context.socket(zmq.PAIR)
        connected.rcvhwm = 0
        connected.connect("inproc://kernel")
        self.received: list[list[bytes]] = []
        self.turns = 0
        self.socket = KernelSocket(connected, self.received.append)
        self.plain: zmq.Socket[bytes] = zmq.Socket.shadow(connected.underlying)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while len(self.received) < count:
                self.turns += 1
                await asyncio.sleep(0)


@asynccontextmanager
async def a_pair(*, is_read: bool = True) -> AsyncIterator[Pair]:
    context = zmq.asyncio.Context()
    pair = Pair(context)
    reader = asyncio.ensure_future(pair.socket.read()) if is_read else None
    await asyncio.sleep(0)
    try:
        yield pair
    finally:
        if reader is not None:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        pair.socket.close()
        pair.kernel.close(0)
        context.term()


async def test_messages_come_whole_and_in_order() -> None:
    async with a_pair() as pair:
        sent = [[b"%d" % number, b"", b"x" * (number % 7)] for number in range(5000)]
        for frames in sent:
            pair.kernel.send_multipart(frames)
        await pair.until(len(sent))
        assert pair.received == sent


async def test_messages_that_are_there_before_it_is_read_are_handled() -> None:
    async with a_pair(is_read=False) as pair:
        pair.kernel.send_multipart([b"early"])
        reader = asyncio.ensure_future(pair.socket.read())
        await pair.until(1)
        reader.cancel()


async def test_other_tasks_run_between_many_messages() -> None:
    async with a_pair() as pair:
        for _ in range(20 * MESSAGES_PER_TURN):
            pair.kernel.send(b"")
        await pair.until(20 * MESSAGES_PER_TURN)
        assert pair.turns >= 19


async def test_other_tasks_run_when_small_messages_have_taken_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "TURN_SECONDS", -1.0)
    async with a_pair() as pair:
        for _ in range(50):
            pair.kernel.send(b"")
        await pair.until(50)
        assert pair.turns >= 49


async def test_other_tasks_run_after_each_large_message() -> None:
    async with a_pair() as pair:
        for _ in range(10):
            pair.kernel.send(bytes(SMALL_MESSAGE_BYTES + 1))
        await pair.until(10)
        assert pair.turns >= 9


async def test_other_tasks_run_between_the_parts_of_a_message_with_too_many_which_is_dropped() -> None:
    async with a_pair() as pair:
        pair.kernel.send_multipart([b""] * MAX_PARTS)
        pair.kernel.send_multipart([b""] * (10 * MAX_PARTS + 1))
        pair.kernel.send(b"next")
        await pair.until(2)
        assert pair.received == [[b""] * MAX_PARTS, [b"next"]]
        assert pair.turns >= 9


async def test_a_message_that_has_come_when_another_is_sent_is_handled() -> None:
    """ZMQ's descriptor reports it once, and whoever looks at the socket takes that report."""
    async with a_pair() as pair:
        for number in range(1, 50):
            pair.kernel.send(b"")
            while not int(pair.plain.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
                pass
            pair.socket.send([b"a", b"b"])
            await pair.until(number)
            assert pair.kernel.recv_multipart() == [b"a", b"b"]


@pytest.mark.parametrize("copy", [True, False])
async def test_what_is_sent_arrives_whole(copy: bool) -> None:
    async with a_pair() as pair:
        frames = [b"first", b"", bytes(2**20)]
        pair.socket.send(frames, copy=copy)
        assert pair.kernel.recv_multipart() == frames


@pytest.mark.parametrize("failure", [MemoryError(), OSError(28, "the log's disk is full")])
async def test_what_a_handler_raises_ends_the_reader(failure: Exception) -> None:
    """The rest of the message, or of the queue, would never be read, and nobody would know."""
    async with a_pair(is_read=False) as pair:

        def fail(frames: list[bytes]) -> None:
            raise failure

        pair.socket._handle = fail  # pyright: ignore[reportPrivateUsage]
        pair.kernel.send(b"")
        with pytest.raises(type(failure)):
            async with asyncio.timeout(DEADLINE):
                await pair.socket.read()


async def test_a_closed_socket_is_neither_read_nor_written() -> None:
    """ZMQ has freed it, and would write to memory that is somebody else's by now."""
    async with a_pair(is_read=False) as pair:
        pair.socket.close()
        with pytest.raises(zmq.ZMQError):
            pair.socket.send([b"late"])
        with pytest.raises(zmq.ZMQError):
            await pair.socket.read()


async def test_nothing_is_handled_after_the_end() -> None:
    async with a_pair() as pair:
        pair.kernel.send(b"first")
        await pair.until(1)
        pair.kernel.send(b"second")
        pair.socket.close()
        for _ in range(10):
            await asyncio.sleep(0)
        assert pair.received == [[b"first"]]
