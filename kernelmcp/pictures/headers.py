"""Identifies a guest's picture by its header alone: its type and its sides. Nothing is decoded here.

`decoder` decodes pictures.
"""

import binascii
import re
from typing import Any, NamedTuple

IMAGE_TYPES = ("image/png", "image/jpeg")
# Drawn by `decoder`, and shown as a PNG.
SVG_TYPE = "image/svg+xml"
# The models' APIs reject larger pictures (8000), or scale them down anyway (about 1600).
MAX_SIDE_PIXELS = 4096
# Limit for the file. Larger ones are not processed: base64 text and bytes would be in memory at the same time.
MAX_FILE_BYTES = 8 * 1024 * 1024
_PNG = b"\x89PNG\r\n\x1a\n"
# JPEG markers: those of a frame's header hold the size; these have no length after them.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset([0x01, *range(0xD0, 0xD9)])


class Picture(NamedTuple):
    """A file that begins like a PNG or a JPEG."""

    mime_type: str
    width: int
    height: int
    data: bytes
    text: str = ""
    """Its base64 as the guest sent it, if that can be sent on as it is."""

    def fits(self, max_bytes: int) -> bool:
        """True if it can be sent unchanged."""
        return len(self.data) <= max_bytes and max(self.width, self.height) <= MAX_SIDE_PIXELS


def decode(encoded: Any) -> tuple[bytes, bool] | None:
    """Decode a mime bundle's base64 text, and whether it is strict base64, without line breaks. None if it is not
    base64 or is too long."""
    if not isinstance(encoded, str) or len(encoded) > MAX_FILE_BYTES * 3 // 2:
        return None
    try:
        return binascii.a2b_base64(encoded, strict_mode=True), True
    except ValueError:
        pass
    try:
        return binascii.a2b_base64(encoded), False
    except ValueError:
        return None


def recognize(data: bytes) -> Picture | None:
    """The picture that `data` claims to be; None if it is neither PNG nor JPEG, or has no pixels."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        kind, width, height = "image/png", int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data.startswith(b"\xff\xd8") and (sides := _jpeg_sides(data)):
        kind, (width, height) = "image/jpeg", sides
    else:
        return None
    return Picture(kind, width, height, data) if width and height else None


# Segments before a picture's frame: profiles come in pieces of 64 KiB.
MAX_SEGMENTS = 2000
_FILL = re.compile(rb"\xff+")


def find(bundle: dict[str, Any]) -> Picture | None:
    """The picture in a mime bundle."""
    for mime in IMAGE_TYPES:
        encoded = bundle.get(mime)
        found = decode(encoded)
        if found is not None and (picture := recognize(found[0])) is not None:
            return picture._replace(text=encoded) if found[1] else picture
    return None


def _jpeg_sides(data: bytes) -> tuple[int, int] | None:
    """Width and height; None if no frame's header comes before the first scan. Each step moves forward."""
    position = 2
    for _ in range(MAX_SEGMENTS):
        if position + 4 > len(data) or data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            found = _FILL.match(data, position)
            position = found.end() - 1 if found else position + 1
            continue
        if marker in _BARE:
            position += 2
            continue
        if marker in _FRAMES and position + 9 <= len(data):
            height, width = data[position + 5 : position + 7], data[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        if marker in (0xD9, 0xDA) or length < 2:
            return None
        position += 2 + length
    return None
