"""Limits the CPU time of a guest, during an execution and between two: it is interrupted, then killed if it goes on.

RLIMIT_CPU can't do it: it counts from the process's start, and booting alone takes seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

# How often the clock is read, seconds: several threads may use the time up faster than it passes.
_CHECK_SECONDS = 1.0

# Sooner than this after a check, nothing is checked again: the rest of a limit may be microseconds.
_SHORTEST_CHECK_SECONDS = 0.02

# What a cell that was interrupted, and noticed it, may still take to clean up, wall seconds. Longer than what a guest
# gets that does not notice (guest.py).
_CLEANUP_SECONDS = 4.0


# Between cells the clock is read this often, seconds: nobody waits, and most guests do nothing then.
_IDLE_CHECK_SECONDS = 2.0

# What a guest may use of the seconds after its background tasks were cancelled; more, and they did not end.
_SETTLED_SHARE = 0.25


class Watched(Protocol):
    """What a limit acts on: the guest."""

    pid: int

    def interrupt(self, why: str = "") -> None: ...
    def end_background(self) -> None: ...
    def kill(self, reason: str) -> None: ...


class CpuLimit:
    """One execution's limit; None is no limit. For the thread of the event loop.

    What other guests do for the execution meanwhile has a `part` of it each, and is charged with what it used.
    """

    def __init__(self, seconds: float | None) -> None:
        self.exceeded = False
        self._seconds = seconds
        self._given = self._left = seconds or 0.0
        self._seen = 0.0  # the guest's clock when it was read last
        self._guest: Watched | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def text(self) -> str:
        return f"used more than its limit of {self._seconds:g} s of CPU time"

    def start(self, guest: Watched) -> None:
        if self._seconds is not None:
            self._guest, self._seen = guest, cpu_seconds(guest.pid)
            self._check(guest)

    def part(self) -> CpuLimit:
        """For what another guest does now: what is left of this one."""
        part = CpuLimit(self._seconds)
        part._given = part._left = self._read()
        return part

    def charge(self, part: CpuLimit) -> None:
        """A part has ended."""
        self._left -= part._given - part._left
        self.exceeded = self.exceeded or part.exceeded

    def _read(self) -> float:
        """What is left now. A guest that has ended has used what it had when its clock was read last."""
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
    """What tasks that cells left behind may use between the end of one request and the next; None is no limit.

    Then they are cancelled, which keeps the variables, and the guest is killed only when it goes on. For the thread of
    the event loop.
    """

    def __init__(self, seconds: float | None) -> None:
        self.exceeded = False
        """Tasks were cancelled, and no cell has reported it yet. The one that does sets it back to False."""
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    @property
    def text(self) -> str:
        return f"used more than {self._seconds:g} s of CPU time between two cells"

    def start(self, guest: Watched) -> None:
        """Begin to measure: a request has ended."""
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
    """CPU time of a child process so far, of all its threads, seconds. Raises OSError for one that was waited for."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it; 2 is CPUCLOCK_SCHED
    import psutil  # 30 ms, and only here

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from None
    return times.user + times.system
