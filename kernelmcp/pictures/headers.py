"""Identifies a guest's picture by its structure: its type, its sides, and whether it is whole. Nothing is decoded here.

`decoder` decodes pictures.
"""

import binascii
import re
import struct
import zlib
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


def is_begun(data: bytes) -> bool:
    """True if a file's beginning has a picture's signature: its header may come later, after a camera's notes."""
    return data.startswith((_PNG, b"\xff\xd8\xff"))


def recognize(data: bytes) -> Picture | None:
    """The whole picture in `data`; None if it is neither PNG nor JPEG, has no pixels, or is damaged: a model's API
    refuses a whole conversation for a picture that it cannot decode."""
    found = claimed(data)
    return found if found is not None and _is_whole(found) else None


def claimed(data: bytes) -> Picture | None:
    """The picture that `data`, perhaps only a file's beginning, claims to be by its header."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        kind, (width, height) = "image/png", struct.unpack_from(">II", data, 16)
    elif data.startswith(b"\xff\xd8") and (frame := _jpeg_frame(data)) is not None:
        kind, (height, width) = "image/jpeg", struct.unpack_from(">HH", data, frame + 5)
    else:
        return None
    return Picture(kind, width, height, data) if width and height else None


def _is_whole(picture: Picture) -> bool:
    """True if its parts are all there: a PNG's chunks with their checksums, a JPEG's end after a scan."""
    data = picture.data
    if picture.mime_type == "image/jpeg":
        scan = data.find(b"\xff\xda", _jpeg_frame(data))
        return scan > 0 and data.find(b"\xff\xd9", scan) > 0
    kinds: set[bytes] = set()
    start = len(_PNG)
    for _ in range(MAX_CHUNKS):
        end = start + 8 + int.from_bytes(data[start : start + 4], "big")
        if end + 4 > len(data) or zlib.crc32(memoryview(data)[start + 4 : end]) != int.from_bytes(data[end : end + 4]):
            return False
        kinds.add(kind := data[start + 4 : start + 8])
        if kind == b"IEND":
            return b"IDAT" in kinds
        start = end + 4
    return False


# Chunks of a PNG: usually of 8 KiB or more.
MAX_CHUNKS = 20_000
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


def _jpeg_frame(data: bytes) -> int | None:
    """Where the frame's header begins; None if none comes before the first scan. Each step moves forward."""
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
            return position
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        if marker in (0xD9, 0xDA) or length < 2:
            return None
        position += 2 + length
    return None
