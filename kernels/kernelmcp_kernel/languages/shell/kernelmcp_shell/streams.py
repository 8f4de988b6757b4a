"""Sends a cell's output: each line at once while there are few, so that none is lost if the guest is killed. A flood is
collected, because a frame per line would cost more than the command that prints it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_CHARS = 64 * 1024
_DELAY_SECONDS = 0.04
_LINES_AT_ONCE = 50  # in _DELAY_SECONDS


class Streams:
    """The output of one request. From any thread."""

    def __init__(self, emit: Callable[[str, str], None]) -> None:
        self._emit = emit
        self._lock = threading.RLock()
        self._pieces: list[str] = []
        self._chars = 0
        self._name = ""
        self._window = 0.0
        self._lines = 0
        self._timer: threading.Timer | None = None

    def write(self, name: str, text: str) -> None:
        with self._lock:
            if name != self._name:
                self.flush()
                self._name = name
            self._pieces.append(text)
            self._chars += len(text)
            if self._chars >= _MAX_CHARS or (text.endswith("\n") and self._may_line()):
                self.flush()
            elif self._timer is None:  # for a command that continues without printing
                self._timer = threading.Timer(_DELAY_SECONDS, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Send everything now; called before any other frame, so that outputs keep the order of the cell."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._chars:
                return
            text = "".join(self._pieces)
            self._pieces.clear()
            self._chars = 0
            for start in range(0, len(text), _MAX_CHARS):
                self._emit(self._name, text[start : start + _MAX_CHARS])

    def _may_line(self) -> bool:
        now = time.monotonic()
        if now - self._window > _DELAY_SECONDS:
            self._window, self._lines = now, 0
        self._lines += 1
        return self._lines <= _LINES_AT_ONCE
