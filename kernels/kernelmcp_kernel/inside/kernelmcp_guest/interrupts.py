"""Interrupts: where KeyboardInterrupt is raised, and which task is cancelled, when the host asks for it.

The host sends a signal to code that runs, and calls `interrupt` when a cell waits; `end_background` when no request
runs, but tasks that cells left behind do. An interrupt that comes before the user's code has begun is kept for it.
"""

# IPython and Pyodide declare much of what is used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportPrivateUsage=false

import asyncio
import errno
import sys
from typing import Any

from kernelmcp_guest import blocking, swallowed_interrupts
from kernelmcp_guest.bridge import bridge
from kernelmcp_guest.running import running
from kernelmcp_guest.shell import GuestShell

# What the handlers need at the recursion limit, and what watches the interrupt that they raise.
_ROOM_FRAMES = 50
_MOST_FRAMES = 2**31 - 1
# How a write fails that has no room.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def on_interrupt_signal(signum: int, frame: object) -> None:
    """SIGINT's handler: raise in the cell, or cancel its task when other code has the event loop."""
    limit = sys.getrecursionlimit()
    # First of all: this frame may be the last one that there was room for.
    sys.setrecursionlimit(min(limit + _ROOM_FRAMES, _MOST_FRAMES))
    swallowed_interrupts.note_limit(limit)
    bridge.heard()
    if not running.active:
        running.early = True
        return
    GuestShell.instance().interrupted = True
    task = running.task
    if task is None or asyncio.current_task() is task:
        swallowed_interrupts.raise_watched()
    running.cancelled = True
    task.cancel()


def on_stuck_signal(signum: int, frame: object) -> None:
    """SIGUSR1's handler: the event loop has not turned since the interrupt. Another task holds it, or the interrupt was
    thrown away by C code."""
    if not running.active:
        return
    if running.cancelled:
        running.cancelled = False
        raise KeyboardInterrupt
    swallowed_interrupts.raise_again()


def on_swallowed(unraisable: Any) -> None:
    """sys.unraisablehook: an interrupt that came in a `__del__` or the like has not reached the cell: once more, in the
    frame that has dropped the object. A cell that does little else would swallow the next one as well. A disk that is
    full when a file is dropped gets a sentence, for the cell goes on as if all had been written."""
    if isinstance(unraisable.exc_value, OSError) and unraisable.exc_value.errno in _FULL:
        sys.stderr.write(f"{unraisable.exc_value}: the end of a file is not written; close files (with open(...))\n")
        return
    sys.__unraisablehook__(unraisable)
    if issubclass(unraisable.exc_type, KeyboardInterrupt) and running.active:
        swallowed_interrupts.raise_in(sys._getframe().f_back)
        bridge.interrupt_again(True)


def on_loop_interrupted() -> None:
    """A callback or a task has ended with KeyboardInterrupt: it was meant for the cell that waits."""
    if running.active:
        interrupt()


def interrupt() -> None:
    """Interrupt a cell that waits: for the event loop, for a host call, or inside run_until_complete."""
    if not running.active:
        running.early = True
        return
    GuestShell.instance().interrupted = True
    swallowed_interrupts.take()
    blocked = blocking.interrupt(running.request)
    if running.task is not None and running.task not in blocked:
        running.task.cancel()
        blocking.cancel_blocked()


def end_background() -> None:
    """Cancel what earlier cells have left behind: it has used its share of the processor."""
    if running.active:
        return
    for wait in list(blocking.waits):
        wait.interrupt()
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        task.cancel()


def on_background_signal(signum: int, frame: object) -> None:
    """SIGUSR2's handler: the same when a task holds the event loop."""
    end_background()
    if not running.active:
        raise KeyboardInterrupt


def begin() -> bool:
    """The user's code begins. True: it is interrupted already (and not the request before, a moment too late)."""
    early, running.active, running.early = running.early, True, False
    return early and bridge.was_interrupted()
