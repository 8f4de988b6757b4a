"""A ZMQ socket in the event loop: messages are handled as they come, in order, and sent at once.

In place of zmq.asyncio's, which makes a future for each message and polls the socket before and after: with the
messages of a cell, a tenth of what a call cost the server.
"""

import asyncio
from collections.abc import Callable

import zmq
import zmq.asyncio

from kernelmcp.output.sanitize import SMALL_MESSAGE_BYTES

# Messages handled before other tasks get a turn, and the time for them: 100,000 outputs must not block other sessions.
MESSAGES_PER_TURN = 100
TURN_SECONDS = 0.005
# Parts of one message: a kernel's own has far fewer (iopub.MAX_BUFFERS). A million would block for a second.
MAX_PARTS = 2000
# Only messages with fewer are small.
_MANY_PARTS = 100
# As numbers: pyzmq's own are enumerations, whose every `|` and `&` makes another one.
_AT_ONCE, _MORE, _READABLE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE), int(zmq.POLLIN)


class KernelSocket:
    """One socket that jupyter_client has connected."""

    def __init__(self, connected: zmq.asyncio.Socket, handle: Callable[[list[bytes]], None]) -> None:
        """`handle` is called with the frames of each message. What it raises ends `read`."""
        self._connected = connected
        # The same socket, with ZMQ's own methods. The other one stays its owner, and never learns of the event loop.
        self._socket: zmq.Socket[bytes] = zmq.Socket.shadow(connected.underlying)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] | None = None
        self._is_due = self._is_closed = self._is_in_rest = False

    async def read(self) -> None:
        """Handle its messages, until this is cancelled. Raises `zmq.ZMQError` if it cannot be read or is closed."""
        if self._is_closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        self._broken = self._loop.create_future()
        self._loop.add_reader(self._descriptor, self._receive)
        self._read_on()
        try:
            await self._broken
        finally:
            self._stop()

    def send(self, frames: list[bytes], *, copy: bool = True) -> None:
        """Send a message. It never waits: the sockets have no high-water mark. Raises `zmq.ZMQError` if it is closed
        or its connection is broken for good."""
        if self._is_closed:  # ZMQ has freed it
            raise zmq.ZMQError(zmq.ENOTSOCK)
        for frame in frames[:-1]:
            self._socket.send(frame, _MORE, copy=copy)
        self._socket.send(frames[-1], _AT_ONCE, copy=copy)
        # ZMQ's descriptor reports a change once, and the send may have noticed the one that a message has come with.
        if int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
            self._read_on()

    def close(self) -> None:
        self._is_closed = True
        self._stop()
        self._connected.close(0)

    def _read_on(self) -> None:
        if self._broken is not None and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._receive_more)

    def _receive_more(self) -> None:
        self._is_due = False
        self._receive()

    def _receive(self) -> None:
        """Handle messages until none is left: only then does the descriptor report the next one."""
        end = self._loop.time() + TURN_SECONDS
        for _ in range(MESSAGES_PER_TURN):
            if (reader := self._broken) is None or reader.done():
                return
            try:
                # No variable holds a part of a message while the next one is awaited.
                is_small = self._take(self._next())
            except zmq.Again:
                return
            except Exception as error:  # noqa: BLE001  # a socket that nobody reads any more would be a silent one
                if not reader.done():
                    reader.set_exception(error)
                return
            if not is_small or self._loop.time() > end:
                break
        self._read_on()

    def _next(self) -> list[bytes]:
        """Receive a message; all its frames come together. Returns nothing for a piece of one with too many. Raises
        `zmq.Again` if there is none."""
        frames: list[bytes] = []
        while len(frames) < MAX_PARTS:
            frame = self._socket.recv(_AT_ONCE, copy=False)
            frames.append(frame.bytes)
            if not frame.more:
                is_rest, self._is_in_rest = self._is_in_rest, False
                return [] if is_rest else frames
        self._is_in_rest = True
        return []

    def _take(self, frames: list[bytes]) -> bool:
        """Handle a message; return whether it was a small one, after which the next may follow at once."""
        is_small = 0 < len(frames) < _MANY_PARTS and sum(map(len, frames)) <= SMALL_MESSAGE_BYTES
        if frames:
            self._handle(frames)
        return is_small

    def _stop(self) -> None:
        if self._broken is not None:
            self._broken = None
            self._loop.remove_reader(self._descriptor)
