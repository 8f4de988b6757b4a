"""Watches resident memory, of one process and of a session's guests together. It includes memory that no other cap
counts: shared mappings and file caches.

The caps on private memory (RLIMIT_DATA) and on the wasm memory act first; this is the backstop that sees everything, a
fraction of a second later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from typing import Protocol

# Check interval, in seconds. A check takes 20 microseconds; memory grows by at most about a gigabyte between two.
_INTERVAL_SECONDS = 0.25

# The interval for all guests of a kernel, several of which may grow at once.
_SHARED_INTERVAL_SECONDS = 0.1
# Memory that is not charged to a guest when it becomes ready, MiB: an image with numpy and pandas has twice as much.
_MAX_BASE_MB = 160

_MIB = 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatchdog:
    """Calls `on_excess` with a reason, once, when process `pid` exceeds `max_mb` MiB. Runs until stopped."""

    def __init__(self, pid: int, max_mb: int, on_excess: Callable[[str], None]) -> None:
        self._pid = pid
        self._max_mb = max_mb
        self._on_excess = on_excess
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._look)

    def stop(self) -> None:
        """Stop: the process has ended, and its id may be reused."""
        self._timer.cancel()

    def _look(self) -> None:
        used = resident_mb(self._pid)
        if used > self._max_mb:
            self._on_excess(f"it was killed for memory: it had {used:,.0f} MB, and the limit is {self._max_mb:,}")
            return
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._look)


class Member(Protocol):
    """The parts of a guest that are watched."""

    pid: int
    death: str | None
    base_mb: float | None
    """Resident memory when it became ready, MiB: Node and the boot image. None if it is not ready yet."""

    def kill(self, reason: str) -> None: ...


class SharedMemoryWatchdog:
    """Kills a guest when all of them together hold more than `max_mb` MiB beyond what each had when it became ready:
    the one that has grown most since the last check, because the others hold what was allowed. Runs until stopped."""

    def __init__(self, members: Callable[[], Iterable[Member]], max_mb: int) -> None:
        self._members = members
        self._max_mb = max_mb
        self._sizes: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_SHARED_INTERVAL_SECONDS, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        members = [member for member in self._members() if member.death is None and member.base_mb is not None]
        before, self._sizes = self._sizes, {member.pid: resident_mb(member.pid) for member in members}
        held = sum(self._sizes[member.pid] - min(member.base_mb or 0, _MAX_BASE_MB) for member in members)
        if held > self._max_mb:
            grown = max(members, key=lambda member: self._sizes[member.pid] - before.get(member.pid, 0))
            grown.kill(
                f"it was killed for memory: the guests of this session together held {held:,.0f} MB, and"
                f" the limit is {self._max_mb:,}"
            )
        self._timer = self._loop.call_later(_SHARED_INTERVAL_SECONDS, self._look)


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MiB; 0 if it cannot be read."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
                return int(file.read(100).split()[1]) * _PAGE_BYTES / _MIB
        except (OSError, IndexError):
            return 0
    import psutil  # imported here because it takes 10 ms

    try:
        return psutil.Process(pid).memory_info().rss / _MIB
    except psutil.Error:
        return 0
