"""Sets large answers of upstreams aside as text before anything parses them.

Parsing 16 MB blocks the event loop, and every session, for a second. A JSON-RPC response has its id in its first or
last bytes: the id is read, the text of the result goes to the waiting call, and a small response takes its place. Below
both transports; knows neither processes nor HTTP.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from mcp_types import INVALID_REQUEST

from kernelmcp.output.sanitize import MAX_DEPTH, clean_json, is_readable
from kernelmcp.upstreams.link import SKIPPED_BYTES_PER_LINE, UNREAD_BYTES_PER_LINE

# Only the ends of a longer answer are inspected. Below this, parsing takes a tenth of a millisecond.
LARGE_BYTES = 16 * 1024
# The first id of our requests, above those that mcp gives its own.
FIRST_NUMBER = 1_000_000
# Limit for parsing an answer that no call waits for: lists of tools. It takes 30 ms.
MAX_PARSED_BYTES = 4 * 1024 * 1024
# The part of a response around its result.
SLACK_BYTES = 64 * 1024
# An overlong line is read to its end up to this size, so that the next one can be read.
MAX_SKIPPED_BYTES = 128 * 1024 * 1024
_END_BYTES = 512
_MEMBER = rb'(?:"jsonrpc"\s*:\s*"2\.0"|"id"\s*:\s*\d{1,15})'
_HEAD = re.compile(rb"\s*\{\s*((?:" + _MEMBER + rb'\s*,\s*){0,2})"result"\s*:\s*')
# In valid JSON this is the top object's end: the last brace closes it, and the members before it belong to it.
_TAIL = re.compile(rb"((?:\s*,\s*" + _MEMBER + rb"){0,2})\s*\}\s*\Z")
_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_IS_ERROR = re.compile(rb'\A\{\s*"isError"\s*:\s*true\s*,|,\s*"isError"\s*:\s*true\s*\}\s*\Z')


class TooLong(Exception):
    """A line that does not end."""


class Waiting:
    """A call that waits for its answer."""

    def __init__(self) -> None:
        self.raw: bytes | None = None
        """The text of its result, if that is large."""
        self.is_too_large = False
        """True if the result was dropped."""
        self.unsent = ""
        """Why its request was not sent, if the transport cannot answer it."""
        self.readings: set[anyio.CancelScope] = set()
        """The scopes that read for it."""

    @property
    def is_error(self) -> bool:
        return self.raw is not None and bool(_IS_ERROR.search(self.raw[:64]) or _IS_ERROR.search(self.raw[-64:]))


class LargeResults:
    """The pending calls of one connection."""

    def __init__(self, max_mb: Callable[[], int]) -> None:
        self.max_mb = max_mb
        """Returns the current setting."""
        self._waiting: dict[int, Waiting] = {}
        self._unread_cost = 0.0

    @property
    def max_line_bytes(self) -> int:
        return max(self._max_bytes, MAX_PARSED_BYTES) + SLACK_BYTES

    @property
    def _max_bytes(self) -> int:
        return self.max_mb() * 2**20

    @contextmanager
    def expecting(self, request_id: int) -> Iterator[Waiting]:
        waiting = self._waiting[request_id] = Waiting()
        try:
            yield waiting
        finally:
            del self._waiting[request_id]
            for reading in waiting.readings:
                reading.cancel()

    def is_expected(self, request_id: object) -> bool:
        return request_id in self._waiting

    @contextmanager
    def while_expected(self, request_id: int | None) -> Iterator[anyio.CancelScope]:
        """Scope that ends with the call, if there is a call: an abandoned call's answer is not read on."""
        with anyio.CancelScope() as reading:
            waiting = self._waiting.get(request_id) if request_id is not None else None
            if waiting is None:
                if request_id is not None:
                    reading.cancel()
                yield reading
                return
            waiting.readings.add(reading)
            try:
                yield reading
            finally:
                waiting.readings.discard(reading)

    def shrunk(self, line: bytes | bytearray) -> bytes:
        """Return the replacement of a line: itself, a small response whose result is set aside, or nothing."""
        if len(line) <= LARGE_BYTES:
            return _harmless(bytes(line))
        head, tail = _HEAD.match(bytes(line[:_END_BYTES])), _TAIL.search(bytes(line[-_END_BYTES:]))
        found = _id_in(head, tail)
        if found is not None and found >= FIRST_NUMBER and found not in self._waiting:
            self.count_skipped(len(line))
            return b""  # too late
        if head is None or tail is None or found not in self._waiting:
            if len(line) <= MAX_PARSED_BYTES:
                small = bytes(line)
                if is_readable(small):
                    return small
                self._unread_cost += len(small) / UNREAD_BYTES_PER_LINE
            else:
                self.count_skipped(len(line))
            return _failure(found) if found is not None else b""
        end = len(line) - min(len(line), _END_BYTES) + tail.start()
        if end - head.end() > self._max_bytes:
            return self._too_large(found)
        self._waiting[found].raw = bytes(memoryview(line)[head.end() : end])  # the only copy of up to 16 MB
        return json.dumps({"jsonrpc": "2.0", "id": found, "result": {}}).encode()

    def take_unread(self) -> float:
        """The cost of what was read and then not passed on, since the last call of this, relative to a short line."""
        taken, self._unread_cost = self._unread_cost, 0.0
        return taken

    def count_skipped(self, size: int) -> None:
        self._unread_cost += size / SKIPPED_BYTES_PER_LINE

    def refused(self, head: bytes, tail: bytes) -> bytes:
        """Return the replacement of a line of which only the ends were kept: an error for the call, if it names one."""
        found = _id_in(_HEAD.match(head[:_END_BYTES]), _TAIL.search(tail[-_END_BYTES:]) if tail else None)
        return b"" if found is None else self._too_large(found)

    def refuse(self, request_id: int) -> None:
        """Mark the result of a known call as too large."""
        if (waiting := self._waiting.get(request_id)) is not None:
            waiting.is_too_large = True

    def not_sent(self, request_id: int, why: str) -> None:
        """Tell a call that its request was not sent."""
        if (waiting := self._waiting.get(request_id)) is not None:
            waiting.unsent = why

    def _too_large(self, request_id: int) -> bytes:
        self.refuse(request_id)
        return _failure(request_id)


class Lines:
    """Splits chunks into lines: each byte is scanned once, and the buffer is bounded."""

    def __init__(self, large: LargeResults, prefix: re.Pattern[bytes] | None = None) -> None:
        """`prefix`: what stands before the JSON in a line; other lines can't be large."""
        self._large = large
        self._prefix = prefix
        self._buffer = bytearray()
        self._scanned = 0
        self._skipped = 0
        self._head = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in this chunk, without their line ends. Raises `TooLong`."""
        self._buffer += chunk
        while (end := self._buffer.find(b"\n", self._scanned)) >= 0:
            line = self._taken(end)
            self._scanned = 0
            yield self._end_of_skipped(line) if self._skipped else self._small(line)
        self._scanned = len(self._buffer)
        if self._skipped or self._scanned > self._large.max_line_bytes:
            yield from self._skip()

    def _taken(self, end: int) -> bytearray:
        """Take the line that ends there. A large one is not copied; the data after it is less than a chunk."""
        if end <= LARGE_BYTES:
            line = self._buffer[:end]
            del self._buffer[: end + 1]
            return line
        line, self._buffer = self._buffer, self._buffer[end + 1 :]
        del line[end:]
        return line

    def _small(self, line: bytearray) -> bytes:
        if self._prefix is None:
            return self._large.shrunk(line)
        prefix = self._prefix.match(bytes(line[:_END_BYTES]))
        if prefix is None:
            self._large.count_skipped(max(0, len(line) - LARGE_BYTES))
            return bytes(line[:LARGE_BYTES])
        del line[: prefix.end()]
        small = self._large.shrunk(line)
        return prefix[0] + small if small else b""

    def _skip(self) -> Iterator[bytes]:
        """Skip an overlong line. A call whose id is at its start fails at once."""
        if not self._skipped:
            prefix = self._prefix.match(self._buffer) if self._prefix is not None else None
            begin = prefix[0] if prefix is not None else b""
            self._head = bytes(self._buffer[len(begin) : len(begin) + _END_BYTES])
            small = self._large.refused(self._head, b"")
            del prefix  # it holds the buffer
            if small:
                yield begin + small
        self._skipped += max(0, len(self._buffer) - _END_BYTES)
        del self._buffer[:-_END_BYTES]
        if self._skipped > MAX_SKIPPED_BYTES:
            raise TooLong
        self._scanned = len(self._buffer)

    def _end_of_skipped(self, rest: bytearray) -> bytes:
        self._large.count_skipped(self._skipped + len(rest))
        self._skipped = 0
        if _id_in(_HEAD.match(self._head), None) is not None:
            return b""  # its call has failed already
        small = self._large.refused(self._head, bytes(rest[-_END_BYTES:]))
        return (b"data: " if self._prefix is not None else b"") + small if small else b""


def _id_in(head: re.Match[bytes] | None, tail: re.Match[bytes] | None) -> int | None:
    """The id, if exactly one is at the ends of something that has a result."""
    if head is None:
        return None
    found = _ID.findall(head[1]) + (_ID.findall(tail[1]) if tail is not None else [])
    return int(found[0]) if len(found) == 1 else None


def _harmless(line: bytes) -> bytes:
    """Return a line that is safe to parse: valid Unicode, and no deeper than JSON libraries allow."""
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH and not _SURROGATE.search(line):
        return line
    try:
        return json.dumps(clean_json(json.loads(line))).encode()
    except (ValueError, RecursionError):
        found = _id_in(_HEAD.match(line[:_END_BYTES]), _TAIL.search(line[-_END_BYTES:]))
        return b"" if found is None else _failure(found)


def _failure(request_id: int) -> bytes:
    error = {"code": INVALID_REQUEST, "message": "its answer cannot be read"}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()
