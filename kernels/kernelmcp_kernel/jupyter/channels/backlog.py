"""Bounds the output that was sent on iopub and not yet received by a client, since it is held in this process.

ZMQ does not report how much it holds, but reports when a tracked message has gone to all clients; all earlier messages
have gone by then. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import zmq

# Bytes that are tracked together.
_STEP_BYTES = 2**20
# Above this, guests are not read until the backlog has fallen to half of it.
MAX_BYTES = 32 * 2**20
# What a part of a message takes at least, however few bytes it has.
_PART_BYTES = 64
_LOOK_SECONDS = 0.01
# A client that receives nothing for this long has stopped. From then on output is dropped, so that cells do not wait.
_STALL_SECONDS = 20.0


class Iopub(Protocol):
    """The iopub socket and the way to it: our own, or ipykernel's thread under IPKernelApp."""

    socket: Any

    def schedule(self, f: Callable[[], object]) -> None:
        """Call a function that sends, in order, now or in another thread."""
        ...


class Backlog:
    """A kernel's backlog. Calls `pause` with True to make guests wait, with False to let them continue."""

    def __init__(self, iopub: Iopub, pause: Callable[[bool], None]) -> None:
        self._iopub = iopub
        self._pause = pause
        self._sent = deque[tuple[int, zmq.MessageTracker]]()  # ipykernel's thread appends
        self._untracked = 0
        self._bytes = 0
        self._progress = 0.0
        self._is_paused = self._is_dropping = False
        self._looking = False
        self.is_stalled = False
        """New output is dropped: a client receives nothing, and it would only be held in memory."""

    def send(self, parts: list[bytes]) -> None:
        """Send a message, in order."""
        socket = cast("zmq.Socket[bytes]", self._iopub.socket)
        self._untracked += sum(max(_PART_BYTES, len(part)) for part in parts)
        if self._untracked < _STEP_BYTES:
            self._iopub.schedule(lambda: socket.send_multipart(parts))
            return
        size, self._untracked = self._untracked, 0

        def send_tracked() -> None:
            tracker = socket.send_multipart(parts, copy=False, track=True, copy_threshold=0)
            self._sent.append((size, cast("zmq.MessageTracker", tracker)))

        self._bytes += size
        self._iopub.schedule(send_tracked)
        loop = asyncio.get_running_loop()
        if not self._looking:
            self._looking, self._progress = True, loop.time()
            loop.call_later(_LOOK_SECONDS, self._look)
        if self._bytes > MAX_BYTES and self._is_dropping:
            self.is_stalled = True
        elif self._bytes > MAX_BYTES and not self.is_stalled:  # again and again: a guest may have started meanwhile
            self._is_paused = True
            self._pause(True)

    def drop(self, dropping: bool) -> None:
        """With True, let guests that wait continue, so that they notice an interrupt: output is dropped instead, until
        the backlog has fallen. With False, make them wait again, unless a client has stopped."""
        self._is_dropping = dropping
        if not dropping:
            self.is_stalled = False  # `_look` will set it again
        elif self._is_paused:
            self._is_paused, self.is_stalled = False, True
            self._pause(False)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while self._sent and self._sent[0][1].done:
            self._bytes -= self._sent.popleft()[0]
            self._progress = loop.time()
        if self._bytes <= MAX_BYTES // 2:
            self.is_stalled = False
        elif loop.time() - self._progress > _STALL_SECONDS:
            self.is_stalled = True
        if self._is_paused and (self.is_stalled or self._bytes <= MAX_BYTES // 2):
            self._is_paused = False
            self._pause(False)
        self._looking = self._bytes > 0
        if self._looking:
            loop.call_later(_LOOK_SECONDS, self._look)
