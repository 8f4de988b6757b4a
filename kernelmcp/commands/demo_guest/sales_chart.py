"""A chart of the table, drawn and encoded as PNG with the standard library alone: no package is needed for it."""

import struct
import zlib
from typing import Any

from IPython.display import Image as Image

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 480, 250, 44, 24, 12
COLOURS = [(46, 134, 171), (162, 59, 114), (241, 143, 1)]
# Three columns and five rows of dots for each character, a bit each.
DOTS = dict(
    zip("0123456789k", (31599, 11415, 29671, 29647, 23497, 31183, 31215, 29257, 31727, 31695, 23469), strict=True)
)


class Picture:
    """Dots, and what is drawn of them."""

    def __init__(self) -> None:
        self.rows = [bytearray(b"\xff" * (3 * WIDTH)) for _ in range(HEIGHT)]

    def box(self, left: float, top: float, right: float, bottom: float, colour: tuple[int, int, int]) -> None:
        for y in range(round(top), round(bottom)):
            self.rows[y][3 * round(left) : 3 * round(right)] = bytes(colour) * (round(right) - round(left))

    def text(self, left: int, top: int, text: str, size: int = 2) -> None:
        for place, character in enumerate(text):
            for bit in range(15):
                if DOTS[character] >> (14 - bit) & 1:
                    x, y = left + size * (4 * place + bit % 3), top + size * (bit // 3)
                    self.box(x, y, x + size, y + size, (70, 70, 70))

    def png(self) -> bytes:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
        body = zlib.compress(b"".join(b"\0" + row for row in self.rows), 9)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def stacked_bars(table: list[Any]) -> bytes:
    """A bar chart of rows (name, number, ..., sum); the bars are numbered."""
    picture = Picture()
    most = max(row[-1] for row in table)
    scale = (HEIGHT - BOTTOM - TOP) / most
    for line in range(0, int(most) + 1, 1000):
        y = HEIGHT - BOTTOM - line * scale
        picture.box(LEFT, y, WIDTH - 8, y + 1, (215, 215, 215))
        picture.text(8, round(y) - 5, f"{line // 1000}k")
    step = (WIDTH - LEFT - 8) / len(table)
    for place, (_, *numbers, _sum) in enumerate(table):
        left, y = LEFT + step * (place + 0.15), float(HEIGHT - BOTTOM)
        for number, colour in zip(numbers, COLOURS, strict=False):
            picture.box(left, y - number * scale, left + step * 0.7, y, colour)
            y -= number * scale
        name = str(place + 1)
        picture.text(round(left + step * 0.35 - 4 * len(name)), HEIGHT - BOTTOM + 7, name)
    return picture.png()
