"""Interrupts: where KeyboardInterrupt is raised, and which task is cancelled, when the host requests one.

The host sends a signal to running code, and calls `interrupt` if a cell waits; `end_background` if no request runs, but
tasks that cells left behind do. An interrupt that arrives before the user's code has begun is kept for it.
"""

# IPython and Pyodide declare much of the API used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportPrivateUsage=false, reportAttributeAccessIssue=false

import asyncio
import errno
import sys
from typing import Any

from kernelmcp_guest import blocking, swallowed_interrupts
from kernelmcp_guest.bridge import bridge
from kernelmcp_guest.ipython_shell import GuestShell
from kernelmcp_guest.running import running

# Frames that the handlers need at the recursion limit, including the watch on the interrupt that they raise.
_ROOM_FRAMES = 50
_MOST_FRAMES = 2**31 - 1
# Errors of a write without space.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def on_interrupt_signal(signum: int, frame: object) -> None:
    """SIGINT's handler: raises in the cell, or cancels its task if other code has the event loop."""
    if running.active:
        # First, and without another frame: this one may be the last within the limit. Until `heard`, the signal may
        # come again at any of these lines.
        limit = sys.getrecursionlimit()
        if swallowed_interrupts.under_way.limit is None:
            swallowed_interrupts.under_way.limit = limit
        sys.setrecursionlimit(min(limit + _ROOM_FRAMES, _MOST_FRAMES))
    bridge.heard()
    if not running.active:
        running.early = True
        return
    GuestShell.instance().interrupted = True
    if _is_in_cell():
        swallowed_interrupts.raise_watched()
    running.cancelled = True
    interrupt()


def _is_in_cell() -> bool:
    """Return whether the running code is the cell's. In the event loop's own code, between two steps of the cell's task
    or while a cell without one waits, an exception would be lost, and what the cell waits for would never come."""
    current, task = asyncio.current_task(), running.task
    if task is None:
        return current is not None or not blocking.is_waiting(running.request)
    return current is task and task.get_coro().cr_running is True


def on_stuck_signal(signum: int, frame: object) -> None:
    """SIGUSR1's handler: the event loop has not turned since the interrupt. Another task holds it, or C code has
    discarded the interrupt."""
    if not running.active:
        return
    if running.cancelled:
        running.cancelled = False
        swallowed_interrupts.raise_watched()
    swallowed_interrupts.raise_again()


def after_signal() -> None:
    """The event loop has turned since the signal: code that has not seen its KeyboardInterrupt by now never will."""
    if running.active and swallowed_interrupts.take():
        bridge.interrupt_again(False)  # this is that one
        interrupt()


def on_swallowed(unraisable: Any) -> None:
    """sys.unraisablehook: an interrupt in a `__del__` or similar code has not reached the cell, so it is raised again
    in the frame that dropped the object: a cell that does little else would also swallow the next one. Prints a message
    if the disk was full when a file was dropped, because the cell continues as if all had been written."""
    if isinstance(unraisable.exc_value, OSError) and unraisable.exc_value.errno in _FULL:
        sys.stderr.write(f"{unraisable.exc_value}: the end of a file is not written; close files (with open(...))\n")
        return
    sys.__unraisablehook__(unraisable)
    if issubclass(unraisable.exc_type, KeyboardInterrupt) and running.active:
        swallowed_interrupts.raise_in(sys._getframe().f_back)
        bridge.interrupt_again(True)


def on_loop_interrupted() -> None:
    """A callback or a task has ended with KeyboardInterrupt, which was meant for the waiting cell."""
    if running.active:
        interrupt()


def interrupt() -> None:
    """Interrupt a waiting cell: in the event loop, in a host call, or inside run_until_complete."""
    if not running.active:
        running.early = True
        return
    GuestShell.instance().interrupted = True
    swallowed_interrupts.take()
    blocked = blocking.interrupt(running.request)
    if running.task is not None and running.task not in blocked:
        running.task.cancel()
        blocking.cancel_blocked()
    bridge.reject_calls()


def end_background() -> None:
    """Cancel tasks that earlier cells have left behind: they have used their share of CPU time."""
    if running.active:
        return
    for wait in list(blocking.waits):
        wait.interrupt()
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        task.cancel()


def on_background_signal(signum: int, frame: object) -> None:
    """SIGUSR2's handler: does the same if a task holds the event loop."""
    end_background()
    if not running.active:
        raise KeyboardInterrupt


def begin() -> bool:
    """The user's code begins. Returns True if it is already interrupted (rather than the previous request)."""
    early, running.active, running.early = running.early, True, False
    return early and bridge.was_interrupted()
