"""A Mandelbrot set, drawn and encoded as PNG with the standard library alone."""

import struct
import zlib
from math import log, sin

from IPython.display import Image


def escape(c: complex, limit: int = 80) -> float | None:
    """How slowly a point escapes, 0 to 1; None for a point of the set."""
    z = 0j
    for n in range(limit):
        z = z * z + c
        if abs(z) > 8:
            return (n + 1 - log(log(abs(z))) / log(2)) / limit
    return None


def colour(value: float | None) -> bytes:
    if value is None:
        return bytes((8, 6, 24))
    return bytes(int(127 + 127 * sin(9 * value**0.5 + phase)) for phase in (4.2, 3.2, 2.0))


def png(rows: list[bytes], width: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


width, height = 320, 220
upper = [
    b"".join(colour(escape(complex(3.2 * x / width - 2.25, 2.2 * y / height - 1.1))) for x in range(width))
    for y in range(height // 2)
]
# The set is its own mirror image.
picture = Image(png(upper + upper[::-1], width), width=width)
