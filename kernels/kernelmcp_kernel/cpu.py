"""Limits the CPU time of one execution: the guest is interrupted, and killed when it goes on.

Above: `kernel` makes a limit for each cell, `guest` watches it while the cell runs. Below: the operating system's
clocks. RLIMIT_CPU can't do it: it counts from the process's start, and booting alone takes seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Protocol

# How often the clock is read, seconds: several threads may use the time up faster than it passes.
_CHECK_SECONDS = 1.0

# Sooner than this after a check, nothing is checked again: the rest of a limit may be microseconds.
_SHORTEST_CHECK_SECONDS = 0.02

# What a cell that was interrupted, and noticed it, may still take to clean up, wall seconds. Longer than what a guest
# gets that does not notice (guest.py).
_CLEANUP_SECONDS = 4.0


class Watched(Protocol):
    """What a limit acts on: the guest."""

    pid: int

    def interrupt(self, why: str = "") -> None: ...
    def kill(self, reason: str) -> None: ...


class CpuLimit:
    """One execution's limit; None is no limit. For the thread of the event loop."""

    def __init__(self, seconds: float | None) -> None:
        self.exceeded = False
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    @property
    def text(self) -> str:
        return f"used more than its limit of {self._seconds:g} s of CPU time"

    def start(self, guest: Watched) -> None:
        if self._seconds is not None:
            self._check(guest, cpu_seconds(guest.pid) + self._seconds)

    def _check(self, guest: Watched, end: float) -> None:
        left = end - cpu_seconds(guest.pid)
        loop = asyncio.get_running_loop()
        if left > 0:
            pause = min(max(left, _SHORTEST_CHECK_SECONDS), _CHECK_SECONDS)
            self._timer = loop.call_later(pause, self._check, guest, end)
            return
        self.exceeded = True
        self._timer = loop.call_later(_CLEANUP_SECONDS, guest.kill, f"it {self.text} and went on when interrupted")
        guest.interrupt(f"it {self.text}, and ")

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def cpu_seconds(pid: int) -> float:
    """CPU time of a child process so far, of all its threads, seconds."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it; 2 is CPUCLOCK_SCHED
    import psutil  # 30 ms, and only here

    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
