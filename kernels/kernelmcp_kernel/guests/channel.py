"""The four pipes of a guest process: requests and interrupts down, frames and stderr up.

Bounds what a hostile guest can do with them: its sending rate, and the bytes that wait for it to read. For the event
loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, Frame, FrameDecoder, FrameError
from kernelmcp_kernel.runtime.guest_process import Spawned

_log = logging.getLogger(__name__)

# Bytes per read: bounds the work that one guest can cause before other guests get their turn.
_READ_BYTES = 1 << 18

# Frames of one guest handled per second, averaged over a short time: a third of what one core can do. A program that
# prints sends hundreds, however much it prints.
MAX_FRAMES_PER_SECOND = 20_000
_PACE_SECONDS = 0.1

# Bytes that may wait for a guest that does not read, besides what it has not asked for: the largest request, and small
# answers to its host calls.
_MAX_UNREAD_BYTES = MAX_FRAME_BYTES + 8 * 2**20

# Large answers wait until no more than this waits for the guest.
_LITTLE_BYTES = 2**20

# The last bytes of a guest's stderr (Node's own messages), kept to explain its death.
_LAST_WORDS_BYTES = 2000


class Pace:
    """Bounds the rate of frames: a guest that sends more blocks in its own write to the pipe."""

    def __init__(self) -> None:
        self._due = 0.0  # the time when the frames handled so far are due at the maximum rate

    def pause(self, frames: int) -> float:
        """Seconds to stop reading after this many more frames."""
        now = time.monotonic()
        self._due = max(self._due, now - _PACE_SECONDS) + frames / MAX_FRAMES_PER_SECOND
        return max(0.0, self._due - now)


@dataclass
class _Part:
    """Of the outbox."""

    is_aside: bool
    """True if the guest has not asked for it."""
    size: int = 0


class Channel:
    """The open pipes of one guest.

    `on_frame` handles each frame and returns whether to continue; `on_end` is called when the guest has closed its
    frames pipe, `refuse` with a reason when it breaks the protocol.
    """

    def __init__(
        self,
        spawned: Spawned,
        on_frame: Callable[[Frame], bool],
        on_end: Callable[[], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._spawned = spawned
        self._on_frame = on_frame
        self._on_end = on_end
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(self._go_on)
        self._pace = Pace()
        self._outbox = bytearray()
        self._parts: deque[_Part] = deque()
        self._aside_bytes = 0  # of the outbox
        self._errors = bytearray()
        self._has_drained = asyncio.Event()
        self._closed = False
        self._is_paused = False
        for fd in self._descriptors:
            os.set_blocking(fd, False)
        self._loop.add_reader(spawned.frames, self._read_frames)
        self._loop.add_reader(spawned.errors, self._read_errors)

    @property
    def _descriptors(self) -> tuple[int, int, int, int]:
        return self._spawned.requests, self._spawned.frames, self._spawned.interrupts, self._spawned.errors

    @property
    def last_words(self) -> bytes:
        """The last part of the process's stderr."""
        return bytes(self._errors)

    def send(self, data: bytes) -> None:
        """Queue bytes for the requests pipe. Refuses a guest that lets too many bytes wait."""
        self._queue(data, is_aside=False)

    def _queue(self, data: bytes, *, is_aside: bool) -> None:
        self._outbox += data
        if not self._parts or self._parts[-1].is_aside != is_aside:
            self._parts.append(_Part(is_aside))
        self._parts[-1].size += len(data)
        if is_aside:
            self._aside_bytes += len(data)
        if len(self._outbox) - self._aside_bytes > _MAX_UNREAD_BYTES:
            self._refuse("it sends requests and never reads the answers")
            return
        self._flush_outbox()

    def send_aside(self, data: bytes) -> None:
        """Like `send`, for what the guest has not asked for and reads only when it waits. Raises ValueError if too much
        waits already: that is not the guest's fault."""
        if len(self._outbox) + len(data) > MAX_FRAME_BYTES:
            raise ValueError("too much waits until the running cell can read it")
        self._queue(data, is_aside=True)

    async def drained(self) -> None:
        """Wait until the guest has read nearly all that was sent to it, or has ended."""
        while len(self._outbox) - self._aside_bytes > _LITTLE_BYTES:
            self._has_drained.clear()
            await self._has_drained.wait()

    def signal(self, number: int) -> None:
        """Write to the interrupt pipe, which the guest reads even when its event loop is busy."""
        with suppress(OSError):  # full: enough interrupts wait there; broken: the guest is ending
            os.write(self._spawned.interrupts, struct.pack("<I", number))

    def pause(self, paused: bool) -> None:
        """Stop reading frames, or resume: meanwhile the guest blocks in its own write to the pipe."""
        self._is_paused = paused
        if paused and not self._closed:
            self._loop.remove_reader(self._spawned.frames)
        elif not paused:
            self._go_on()

    def close(self) -> None:
        self._closed = True
        self._outbox.clear()
        self._has_drained.set()
        self._decoder.close()
        self._loop.remove_reader(self._spawned.frames)
        self._loop.remove_reader(self._spawned.errors)
        self._loop.remove_writer(self._spawned.requests)
        for fd in self._descriptors:
            os.close(fd)

    def _flush_outbox(self) -> None:
        try:
            written = os.write(self._spawned.requests, self._outbox)
        except BlockingIOError:
            written = 0
        except OSError:
            return  # the guest is ending; its frames pipe will say so
        del self._outbox[:written]
        while written:
            part = self._parts[0]
            taken = min(written, part.size)
            written -= taken
            part.size -= taken
            if part.is_aside:
                self._aside_bytes -= taken
            if not part.size:
                self._parts.popleft()
        if len(self._outbox) - self._aside_bytes <= _LITTLE_BYTES:
            self._has_drained.set()
        if self._outbox:
            self._loop.add_writer(self._spawned.requests, self._flush_outbox)
        else:
            self._loop.remove_writer(self._spawned.requests)

    def _read_frames(self) -> None:
        try:
            data = os.read(self._spawned.frames, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._read_errors()
            self._loop.remove_reader(self._spawned.frames)
            self._on_end()
            return
        self._take(data)

    def _go_on(self) -> None:
        """Examine the pending frame, and resume reading."""
        self._loop.call_soon(self._take, b"")

    def _take(self, data: bytes) -> None:
        if self._closed:
            return
        count = self._handle(data)
        if self._closed:
            return
        if self._decoder.is_waiting or self._is_paused:
            self._loop.remove_reader(self._spawned.frames)
        elif pause := self._pace.pause(count):
            self._loop.remove_reader(self._spawned.frames)
            self._loop.call_later(pause, self._read_on)
        elif not data:
            self._read_on()

    def _handle(self, data: bytes) -> int:
        """Handle the frames that these bytes complete; return their number."""
        count = 0
        try:
            for frame in self._decoder.feed(data):
                count += 1
                if not self._on_frame(frame):
                    break
        except FrameError as error:
            self._refuse(f"it broke the protocol: {error}")
        except Exception:  # noqa: BLE001  # frames behind this one must not be left lying
            _log.exception("a frame could not be handled")
            self._refuse("it sent a message that could not be passed on")
        return count

    def _read_on(self) -> None:
        if not (self._closed or self._is_paused or self._decoder.is_waiting):
            self._loop.add_reader(self._spawned.frames, self._read_frames)

    def _read_errors(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._spawned.errors, _READ_BYTES)
            if not data:
                self._loop.remove_reader(self._spawned.errors)
            self._errors = (self._errors + data)[-_LAST_WORDS_BYTES:]
