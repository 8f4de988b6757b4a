"""The process's stdin and stdout as MCP's wire: claims them, serves MCP on them, and notices when the client has gone.

After `claim`, fd 1 is stderr: nothing but MCP reaches stdout. `server` owns the life of the server around it.
"""

import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowlevelServer

# Modules that `serve_wire` needs and that take long to import, besides `mcp_server.assemble`.
MODULES = ("kernelmcp.stdio.wire",)


def claim() -> tuple[int, int]:
    """Take the wire: private duplicates of stdin and stdout; 0 becomes /dev/null and 1 becomes stderr. So does stderr
    if it is the wire too, as inetd and systemd have it: a line of the log would lie within a message."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    out = os.fstat(1)
    if stat.S_ISSOCK(out.st_mode) and os.path.samestat(out, os.fstat(2)):
        os.dup2(null, 2)
    os.close(null)
    os.dup2(2, 1)
    return wire_in, wire_out


async def serve_wire(lowlevel: "LowlevelServer[Any]", wire_in: int, wire_out: int) -> None:
    """Serve MCP on two file descriptors until the first one ends."""
    from kernelmcp.stdio.wire import open_wire

    async with open_wire(wire_in, wire_out) as wire:
        await lowlevel.run(wire, wire, lowlevel.create_initialization_options())


def has_ended(wire_in: int) -> bool:
    """True if the client has gone without a message, or there is none: /dev/null, a file at its end. Never waits, and
    consumes nothing."""
    poll = select.poll()
    poll.register(wire_in, select.POLLIN)
    events = sum(found for _, found in poll.poll(0))
    if not events & select.POLLIN:
        return bool(events & (select.POLLHUP | select.POLLERR))
    status = os.fstat(wire_in)
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == os.stat(os.devnull).st_rdev
    with suppress(OSError):
        if stat.S_ISREG(status.st_mode):
            return os.lseek(wire_in, 0, os.SEEK_CUR) >= status.st_size
        if stat.S_ISSOCK(status.st_mode):
            with socket.socket(fileno=os.dup(wire_in)) as connection:
                return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False


def when_closed(wire_in: int, call: Callable[[], None]) -> None:
    """Call this, in a separate thread, as soon as the client closes stdin.

    The event loop notices it much later while modules are being imported, or while it is blocked."""
    threading.Thread(target=_wait_until_closed, args=(wire_in, call), daemon=True).start()


def _wait_until_closed(wire_in: int, call: Callable[[], None]) -> None:
    poll = select.poll()
    # The end of the stream is always reported; data is not, because it is not requested.
    half_closed = getattr(select, "POLLRDHUP", 0)
    poll.register(wire_in, half_closed)
    with suppress(OSError):  # some systems cannot poll terminals: the reader notices the end there
        if any(events & (select.POLLHUP | select.POLLERR | half_closed) for _, events in poll.poll()):
            call()
