"""The pipe to the kernel process: 4 bytes of length (little endian), then JSON; messages to the guest may add lines."""

from __future__ import annotations

import json
import os
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 20


class FrameWriter:
    """Writes frames, from any thread. The descriptor blocks, which provides backpressure."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, frame_type: str, request_id: str, content: dict[str, Any]) -> None:
        """Send a frame. Raises ValueError if it is too large."""
        body = json.dumps({"type": frame_type, "id": request_id, "content": content}).encode("ascii")
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"more than {MAX_FRAME_BYTES >> 20} MiB at once")
        data = memoryview(_LENGTH.pack(len(body)) + body)
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]


def read_frames(fd: int) -> Iterator[dict[str, Any]]:
    """Yield each request, until the pipe ends."""
    buffer = bytearray()
    wanted = _LENGTH.size
    while data := os.read(fd, _READ_BYTES):
        buffer += data
        while len(buffer) >= wanted:
            (length,) = _LENGTH.unpack_from(buffer)
            wanted = _LENGTH.size + length
            if len(buffer) < wanted:
                break
            yield _request(bytes(buffer[_LENGTH.size : wanted]))
            del buffer[:wanted]
            wanted = _LENGTH.size


def _request(body: bytes) -> dict[str, Any]:
    head, is_more, lines = body.partition(b"\n")
    request: dict[str, Any] = json.loads(head)
    if is_more:
        request["content"]["lines"] = lines.decode("utf-8", "replace").split("\n")
    return request
