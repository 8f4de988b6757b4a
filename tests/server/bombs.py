"""Pictures that cost their decoder more than their size: made here, because the guest has no library for it.

Each is made once in a process, and takes up to a second.
"""

import base64
import io
from functools import cache

from PIL import Image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@cache
def flat_png(side: int) -> bytes:
    """256 MB of pixels at 7,990 x 7,990."""
    return encoded(Image.new("RGBA", (side, side), (1, 2, 3, 4)), "PNG")


@cache
def flat_jpeg(width: int, height: int) -> bytes:
    return encoded(Image.new("RGB", (width, height), (1, 2, 3)), "JPEG")


@cache
def progressive_jpeg(side: int, scans: int) -> bytes:
    """Each of the scans, of a hundred bytes, sends its decoder over the whole picture once more."""
    parts = list(segments(encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True)))
    scan = [number for number, part in enumerate(parts) if part[1] == 0xDA]
    return b"".join(parts[: scan[1]]) + parts[scan[1]] * scans + b"\xff\xd9"


def segments(jpeg: bytes) -> list[bytes]:
    """The parts of a JPEG file; a scan has its data with it."""
    found, position = [jpeg[:2]], 2
    while jpeg[position + 1] != 0xD9:
        end = position + 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
        if jpeg[position + 1] == 0xDA:
            while jpeg[end] != 0xFF or jpeg[end + 1] == 0:
                end += 1
        found.append(jpeg[position:end])
        position = end
    return found


def show(data: bytes, kind: str) -> str:
    """A cell that displays it."""
    return f"display({{{kind!r}: {base64.b64encode(data).decode()!r}}}, raw=True)\n"
