"""Watches a guest's resident memory, which includes what no other cap counts (shared mappings, caches of files).

A cap on private memory (RLIMIT_DATA) and one on the wasm memory act before; this is the backstop that sees
everything, a fraction of a second later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

# How often it looks, in seconds. A look takes 20 microseconds; memory grows by at most a gigabyte or so between two.
_INTERVAL_SECONDS = 0.25

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
