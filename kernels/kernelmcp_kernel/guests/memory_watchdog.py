"""Watches resident memory, of one process and of a session's guests together, and the number of threads of each. It
includes memory that no other cap counts: shared mappings of files. Shared memory without a file, which may be held
unseen, the filter refuses.

The caps on private memory (RLIMIT_DATA) and on the wasm memory act first; this is the backstop that sees everything, a
fraction of a second later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

# Seconds between two checks of all guests of a kernel, several of which may grow at once. All checks are due at
# multiples of their interval, so that an idle process wakes for them together: each wake costs more than they do.
_TICK_SECONDS = 0.1
# The interval of one process, in ticks; its memory grows by at most about a gigabyte between two.
_TICKS = 2
# Checks in a row that may find no memory: an ordinary end passes through this state for as long as it takes the system
# to free what there was, 0.3 s for 2 GB.
_MAX_HIDDEN = 20
# Memory that is not charged to a guest when it becomes ready, MiB: an image with numpy and pandas has twice as much.
_MAX_BASE_MB = 160

_MIB = 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatchdog:
    """Calls `on_excess` with a reason, once, when the child process `pid` exceeds `max_mb` MiB or `max_threads`. Also
    when it runs on without its main thread, as the system then shows neither its memory nor its open files. Runs until
    stopped."""

    def __init__(self, pid: int, max_mb: int, on_excess: Callable[[str], None], max_threads: int = sys.maxsize) -> None:
        self._pid = pid
        self._memory = ResidentMemory(pid)
        self._max_threads = max_threads
        self._threads = _Threads(pid)
        self._hidden = 0
        self._max_mb = max_mb
        self._on_excess = on_excess
        self._timer = _at_tick(_TICKS, self._look)

    def stop(self) -> None:
        """Stop: the process has ended, and its id may be reused."""
        self._timer.cancel()
        self._memory.close()
        self._threads.close()

    def _look(self) -> None:
        used = self._memory.read_mb()
        if used > self._max_mb:
            self._on_excess(f"it was killed for memory: it had {used:,.0f} MB, and the limit is {self._max_mb:,} MB")
            return
        if (threads := self._threads.count()) > self._max_threads:
            self._on_excess(f"it was killed because it had {threads:,} threads, and the limit is {self._max_threads}")
            return
        self._hidden = self._hidden + 1 if self._memory.is_hidden and not _has_ended(self._pid) else 0
        if self._hidden > _MAX_HIDDEN:
            self._on_excess("it was killed because its main thread had ended, so that its memory could not be seen")
            return
        self._timer = _at_tick(_TICKS, self._look)


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
        self._memories: dict[int, ResidentMemory] = {}
        self._timer = _at_tick(_TICKS, self._look)

    def stop(self) -> None:
        self._timer.cancel()
        for memory in self._memories.values():
            memory.close()

    def _look(self) -> None:
        living = [member for member in self._members() if member.death is None]
        members = [member for member in living if member.base_mb is not None]
        for pid in self._memories.keys() - {member.pid for member in members}:
            self._memories.pop(pid).close()
        for member in members:
            if member.pid not in self._memories:
                self._memories[member.pid] = ResidentMemory(member.pid)
        before, self._sizes = self._sizes, {pid: memory.read_mb() for pid, memory in self._memories.items()}
        held = sum(self._sizes[member.pid] - min(member.base_mb or 0, _MAX_BASE_MB) for member in members)
        if held > self._max_mb:
            grown = max(members, key=lambda member: self._sizes[member.pid] - before.get(member.pid, 0))
            grown.kill(
                f"it was killed for memory: the languages of this session together held {held:,.0f} MB, and"
                f" the limit is {self._max_mb:,} MB"
            )
        self._timer = _at_tick(1 if len(living) > 1 else _TICKS, self._look)  # one alone has a watchdog, too


def _at_tick(ticks: int, look: Callable[[], None]) -> asyncio.TimerHandle:
    loop = asyncio.get_running_loop()
    period = ticks * _TICK_SECONDS
    phase = os.getpid() % 100 / 100 * _TICKS * _TICK_SECONDS  # a hundred idle kernels must not wake at once
    return loop.call_at(((loop.time() - phase) // period + 1) * period + phase, look)


class _KeptOpen:
    """What the system tells of a process in a file, or directory, of this name. Only on Linux."""

    def __init__(self, pid: int, name: str) -> None:
        self._pid, self._name, self._fd = pid, name, -1
        with suppress(OSError):
            self.descriptor()

    def descriptor(self) -> int:
        """Opens it if that failed before: the machine may have been short of descriptors. -1 elsewhere than on Linux.
        Raises OSError."""
        if self._fd < 0 and sys.platform == "linux":
            self._fd = os.open(f"/proc/{self._pid}/{self._name}", os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ResidentMemory:
    """The resident memory of a process. It keeps its file open, which is of this process even if the id is reused."""

    is_hidden = False
    """True if the process had no memory at all when it was last read: its main thread has ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file = _KeptOpen(pid, "statm")

    def close(self) -> None:
        self._file.close()

    def read_mb(self) -> float:
        """In MiB; 0 if it cannot be read."""
        if sys.platform == "linux":
            try:
                total, resident, *_ = map(int, os.pread(self._file.descriptor(), 100, 0).split())
                self.is_hidden = total == 0
                return resident * _PAGE_BYTES / _MIB
            except (OSError, ValueError):
                return 0
        import psutil  # imported here because it takes 10 ms

        try:
            return psutil.Process(self._pid).memory_info().rss / _MIB
        except psutil.Error:
            return 0


class _Threads:
    """The threads of a process. It keeps the directory open, as ResidentMemory its file."""

    def __init__(self, pid: int) -> None:
        self._directory = _KeptOpen(pid, "task")

    def close(self) -> None:
        self._directory.close()

    def count(self) -> int:
        """0 if they cannot be counted."""
        try:
            # As of every directory: itself, its name, and one for each below it.
            return os.fstat(self._directory.descriptor()).st_nlink - 2
        except OSError:
            return 0


def _has_ended(pid: int) -> bool:
    """True if all threads of the child process have ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has been waited for
        return True


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MiB; 0 if it cannot be read."""
    memory = ResidentMemory(pid)
    try:
        return memory.read_mb()
    finally:
        memory.close()
