"""Confines itself by one version of Landlock (0: none) and the seccomp filter, then tries what is left.

Prints JSON: the errno of each way of emptying a file that it may only read, the locks that it gets on that, whether it
could empty one of its own, and
the requests that ioctl lets through to a terminal. Arguments: its folder, the file, the version.
"""

import ctypes
import errno
import fcntl
import json
import os
import platform
import pty
import sys
from collections.abc import Callable

from kernelmcp_kernel.sandbox import landlock, seccomp

own, readable, version = sys.argv[1], sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
OPEN, TRUNCATE = {"x86_64": (2, 76), "aarch64": (None, 45)}[platform.machine()]
# Where Linux has its requests for terminals and for any file (0x54..), and for the owner of a descriptor (0x89..).
REQUESTS = [*range(0x5400, 0x5500), *range(0x8900, 0x8910)]


def failure(number: int, *arguments: object) -> str:
    """The name of the errno that a system call ends with; empty when it succeeds."""
    return "" if libc.syscall(number, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]


def opening(flags: int) -> str:
    try:
        os.close(os.open(readable, flags))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def requests_let_through(terminal: int) -> list[int]:
    """Which requests do not answer ENOTTY: the filter's refusal, and what a terminal says to a request it lacks."""
    buffer = ctypes.create_string_buffer(256)

    def goes_through(request: int) -> bool:
        return libc.ioctl(terminal, ctypes.c_ulong(request), buffer) == 0 or ctypes.get_errno() != errno.ENOTTY

    return [request for request in REQUESTS if goes_through(request)]


LOCKS: dict[str, Callable[[int], object]] = {
    "flock": lambda fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
    "lockf": lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
}


def locks(lock: Callable[[int], object]) -> bool:
    """Whether it gets a lock on a file that it may only read."""
    fd = os.open(readable, os.O_RDONLY)
    try:
        lock(fd)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


libc.prctl(38, 1, 0, 0, 0)  # no_new_privs, which both ask for
with open(own + "/file", "w") as file:
    file.write("x")
_, terminal = pty.openpty()  # before: Landlock does not look at descriptors that are open
if version:
    landlock.restrict({own: landlock.WRITE, readable: landlock.READ}, version)
seccomp.restrict(0)
emptied = {
    "openat, O_RDONLY | O_TRUNC": opening(os.O_RDONLY | os.O_TRUNC),
    "truncate": failure(TRUNCATE, readable.encode(), 0),
}
if OPEN is not None:
    emptied["open, O_RDONLY | O_TRUNC"] = failure(OPEN, readable.encode(), os.O_RDONLY | os.O_TRUNC)
os.close(os.open(own + "/file", os.O_RDWR | os.O_TRUNC))
print(
    json.dumps(
        {
            "readable": opening(os.O_RDONLY),
            "emptied": emptied,
            "own": os.stat(own + "/file").st_size,
            "requests": requests_let_through(terminal),
            "locks": [name for name, lock in LOCKS.items() if locks(lock)],
        }
    )
)
