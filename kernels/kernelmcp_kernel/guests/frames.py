"""The wire format between the kernel process and a guest: 4 bytes of length (little endian), then JSON. Only messages
to the guest may have further lines.

Messages from the guest are hostile. A frame begins with its type, and a host call with its kind: each has its bounds,
which are checked before the frame is collected (size) and before it is parsed (values, depth). Text that later encoders
would reject (lone surrogates, NaN) is replaced here, once.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from kernelmcp_kernel.json_bounds import JsonBounds, JsonTooLarge, check_json

# The guest's own limit is 48 MB of JSON text per message; a larger frame means an attack or a broken guest.
MAX_FRAME_BYTES = 64 * 1024 * 1024

# One output other than text. A client holds it in memory twice before it can inspect it; the server reads up to 10 MiB.
MAX_DISPLAY_FRAME_BYTES = 24 * 1024 * 1024

# Values in a parsed frame: each takes 70 bytes.
_MAX_VALUES = 1_000_000
# Deeper than later checks allow (tool_messages.py, the server's sanitize.py), which have their own error messages.
_DEPTH = 500

_NOTE = JsonBounds(4096, 100)
_TEXT = JsonBounds(4 * 2**20, 100)
_OUTPUT = JsonBounds(MAX_DISPLAY_FRAME_BYTES, _MAX_VALUES, _DEPTH)
_BULK = JsonBounds(MAX_FRAME_BYTES, _MAX_VALUES, _DEPTH)
_FRAMES = {
    "ready": _NOTE,
    "interrupted": _NOTE,
    "clear_output": _NOTE,
    "comm_done": _NOTE,
    "stream": _TEXT,
    "files": JsonBounds(8 * 2**20, 50_000),
    "error": JsonBounds(MAX_DISPLAY_FRAME_BYTES, 50_000),
    "execute_result": _OUTPUT,
    "display_data": _OUTPUT,
    "update_display_data": _OUTPUT,
    "comm_open": _OUTPUT,
    "comm_msg": _OUTPUT,
    "comm_close": _OUTPUT,
    "reply": _BULK,
    "state": JsonBounds(2**20, 20_000),
}
_CALLS = {
    "input": JsonBounds(2**20, 100),
    "install": JsonBounds(2**20, 20_000),
    "kill": _NOTE,
    "fetch": JsonBounds(MAX_FRAME_BYTES, 20_000),
    "tools": JsonBounds(24 * 2**20, 2_000_000, _DEPTH),
    "run_program": JsonBounds(MAX_FRAME_BYTES, 200_000),
    "run_command": JsonBounds(MAX_FRAME_BYTES, 200_000),
    "ran_program": JsonBounds(MAX_FRAME_BYTES, 1000),
}

_LENGTH = struct.Struct("<I")

# Beginning of a frame; the kernel process generated the id.
_HEAD = re.compile(
    rb'\{"type": ?"(\w{1,40})", ?"id": ?"(\w{0,40})", ?"content": ?'
    rb'(?:\{"number": ?(\d{1,15}), ?"arguments": ?\{"call": ?"(\w{1,40})")?'
)
_HEAD_BYTES = 256
# A text takes one to four bytes of memory per character, as many as its widest character needs.
_MAX_WIDE_BYTES = 16 * 2**20
# Maps each digit to 0, to find numbers that may be too large for Python: JSON does not bound its numbers.
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT, _LONG_NUMBER = b"e000", b"0" * 200
_WIDE_ESCAPE = re.compile(rb"\\u(?!00)")
_SURROGATE = re.compile(rb"\\u[dD]")


class FrameError(Exception):
    """The guest broke the protocol. The next frame cannot be found, so the guest must end."""


@dataclass(frozen=True)
class Frame:
    """One message from the guest: its type, the id of its request (may be empty), and its content."""

    type: str
    id: str
    content: dict[str, Any]
    size: int
    """Its size on the wire, in bytes."""
    excess: str = ""
    """The reason why it was not parsed. `content` is then {number} for a call, and empty for anything else."""


@dataclass(frozen=True)
class _Head:
    """The beginning of a frame. `number` and `call` are set for host calls only."""

    type: str
    id: str
    number: int | None
    call: str | None

    @property
    def bounds(self) -> JsonBounds | None:
        return _FRAMES.get(self.type) if self.type != "call" else _CALLS.get(self.call or "")


def encode_frame(message: dict[str, Any], lines: bytes | None = None) -> bytes:
    """Encode a message to the guest. Raises ValueError if it is larger than a frame may be.

    `lines`: appended to the JSON on separate lines, so that neither side has to parse them with it.
    """
    body = json.dumps(message).encode("ascii")
    if lines is not None:
        body = b"%b\n%b" % (body, lines)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a request of {len(body):,} bytes is over the limit of {MAX_FRAME_BYTES:,}")
    return _LENGTH.pack(len(body)) + body


class Room:
    """The memory, in bytes, that unfinished frames of all guests may take together. A large frame waits for its turn.

    For the event loop's thread.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._waiting: list[Callable[[], None]] = []

    def take(self, size: int, when_free: Callable[[], None]) -> bool:
        """Reserve bytes. Returns False if there are too few; then `when_free` is called once, to try again."""
        if size > self._left:
            self._waiting.append(when_free)
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()


# Frames up to this size are collected at once, regardless of other guests.
_SMALL_FRAME_BYTES = 2**20
_room = Room(MAX_FRAME_BYTES)


class FrameDecoder:
    """Splits a stream of bytes into frames. Holds at most one unfinished frame, nothing of one that is too large.

    `on_room`: called after `is_waiting`, as soon as `feed` (with no bytes) can continue.
    """

    def __init__(self, on_room: Callable[[], None] = lambda: None, room: Room = _room) -> None:
        self._buffer = bytearray()
        self._on_room = on_room
        self._room = room
        self._taken = 0
        self._skip = 0
        self._head: _Head | None = None  # of the frame that is being collected
        self.is_waiting = False
        """A frame is too large for the room that is left now. Do not read meanwhile."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes, and yield the frames that are complete. Raises FrameError."""
        self._buffer += data
        self.is_waiting = False
        while True:
            skipped = min(self._skip, len(self._buffer))
            del self._buffer[:skipped]
            self._skip -= skipped
            if len(self._buffer) < 4:
                return
            (length,) = _LENGTH.unpack_from(self._buffer)
            if self._head is None:
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length:,} bytes")
                if len(self._buffer) < 4 + min(length, _HEAD_BYTES):
                    return
                self._head = _read_head(self._buffer[4 : 4 + min(length, _HEAD_BYTES)])
            if (excess := _excess(self._head, length)) is not None:
                self._skip, head, self._head = 4 + length, self._head, None
                yield _unread(head, length, excess)
                continue
            if length > _SMALL_FRAME_BYTES and not self._taken:
                if not self._room.take(length, self._on_room):
                    self.is_waiting = True
                    return
                self._taken = length
            if len(self._buffer) < 4 + length:
                return
            yield self._take(self._head, length)

    def _take(self, head: _Head, length: int) -> Frame:
        """Remove the completed frame from the buffer, and parse it."""
        with memoryview(self._buffer) as view:
            body = bytes(view[4 : 4 + length])
        del self._buffer[: 4 + length]
        self._head = None
        try:
            return _parse(head, body)
        finally:
            self.close()

    def close(self) -> None:
        """Release the room of an unfinished frame."""
        taken, self._taken = self._taken, 0
        if taken:
            self._room.give_back(taken)


def _read_head(data: bytearray) -> _Head:
    found = _HEAD.match(data)
    if found is None:
        raise FrameError("a frame that does not begin with its type, its id and its content")
    number, call = found[3], found[4]
    return _Head(found[1].decode(), found[2].decode(), int(number) if number else None, call.decode() if call else None)


def _excess(head: _Head, length: int) -> str | None:
    """The reason why a frame is not read at all, or None."""
    bounds = head.bounds
    if bounds is None:
        return "the host does not know this"
    if length > bounds.max_bytes:
        return f"{length:,} bytes are more than the {bounds.max_bytes:,} that it may have"
    return None


def _unread(head: _Head, length: int, excess: str) -> Frame:
    if head.type == "call" and head.number is None:
        raise FrameError("a call that does not begin with its number and its kind")
    content = {} if head.number is None else {"number": head.number}
    return Frame(head.type, head.id, content, length, excess)


def _parse(head: _Head, body: bytes) -> Frame:
    try:
        check_json(body, head.bounds or _NOTE)
        if len(body) > _MAX_WIDE_BYTES and _is_wide(body):
            raise JsonTooLarge(f"text beyond Latin-1 is {_MAX_WIDE_BYTES:,} bytes at most")
    except JsonTooLarge as error:
        return _unread(head, len(body), f"it has too much: {error}")
    try:
        # JSON has no NaN or infinities: they become "NaN", "Infinity", "1e999".
        # Strict: `json.loads` of bytes would let surrogates pass.
        huge = _may_be_huge(body)
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=str,
            parse_float=_finite if huge else None,
            parse_int=_whole if huge else None,
        )
        if b"\\" in body and _SURROGATE.search(body):
            value = _without_surrogates(value)
    except (ValueError, RecursionError) as error:
        raise FrameError("a frame that is not JSON") from error
    message = cast("dict[str, Any]", value)
    content = message.get("content")
    if not isinstance(content, dict) or (message.get("type"), message.get("id")) != (head.type, head.id):
        raise FrameError("a frame without type, id or content, or with two of them")
    content = cast("dict[str, Any]", content)
    if head.type == "call":
        arguments = content.get("arguments")
        if not isinstance(arguments, dict) or cast("dict[str, Any]", arguments).get("call") != head.call:
            raise FrameError("a call without arguments, or of two kinds")
    return Frame(head.type, head.id, content, len(body))


def _may_be_huge(body: bytes) -> bool:
    """Check if it may have a number too large for Python. A regular expression would take 30 times as long."""
    digits = body.translate(_DIGITS, b"+")
    return _LONG_EXPONENT in digits or _LONG_NUMBER in digits


def _finite(text: str) -> float | str:
    found = float(text)
    return found if math.isfinite(found) else text


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:  # more digits than Python converts
        return text


def _is_wide(body: bytes) -> bool:
    """Check if a text in it may take more than one byte per character: one such character is enough."""
    if not body.isascii():
        return True
    return b"\\u" in body and _WIDE_ESCAPE.search(body) is not None


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which no encoder accepts, by their escapes, as CPython's stderr does."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {cast(str, _without_surrogates(key)): _without_surrogates(item) for key, item in items}
    return value
