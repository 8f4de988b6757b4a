"""The two pipes for a guest's state: what it has in memory, saved and put back.

Its bytes are counted and not parsed, because a guest wrote them. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kernelmcp_kernel.runtime.guest_process import Spawned

# Bytes that a pipe holds during a transfer: with the system's 64 KiB, half of the time goes to wake-ups.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MOST_READS = 2 * _PIPE_BYTES // _READ_BYTES


@dataclass(frozen=True)
class FilePart:
    """Some bytes of a file: its descriptor, the first one, how many."""

    file: int
    start: int
    size: int


class StatePipes:
    """Our ends of both pipes."""

    def __init__(self, spawned: Spawned) -> None:
        self._out, self._in = spawned.state_out, spawned.state_in
        self._loop = asyncio.get_running_loop()
        self._closed = False
        for fd in (self._out, self._in):
            os.set_blocking(fd, False)

    @contextmanager
    def receiving(self, take: Callable[[bytes], None]) -> Iterator[None]:
        """While the context is open, `take` gets what the guest writes; and at its end, what is left in the pipe."""
        _widen(self._out)

        def read() -> bool:
            try:
                data = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                return False
            if data:
                take(data)
                return not self._closed  # it may have killed the guest
            self._loop.remove_reader(self._out)  # the guest has closed it
            return False

        self._loop.add_reader(self._out, read)
        try:
            yield
            for _ in range(_MOST_READS):  # it wrote everything before its answer, so no more than the pipe holds
                if self._closed or not read():
                    break
        finally:
            if not self._closed:
                self._loop.remove_reader(self._out)

    @contextmanager
    def sending(self, parts: list[FilePart]) -> Iterator[None]:
        """While the context is open, the guest is sent these parts of files, one after the other, and then the end. It
        loads only one state."""
        _widen(self._in)
        left = list(parts)
        sent = 0  # bytes of the first of them

        def write() -> None:
            nonlocal sent
            try:
                while left and sent == left[0].size:
                    del left[0]
                    sent = 0
                count = _send(left[0], sent, self._in) if left else 0
                sent += count
                if not count:  # that was all, or the file is too short
                    self._close_in()
            except BlockingIOError:
                pass
            except OSError:  # the guest has ended, or the file cannot be read: it finds its state cut short
                self._close_in()

        self._loop.add_writer(self._in, write)
        try:
            yield
        finally:
            self._close_in()

    def _close_in(self) -> None:
        if self._in >= 0:
            self._loop.remove_writer(self._in)
            os.close(self._in)
            self._in = -1

    def close(self) -> None:
        self._closed = True
        self._close_in()
        self._loop.remove_reader(self._out)
        os.close(self._out)


def _send(part: FilePart, position: int, pipe: int) -> int:
    """Send what the pipe has room for, without a copy of it here if the system can; return how many bytes that were."""
    start, count = part.start + position, part.size - position
    if sys.platform == "linux" and hasattr(os, "splice"):
        try:
            most = min(count, _PIPE_BYTES)
            return os.splice(part.file, pipe, most, offset_src=start, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            raise
        except OSError:
            pass  # the file system cannot, or the system forbids it
    return os.write(pipe, os.pread(part.file, min(count, _READ_BYTES), start))


def _widen(pipe: int) -> None:
    with suppress(OSError, AttributeError):  # beyond the user's limit, or not Linux
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
