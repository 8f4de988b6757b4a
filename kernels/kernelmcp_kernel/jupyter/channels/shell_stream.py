"""The shell channel in the event loop's thread: a request becomes a task, a reply is sent at once.

ZMQStream puts each reply into a queue, polls before it sends one, and looks at the socket again after each step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any

import zmq
from zmq.eventloop.zmqstream import ZMQStream

from kernelmcp_kernel.jupyter.channels.plain_zmq import has_received, receive_frames, send_parts

_log = logging.getLogger(__name__)

Handler = Callable[[list[zmq.Frame]], Awaitable[object]]


class ShellStream(ZMQStream):
    """What ipykernel uses of a ZMQStream, for a router socket, which never makes a sender wait."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        super().__init__(socket)
        self._socket = socket
        self._handler: Handler | None = None
        self._handling: set[asyncio.Task[object]] = set()
        self._context = copy_context()
        self.io_loop.remove_handler(socket)  # of ZMQStream
        self.io_loop.add_handler(socket.FD, self._arrived, self.io_loop.READ)

    def on_recv(self, callback: Any, copy: bool = True) -> None:
        """Handle each message in a task of its own, in the order of arrival. `callback`: gets the message's frames,
        which are not copied, and returns an awaitable."""
        self._handler = callback
        # One context for all requests, of this moment: in it, ipykernel keeps whose request is being handled.
        self._context = copy_context()
        self._look_again()

    def send_multipart(self, msg: Sequence[Any], flags: int = 0, copy: bool = True, *_: Any, **__: Any) -> None:
        """Send a message now. Called by jupyter_client's Session."""
        try:
            if copy:
                send_parts(self._socket, msg)
            else:
                self._socket.send_multipart(msg, copy=False)
        except zmq.ZMQError as error:
            _log.error("a reply could not be sent: %s", error)
        self._look_again()

    def flush(self, flag: int = zmq.POLLIN | zmq.POLLOUT, limit: int | None = None) -> int:
        """Receive the messages that have arrived; there is never one left to send."""
        count = 0
        while flag & zmq.POLLIN and (limit is None or count < limit) and self._receive():
            count += 1
        self._look_again()  # beyond the limit there may be more
        return count

    def _arrived(self, *_: object) -> None:
        """One message in a turn of the loop, as there are other sockets."""
        if self._receive():
            self._look_again()

    def _look_again(self) -> None:
        if has_received(self._socket):
            self.io_loop.add_callback(self._arrived)

    def _receive(self) -> bool:
        if self._handler is None:
            return False
        try:
            parts = receive_frames(self._socket)
        except zmq.Again:
            return False
        task = asyncio.get_running_loop().create_task(_handle(self._handler, parts), context=self._context)
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        return True


async def _handle(handler: Handler, parts: list[zmq.Frame]) -> None:
    try:
        await handler(parts)
    except Exception:  # noqa: BLE001  # nobody awaits the task
        _log.exception("a request could not be handled")
