"""Limits the CPU time of a guest, during and between executions: it is interrupted, then killed if it does not stop.

RLIMIT_CPU cannot do this: it counts from the start of the process, and booting alone takes seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

# Longest interval between two checks, seconds. Short, because several threads may use CPU time faster than real time.
_CHECK_SECONDS = 1.0

# Shortest interval between two checks, seconds: the rest of a limit may be microseconds.
_SHORTEST_CHECK_SECONDS = 0.02

# Wall time that an interrupted cell which has noticed the interrupt may take to clean up, seconds. Longer than the
# grace period of a guest that does not notice (guest.py).
_CLEANUP_SECONDS = 4.0


# Check interval between cells, seconds: nobody waits, and most guests are idle.
_IDLE_CHECK_SECONDS = 2.0

# Share of the seconds after its background tasks were cancelled that a guest may use: above it, they did not end.
_SETTLED_SHARE = 0.25


class Watched(Protocol):
    """The guest that a limit acts on."""

    pid: int

    def interrupt(self, why: str = "") -> None: ...
    def end_background(self) -> None: ...
    def kill(self, reason: str) -> None: ...


class CpuLimit:
    """One execution's limit; None means no limit. For the event loop's thread.

    Work that another guest does for the execution has its own `part`, which is charged for the CPU time used.
    """

    def __init__(self, seconds: float | None) -> None:
        self.exceeded = False
        self._seconds = seconds
        self._given = self._left = seconds or 0.0
        self._seen = 0.0  # the guest's clock at the last reading
        self._guest: Watched | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def text(self) -> str:
        return f"used more than its limit of {self._seconds:,.15g} s of CPU time"

    def start(self, guest: Watched) -> None:
        if self._seconds is not None:
            self._guest, self._seen = guest, cpu_seconds(guest.pid)
            self._check(guest)

    def part(self) -> CpuLimit:
        """A limit for work in another guest: the remaining CPU time of this one."""
        part = CpuLimit(self._seconds)
        part._given = part._left = self._read()
        return part

    def charge(self, part: CpuLimit) -> None:
        """Charge the CPU time of a part that has ended."""
        self._left -= part._given - part._left
        self.exceeded = self.exceeded or part.exceeded

    def _read(self) -> float:
        """Return the CPU time that is left now. For a guest that has ended, the last reading counts."""
        if self._guest is not None:
            with suppress(OSError):
                now = cpu_seconds(self._guest.pid)
                self._left -= now - self._seen
                self._seen = now
        return self._left

    def _check(self, guest: Watched) -> None:
        left = self._read()
        loop = asyncio.get_running_loop()
        if left > 0:
            pause = min(max(left, _SHORTEST_CHECK_SECONDS), _CHECK_SECONDS)
            self._timer = loop.call_later(pause, self._check, guest)
            return
        self.exceeded = True
        self._timer = loop.call_later(_CLEANUP_SECONDS, guest.kill, f"it {self.text} and went on when interrupted")
        guest.interrupt(f"it {self.text}, and ")

    def stop(self) -> None:
        self._read()
        self._guest = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BackgroundLimit:
    """The CPU time of tasks that cells left behind, between two requests; None means no limit.

    At the limit they are cancelled, which keeps the variables; the guest is killed only if it continues. For the event
    loop's thread.
    """

    def __init__(self, seconds: float | None) -> None:
        self.exceeded = False
        """Tasks were cancelled, and no cell has reported it yet. The cell that reports it resets this to False."""
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    @property
    def text(self) -> str:
        return f"used more than {self._seconds:,.15g} s of CPU time between two cells"

    def start(self, guest: Watched) -> None:
        """Start measuring: a request has ended."""
        self.stop()
        if self._seconds is not None:
            self._again(_IDLE_CHECK_SECONDS, self._check, guest, cpu_seconds(guest.pid) + self._seconds)

    def _check(self, guest: Watched, end: float) -> None:
        left = end - cpu_seconds(guest.pid)
        if left > 0:
            self._again(min(max(left, _SHORTEST_CHECK_SECONDS), _IDLE_CHECK_SECONDS), self._check, guest, end)
            return
        self.exceeded = True
        guest.end_background()
        allowed = cpu_seconds(guest.pid) + _SETTLED_SHARE * _CLEANUP_SECONDS
        self._again(_CLEANUP_SECONDS, self._check_end, guest, allowed)

    def _check_end(self, guest: Watched, allowed: float) -> None:
        if cpu_seconds(guest.pid) > allowed:
            guest.kill(f"tasks that cells left behind {self.text} and went on when they were cancelled")
        else:
            self.start(guest)

    def _again(self, seconds: float, check: Callable[[Watched, float], None], guest: Watched, end: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, check, guest, end)

    def stop(self) -> None:
        """Stop measuring: a request begins, or the guest has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def cpu_seconds(pid: int) -> float:
    """CPU time of a child process so far, of all threads, in seconds. Raises OSError if the process was reaped."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # computed as in clock_getcpuclockid(3); 2 is CPUCLOCK_SCHED
    import psutil  # imported here because it takes 30 ms

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from None
    return times.user + times.system
