"""Output that was sent on iopub and that a client has not taken yet: it lies in this process, so it is bounded.

ZMQ does not tell how much it holds, but it tells of one message when it has gone to all clients, and all before it have
gone by then. For the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import zmq
from ipykernel.iostream import IOPubThread

# So much is tracked as one, bytes.
_STEP_BYTES = 2**20
# From here on guests are not read, until it is a half of it.
MAX_BYTES = 32 * 2**20
_LOOK_SECONDS = 0.01
# A client that takes nothing for so long has stopped. From then on output is dropped instead: others wait for the cell.
_STALL_SECONDS = 20.0


class Backlog:
    """That of a kernel. `pause` is called with True when guests are to wait, with False when they may go on."""

    def __init__(self, thread: IOPubThread, pause: Callable[[bool], None]) -> None:
        self._thread = thread
        self._pause = pause
        self._sent = deque[tuple[int, zmq.MessageTracker]]()  # the iopub thread appends
        self._untracked = 0
        self._bytes = 0
        self._progress = 0.0
        self._is_paused = False
        self._looking = False
        self.is_stalled = False
        """A client takes nothing: what is sent now would only be held."""

    def send(self, parts: list[bytes]) -> None:
        """Send a message, after all that were sent before."""
        socket = cast("zmq.Socket[bytes]", self._thread.socket)
        self._untracked += sum(map(len, parts))
        if self._untracked < _STEP_BYTES:
            self._thread.schedule(lambda: socket.send_multipart(parts))
            return
        size, self._untracked = self._untracked, 0

        def send_tracked() -> None:
            tracker = socket.send_multipart(parts, copy=False, track=True, copy_threshold=0)
            self._sent.append((size, cast("zmq.MessageTracker", tracker)))

        self._bytes += size
        self._thread.schedule(send_tracked)
        loop = asyncio.get_running_loop()
        if not self._looking:
            self._looking, self._progress = True, loop.time()
            loop.call_later(_LOOK_SECONDS, self._look)
        if self._bytes > MAX_BYTES and not self._is_paused and not self.is_stalled:
            self._is_paused = True
            self._pause(True)

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
