"""The process that opens pictures: requests on stdin, answers on stdout, and access to nothing else.

Run as `python -I -S main.py shrink|render FOLDER ...`, with the folders of the libraries, by `pictures/decoder.py`,
which ends it after some seconds. A picture may be crafted to take over its decoder, so this process drops all rights
before it reads the first byte. `render` draws SVG.

A request is the largest answer and the length, then the picture; an answer is its type (0: none) and length, then
bytes.
"""

import os
import signal
import struct
import sys
from collections.abc import Callable

# Only these folders: the interpreter was started with neither a site directory nor a working directory on its path.
sys.path += [os.path.dirname(os.path.abspath(__file__)), *sys.argv[2:]]

import confine
import scaling

REQUEST = struct.Struct(">II")
ANSWER = struct.Struct(">BI")
TYPES = {"PNG": 1, "JPEG": 2}
NOTHING = ANSWER.pack(0, 0)
# The parent's deadline is shorter: this is for the case that the parent was killed.
MAX_SECONDS = 10


def read(size: int) -> bytes:
    """Read exactly `size` bytes from stdin; the process ends at the end of stdin."""
    pieces: list[bytes] = []
    while size:
        piece = os.read(0, size)
        if not piece:
            sys.exit()
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def packed(found: tuple[str, bytes] | None) -> bytes:
    if found is None:
        return NOTHING
    kind, data = found
    return ANSWER.pack(TYPES[kind], len(data)) + data


def work() -> Callable[[bytes, int], tuple[str, bytes] | None]:
    """The function that processes each picture. From here on the process is confined."""
    if sys.argv[1] == "shrink":
        confine.confine()
        return scaling.shrink
    import rendering

    font = rendering.font()
    confine.confine(opens_font=True)
    return lambda document, max_bytes: rendering.render(document, max_bytes, font)


def main() -> None:
    signal.alarm(MAX_SECONDS)
    do = work()
    while True:
        max_bytes, size = REQUEST.unpack(read(REQUEST.size))
        write(packed(do(read(size), max_bytes)))


main()
