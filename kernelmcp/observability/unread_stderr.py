"""A log on a stderr that its reader may leave unread: no line holds up the server.

A pipe takes 64 KB. A client that does not read it would otherwise stop the event loop, which writes the log, for ever.
"""

import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

# As many wait for the reader; further ones are dropped and counted.
MAX_LINES = 2000
# Time for the last lines at the end.
FLUSH_SECONDS = 0.25


def of_stderr() -> logging.Handler:
    """A handler for this process's stderr, whatever it is."""
    with suppress(OSError, ValueError):  # it is closed, or an object without a descriptor
        mode = os.fstat(sys.stderr.fileno()).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return UnreadStderr(sys.stderr.fileno())
    return logging.StreamHandler(sys.stderr)


class UnreadStderr(logging.Handler):
    """Writes lines in a thread, which begins with the first one."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        # A finalizer may log while another line is being put: this queue's `put` allows that.
        self._items: SimpleQueue[bytes | Callable[[], None]] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._items.qsize() >= MAX_LINES:
                self._dropped += 1
                return
            self._items.put(self._encoded(record))
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, daemon=True)
                self._writer.start()
        except Exception:  # noqa: BLE001  # to log must never fail
            self.handleError(record)

    def flush(self) -> None:
        """Wait a short time until what was logged is written."""
        if self._writer is not None:
            written = threading.Event()
            self._items.put(written.set)
            written.wait(FLUSH_SECONDS)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _write_all(self) -> None:
        told = 0
        while True:
            item = self._items.get()
            if isinstance(item, bytes):
                self._write(item)
            if (dropped := self._dropped) != told and self._items.empty():
                text = f"{dropped - told} lines of the log were dropped: nobody read stderr"
                self._write(self._encoded(logging.makeLogRecord({"levelname": "WARNING", "msg": text})))
                told = dropped
            if not isinstance(item, bytes):
                item()

    def _write(self, line: bytes) -> None:
        room, view = select.poll(), memoryview(line)
        room.register(self._fd, select.POLLOUT)
        with suppress(OSError):  # the reader has gone
            while view:
                room.poll()
                with suppress(BlockingIOError):  # it may be the same open file as stdout, which does not block
                    view = view[os.write(self._fd, view) :]
