"""The wire format between the kernel process and a guest: 4 bytes of length (little endian), then JSON. Only what goes
down may have further lines.

What comes up is hostile: every length is capped, every shape is checked, and text that could not be sent on (lone
surrogates, NaN) is made harmless here, once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

# The guest's own limit is 48 MB of JSON text for one message; a frame above this is an attack or a broken guest.
MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The guest broke the protocol. There is no way to find the next frame, so the guest must end."""


@dataclass(frozen=True)
class Frame:
    """One message from the guest: what it is, the request it belongs to (may be empty), and its content."""

    type: str
    id: str
    content: dict[str, Any]
    size: int
    """Bytes that it took on the wire."""


def encode_frame(message: dict[str, Any], lines: bytes | None = None) -> bytes:
    """A message to the guest as bytes. Raises ValueError when it is larger than a frame may be.

    `lines`: what follows the JSON on lines of its own, which neither side has to parse for it.
    """
    body = json.dumps(message).encode("ascii")
    if lines is not None:
        body = b"%b\n%b" % (body, lines)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a request of {len(body):,} bytes is over the limit of {MAX_FRAME_BYTES:,}")
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a stream of bytes into frames. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take in bytes, give out the frames that are complete. Raises FrameError."""
        self._buffer += data
        offset = 0
        try:
            while len(self._buffer) - offset >= 4:
                (length,) = _LENGTH.unpack_from(self._buffer, offset)
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length:,} bytes")
                end = offset + 4 + length
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[offset + 4 : end])
                offset = end
                yield _parse(body)
        finally:
            del self._buffer[:offset]


def _parse(body: bytes) -> Frame:
    try:
        value = json.loads(body, parse_constant=str)  # NaN and infinities have no place in JSON: "NaN", "Infinity"
        if b"\\ud" in body or b"\\uD" in body:
            value = _without_surrogates(value)
    except (ValueError, RecursionError) as error:
        raise FrameError("a frame that is not JSON") from error
    if not isinstance(value, dict):
        raise FrameError("a frame that is not an object")
    message = cast("dict[str, Any]", value)
    frame_type, request_id, content = message.get("type"), message.get("id"), message.get("content")
    if not (isinstance(frame_type, str) and isinstance(request_id, str) and isinstance(content, dict)):
        raise FrameError("a frame without type, id or content")
    return Frame(frame_type, request_id, cast("dict[str, Any]", content), len(body))


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which no encoder takes, by their escape: what CPython's stderr shows."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {cast(str, _without_surrogates(key)): _without_surrogates(item) for key, item in items}
    return value
