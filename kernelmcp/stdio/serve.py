"""Serves MCP over stdin and stdout: starts everything, and ends it within three seconds.

The first kernel is spawned before mcp is imported: mcp takes about as long to import as a kernel to boot, and they do
it side by side. From `claim` on, fd 1 is stderr: nothing but MCP reaches stdout.
"""

import asyncio
import importlib
import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread

from kernelmcp.config.settings import Settings
from kernelmcp.files.home import Home, open_home
from kernelmcp.kernel.pool import open_pool

# Everything must be down by then. Clients wait 2 s after closing stdin before they send SIGTERM.
END_SECONDS = 2.0


def claim() -> tuple[int, int]:
    """Take the wire: private duplicates of stdin and stdout; 0 becomes /dev/null and 1 becomes stderr."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return wire_in, wire_out


def serve(settings: Settings) -> int:
    wire_in, wire_out = claim()
    threading.Thread(target=_end_when_closed, args=(wire_in,), daemon=True).start()
    with open_home(settings.home, settings.config.server.runtime, guest_uid=settings.policy.guest_uid) as home:
        asyncio.run(_serve(settings, home, wire_in, wire_out))
    return 0


async def _serve(settings: Settings, home: Home, wire_in: int, wire_out: int) -> None:
    async with anyio.create_task_group() as tasks:

        def end() -> None:
            _watchdog()
            tasks.cancel_scope.cancel()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, end)
        await serve_wire(settings, home, wire_in, wire_out, _watchdog)
        tasks.cancel_scope.cancel()


async def serve_wire(
    settings: Settings, home: Home, wire_in: int, wire_out: int, on_end: Callable[[], None] = lambda: None
) -> None:
    """Everything of a server on two file descriptors, until the first one ends; then `on_end` is called."""
    async with open_pool(settings, home) as pool:
        await anyio.to_thread.run_sync(importlib.import_module, "kernelmcp.mcp_server.assemble", abandon_on_cancel=True)
        from kernelmcp.mcp_server.assemble import open_server
        from kernelmcp.stdio.wire import open_wire

        async with open_wire(wire_in, wire_out) as wire, open_server(settings, home, pool) as app:
            await app.lowlevel.run(wire, wire, app.lowlevel.create_initialization_options())
            on_end()


def _end_when_closed(wire_in: int) -> None:
    """The end is bounded from the moment that the client closes stdin, also while modules are still being imported or
    something holds up the event loop, which notices it much later then."""
    poll = select.poll()
    poll.register(wire_in, getattr(select, "POLLRDHUP", 0))  # that it has ended is told in any case, data is not
    with suppress(OSError):
        poll.poll()
    _watchdog()


def _watchdog() -> None:
    """The end is bounded whatever hangs: the kernels notice their parent's end by themselves."""
    timer = threading.Timer(END_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
