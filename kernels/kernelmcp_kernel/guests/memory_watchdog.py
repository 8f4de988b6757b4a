"""Watches resident memory, of a process and of a session's guests together. It includes what no other cap counts:
shared mappings, caches of files.

A cap on private memory (RLIMIT_DATA) and one on the wasm memory act before; this is the backstop that sees
everything, a fraction of a second later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from typing import Protocol

# How often it looks, in seconds. A look takes 20 microseconds; memory grows by at most a gigabyte or so between two.
_INTERVAL_SECONDS = 0.25

# The same for all guests of a kernel, of which several may grow at once.
_SHARED_INTERVAL_SECONDS = 0.1
# What a guest may have when it is ready without being charged, MiB: an image with numpy and pandas has twice as much.
_MAX_BASE_MB = 160

_MIB = 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatchdog:
    """Calls `on_excess` with a reason, once, when process `pid` is larger than `max_mb` MiB. Runs until stopped."""

    def __init__(self, pid: int, max_mb: int, on_excess: Callable[[str], None]) -> None:
        self._pid = pid
        self._max_mb = max_mb
        self._on_excess = on_excess
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._look)

    def stop(self) -> None:
        """Stop: the process has ended, and its number may be given to another."""
        self._timer.cancel()

    def _look(self) -> None:
        used = resident_mb(self._pid)
        if used > self._max_mb:
            self._on_excess(f"it was killed for memory: it had {used:,.0f} MB, and {self._max_mb:,} is the most")
            return
        self._timer = self._loop.call_later(_INTERVAL_SECONDS, self._look)


class Member(Protocol):
    """A guest, as far as it is watched."""

    pid: int
    death: str | None
    base_mb: float | None
    """Its resident memory when it was ready, MiB: Node's own, and the boot image. None: it has not been ready yet."""

    def kill(self, reason: str) -> None: ...


class SharedMemoryWatchdog:
    """Ends a guest when all of them together hold more than `max_mb` MiB besides what each had when it was ready: the
    one that has grown most since the last look, because the others hold what was allowed. Runs until stopped."""

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
                f" {self._max_mb:,} is the most"
            )
        self._timer = self._loop.call_later(_SHARED_INTERVAL_SECONDS, self._look)


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MiB; 0 when it cannot be seen."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
                return int(file.read(100).split()[1]) * _PAGE_BYTES / _MIB
        except (OSError, IndexError):
            return 0
    import psutil  # 10 ms, where it is needed

    try:
        return psutil.Process(pid).memory_info().rss / _MIB
    except psutil.Error:
        return 0
