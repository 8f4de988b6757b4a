"""Append-only text of one stream: in memory at first, then in a file that is open only while it is used.

No descriptor stays open between calls, however many executions are kept. If the disk is full or descriptors run out,
text is dropped and counted, and the execution continues.
"""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

# Up to this size a stream stays in memory; a result never shows more than a few thousand characters of it.
IN_MEMORY_BYTES = 1024 * 1024
UTF8_MAX_BYTES = 4

log = structlog.get_logger(__name__)


class Spool:
    """Text up to `max_bytes`; knows its length in characters. Without a `folder` it stays in memory."""

    def __init__(self, max_bytes: int, folder: Path | None = None) -> None:
        self._max_bytes = max_bytes
        self._folder = folder
        self._memory = bytearray()
        self._path: Path | None = None
        self._closed = False
        self._failed = False
        self.clear()

    def clear(self) -> None:
        """Delete the text so far, and reset the count of dropped text."""
        self._memory = bytearray()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._path = None
        self.size: int = 0
        """Bytes kept."""
        self.chars: int = 0
        """Characters kept."""
        self.dropped_chars: int = 0
        self.has_returns: bool = False
        """True if it contains carriage returns, as progress bars write them."""

    @property
    def total_chars(self) -> int:
        return self.chars + self.dropped_chars

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    def append(self, text: str) -> int:
        """Append as much of the text as fits; returns how many bytes were kept."""
        self.has_returns = self.has_returns or "\r" in text
        data = text.encode()
        room = 0 if self._closed else self._max_bytes - self.size
        if len(data) > room:
            kept = data[:room].decode("utf-8", "ignore")
            self.dropped_chars += len(text) - len(kept)
            text, data = kept, kept.encode()
        if not data:
            return 0
        try:
            self._write(data)
        except OSError as exc:
            self.dropped_chars += len(text)
            if not self._failed:
                self._failed = True
                log.error("output could not be kept", error=str(exc))
            return 0
        self.size += len(data)
        self.chars += len(text)
        return len(data)

    def _write(self, data: bytes) -> None:
        if self._path is not None:
            # At `size`, not at the end: a write to a full disk may have left bytes behind it.
            self._write_at(self._path, os.O_WRONLY, self.size, data)
        elif self._folder is None or self.size + len(data) <= IN_MEMORY_BYTES:
            self._memory += data
        else:
            self._move_to_disk(self._folder, data)

    def _move_to_disk(self, folder: Path, more: bytes) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / secrets.token_hex(8)
        try:
            self._write_at(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0, bytes(self._memory) + more)
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        self._path = path
        self._memory = bytearray()

    def _write_at(self, path: Path, flags: int, position: int, data: bytes) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, position)
                view, position = view[written:], position + written
        finally:
            os.close(fd)

    def read(self, start: int = 0, end: int | None = None) -> str:
        """The text between two byte positions; a partial character is omitted."""
        return self.read_all([(start, self.size if end is None else end)])[0]

    def read_all(self, ranges: Iterable[tuple[int, int]]) -> list[str]:
        """The text of several ranges; the file is opened once. Text that cannot be read is replaced by a message."""
        spans = list(ranges)
        try:
            pieces = self._pieces(spans)
        except OSError as exc:
            return [f"[the server could not read this output again: {exc.strerror}]\n"] * len(spans)
        return [piece.decode("utf-8", "ignore") for piece in pieces]

    def read_bytes(self, start: int, end: int) -> bytes:
        """What is between two byte positions, which may be within a character. Raises OSError."""
        return self._pieces([(start, end)])[0]

    def _pieces(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        spans = [(start, max(0, min(end, self.size) - start)) for start, end in ranges]
        if self._path is None:
            return [bytes(self._memory[start : start + length]) for start, length in spans]
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return [os.pread(fd, length, start) for start, length in spans]
        finally:
            os.close(fd)

    def head(self, chars: int) -> str:
        return self.read(0, chars * UTF8_MAX_BYTES)[:chars]

    def tail(self, chars: int) -> str:
        return self.read(max(0, self.size - chars * UTF8_MAX_BYTES))[-chars:] if chars else ""

    def close(self) -> None:
        """Delete everything; text that is appended later is dropped."""
        self._closed = True
        self.clear()
