"""Stands where a hole in the picture decoder would put an attacker: after `confine`, with ctypes in hand.

Run as `python -I -S decoder.py FOLDER SECRET confined|renderer|open`; tells the attempts that got through, one a line.
"""

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable

folder, secret, how = sys.argv[1:]
sys.path.append(folder)

import confine  # noqa: E402

GIGABYTE = 2**30
libc = ctypes.CDLL(None, use_errno=True)


def fork() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[0] == child


ATTEMPTS: dict[str, Callable[[], object]] = {
    "read": lambda: os.read(os.open(secret, os.O_RDONLY), 10),
    "write": lambda: os.write(os.open(f"{secret}.new", os.O_WRONLY | os.O_CREAT), b"x"),
    "list": lambda: os.listdir("/"),
    "socket": lambda: socket.socket(),
    "fork": fork,
    "signal": lambda: os.kill(os.getppid(), 0) or True,
    "environment": lambda: len(os.environ) > 1,
    "memory": lambda: len(bytearray(GIGABYTE)),
    "exec": lambda: libc.execve(secret.encode(), None, None) == -1 and ctypes.get_errno() != errno.EPERM,
}

if how != "open":
    confine.confine(opens_font=how == "renderer")
for name, attempt in ATTEMPTS.items():
    try:
        through = bool(attempt())
    except (OSError, MemoryError):
        through = False
    if through:
        os.write(1, f"{name}\n".encode())
os.write(1, b"done\n")
