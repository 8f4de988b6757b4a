"""The process that opens pictures: requests on stdin, answers on stdout, and nothing else within its reach.

Run as `python -I -S main.py <folder of Pillow>` by `kernelmcp/decoder.py`, which ends it after some seconds. A picture
may be made to take over its decoder, so this process gives up everything before it reads the first byte.
A request is task, largest answer and length, then the picture; an answer is its type (0: none) and length, then bytes.
"""

import os
import signal
import struct
import sys

# Only these two folders: the interpreter was started with neither a site directory nor a working directory on its path.
sys.path += [os.path.dirname(os.path.abspath(__file__)), sys.argv[1]]

import confine
import scaling

REQUEST = struct.Struct(">BII")
ANSWER = struct.Struct(">BI")
SHRINK = 1
TYPES = {"PNG": 1, "JPEG": 2}
NOTHING = ANSWER.pack(0, 0)
# The parent's deadline is shorter: this is for a parent that was killed.
MAX_SECONDS = 10


def read(size: int) -> bytes:
    """Exactly `size` bytes of stdin; the process ends where they end."""
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


def answer(task: int, max_bytes: int, data: bytes) -> bytes:
    found = scaling.shrink(data, max_bytes) if task == SHRINK else None
    if found is None:
        return NOTHING
    kind, smaller = found
    return ANSWER.pack(TYPES[kind], len(smaller)) + smaller


def main() -> None:
    signal.alarm(MAX_SECONDS)
    confine.confine()
    while True:
        task, max_bytes, size = REQUEST.unpack(read(REQUEST.size))
        write(answer(task, max_bytes, read(size)))


main()
