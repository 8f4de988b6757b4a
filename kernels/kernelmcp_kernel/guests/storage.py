"""Counts the storage that a guest's files take, in trusted code: the host side in the guest (storage.mjs) raises
ENOSPC, but guest JavaScript can remove that check.

Guests are stopped during a count, so that they cannot move files to directories that were already counted. The count
uses blocks and not only sizes, and includes files that were deleted while a guest has them open. It follows no links
and costs the same for a deep tree as for a flat one.

It is long because a count that a guest cannot evade is one concept: when to count, what to stop, what to sum.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kernelmcp_kernel.settings import Quota

_log = logging.getLogger(__name__)

# Tolerance, because the guest's own count lags behind a server that writes files at the same time.
_SLACK = 1.1
_SLACK_BYTES = 16 * 1024 * 1024
_SLACK_FILES = 100

# Count intervals: short while a cell runs, longer while none does, and never more than a share of the time.
_BUSY_SECONDS = 1.0
_IDLE_SECONDS = 5.0
_SHARE = 20

# A guest can write gigabytes per second. So the bytes that guests have written and the space that the file system has
# lost are read this often, as either may be incomplete. A count follows when half of the remaining quota may be used,
# and at least this many bytes.
_LOOK_SECONDS = 0.01
# Shorter while the guest writes: a page cache takes 3 MB in a millisecond.
_WRITING_LOOK_SECONDS = 0.002
_LOST_BYTES = 4 * 1024 * 1024

# A process stops within milliseconds, except in the middle of a large write.
_STOP_SECONDS = 2.0
_STOP_CHECK_SECONDS = 0.001

# Pauses before each count, until one meets no directory that moves. The server moves them, too, when it deletes the
# files of a workspace; a guest can only if it has not stopped.
_PAUSES_SECONDS = (0.0, 0.05, 0.1, 0.2, 0.4)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_PATH_MAX = 4096
_BLOCK_BYTES = 512  # the unit of st_blocks
_ROUNDING_BYTES = 4096


class Excess(Exception):
    """A guest has stored more than its quota and the tolerance. The text gives the details."""


class _Moved(Exception):
    """A directory was moved while its subdirectories were counted."""


class Stopped:
    """Stops processes until the end of the context, which returns those that have stopped.

    Created in the thread that reaps these processes, so that no id has been reused; the context blocks.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids: dict[int, int | None] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._pids[pid] = os.pidfd_open(pid) if sys.platform == "linux" else None
        self._send(signal.SIGSTOP)

    def __enter__(self) -> list[int]:
        return self.wait()

    def __exit__(self, *_: object) -> None:
        self.resume()

    def wait(self) -> list[int]:
        """Those that have stopped."""
        end = time.monotonic() + _STOP_SECONDS
        return [pid for pid in self._pids if _has_stopped(pid, end)]

    def resume(self) -> None:
        """Let them continue. May be called twice."""
        self._send(signal.SIGCONT)
        pids, self._pids = self._pids, {}
        for fd in pids.values():
            if fd is not None:
                os.close(fd)

    def _send(self, number: signal.Signals) -> None:
        for pid, fd in self._pids.items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if sys.platform == "linux" and fd is not None:
                    signal.pidfd_send_signal(fd, number)
                else:
                    os.kill(pid, number)


def _has_stopped(pid: int, end: float) -> bool:
    flags = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if (found := os.waitid(os.P_PID, pid, flags)) is not None:
                return found.si_code == os.CLD_STOPPED
            time.sleep(_STOP_CHECK_SECONDS)
    return False


class _Count:
    """A sum that raises Excess as soon as it exceeds the limit."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.size = self.files = 0
        self._max_bytes = _most_bytes(quota)
        self._max_files = int(quota.max_files * _SLACK) + _SLACK_FILES

    def add(self, size: int, files: int = 1) -> None:
        self.size += size
        self.files += files
        if self.size > self._max_bytes:
            raise Excess(f"its files take more than the {self.quota.max_bytes:,} bytes that are allowed")
        if self.files > self._max_files:
            raise Excess(f"it has more than the {self.quota.max_files:,} files that are allowed")


def _most_bytes(quota: Quota) -> int:
    return int(quota.max_bytes * _SLACK) + _SLACK_BYTES


def stored_bytes(status: os.stat_result) -> int:
    """The bytes that a file counts: its size, or its blocks if they exceed it by more than one (preallocated space)."""
    return max(status.st_size, getattr(status, "st_blocks", 0) * _BLOCK_BYTES - _ROUNDING_BYTES)


def count(folder: Path, quota: Quota, pids: Iterable[int] = ()) -> Quota:
    """Count bytes and files: those in the folder, and deleted files that these processes have open. Blocking.

    Raises Excess as soon as a limit is exceeded.
    """
    real = os.path.realpath(folder)  # the path to the top is the host's, and may contain links
    for pause in _PAUSES_SECONDS:
        time.sleep(pause)
        found = _Count(quota)
        try:
            with contextlib.suppress(FileNotFoundError):
                _count_tree(real, found)
                _count_deleted(real, pids, found)
        except _Moved:
            continue
        return Quota(found.size, found.files)
    raise Excess("its directories move while they are counted")


def _count_tree(top: str, found: _Count) -> None:
    """Descend by name and ascend by "..", with one directory open at a time: each is opened twice, at any depth."""
    fd = _open_directory(top, None)
    above: list[tuple[tuple[int, int], list[str], int]] = []  # identities, remaining names, path lengths
    length = len(os.fsencode(top)) + 1
    try:
        names = _count_entries(fd, found)
        while names or above:
            if names:
                name = names.pop()
                try:
                    child = _open_directory(name, fd)
                except OSError as error:
                    if error.errno not in _GONE:
                        raise Excess(f"one of its directories cannot be counted: {error.strerror}") from error
                    continue
                above.append((_identity(fd), names, length))
                os.close(fd)
                fd = child
                length += len(os.fsencode(name)) + 1
                if length > _PATH_MAX:  # only renaming creates such a tree
                    raise Excess("its directories are nested too deeply for any path to name them")
                names = _count_entries(fd, found)
            else:
                identity, names, length = above.pop()
                fd, child = os.open("..", _DIRECTORY, dir_fd=fd), fd
                os.close(child)
                if _identity(fd) != identity:
                    raise _Moved
    finally:
        os.close(fd)


def _count_entries(fd: int, found: _Count) -> list[str]:
    """Count the entries of a directory; return the names of its subdirectories."""
    found.add(max(0, os.fstat(fd).st_blocks * _BLOCK_BYTES - _ROUNDING_BYTES), files=0)
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
                found.add(0)
                continue
            try:
                found.add(stored_bytes(entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                found.add(0)
    return names


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _count_deleted(top: str, pids: Iterable[int], found: _Count) -> None:
    """Count deleted files that these processes have open. Files that are only mapped cannot be inspected."""
    if sys.platform != "linux":
        return
    seen: set[tuple[int, int]] = set()
    device = os.stat(top).st_dev
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    identity = status.st_dev, status.st_ino
                    is_deleted = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
                    if is_deleted and status.st_dev == device and identity not in seen:
                        seen.add(identity)
                        found.add(stored_bytes(status))
            for identity in _deleted_mappings(pid, os.fsencode(top)):
                if identity not in seen:
                    raise Excess("it maps a file that was deleted, whose size cannot be seen")


def _deleted_mappings(pid: int, top: bytes) -> Iterator[tuple[int, int]]:
    """Device and inode of each deleted file below a folder that a process has mapped."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            if line.endswith(b" (deleted)\n") and b" " + top + b"/" in line:
                device, inode = line.split(None, 5)[3:5]
                major, minor = (int(part, 16) for part in device.split(b":"))
                yield os.makedev(major, minor), int(inode)


def _open_directory(name: str, above: int | None) -> int:
    """Open a subdirectory. A guest can create one without read permission: it is made readable first."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except PermissionError:
        _reveal(name, above)
        return os.open(name, _DIRECTORY, dir_fd=above)
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_mode & 0o500 != 0o500:  # the names are readable, but not the sizes of the files
            os.fchmod(fd, 0o700)
    return fd


def _reveal(name: str, above: int | None) -> None:
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=above, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _each(choose: Callable[[int, int], int], one: Quota, other: Quota) -> Quota:
    return Quota(choose(one.max_bytes, other.max_bytes), choose(one.max_files, other.max_files))


class StorageWatch:
    """Counts a guest's files periodically, from the first cell on, and calls `on_excess` when there are too many.

    `pids`: the guests, which are stopped during a count.
    """

    def __init__(
        self,
        folder: Path,
        quota: Quota,
        busy: Callable[[], bool],
        on_excess: Callable[[str], None],
        pids: Callable[[], list[int]] = list,
    ):
        self._folder = folder
        self._pids = pids
        self._quota = quota
        self._busy = busy
        self._on_excess = on_excess
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._earliest = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._free_bytes = self._written_bytes = 0
        self._stored = Quota(0, 0)
        self._granted = quota
        self._reason: str | None = None

    def allow(self, quota: Quota) -> None:
        """Set the quota from now on.

        A quota smaller than before ends no guest for files that an earlier quota allowed; files in the tolerance do not
        raise the limit.
        """
        granted = self._granted = _each(max, self._granted, quota)
        self._quota = _each(max, quota, _each(min, self._stored, granted))

    def poke(self) -> None:
        """Count soon: a cell begins, and may write files."""
        if self._task is None:
            self._schedule(_BUSY_SECONDS)
        if self._look is None:
            self._free_bytes, self._written_bytes = _free_bytes(self._folder), _written_bytes(self._pids())
            self._look = self._loop.call_later(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """While a cell runs: count at once if much of the remaining quota may be used."""
        room = _most_bytes(self._quota) - self._stored.max_bytes
        lost = self._free_bytes - _free_bytes(self._folder)
        written = _written_bytes(self._pids()) - self._written_bytes
        if max(lost, written) > max(_LOST_BYTES, room // 2) and self._task is None:
            if self._timer is not None:
                self._timer.cancel()
            self._start()
        seconds = _WRITING_LOOK_SECONDS if max(lost, written) > _LOST_BYTES else _LOOK_SECONDS
        self._look = self._loop.call_later(seconds, self._look_again) if self._busy() else None

    async def refusal(self) -> str | None:
        """The reason why no cell may run, or None: the last count exceeded the quota, and a new one still does."""
        if self._reason is not None:
            await self._count()
        return self._reason

    def close(self) -> None:
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _schedule(self, seconds: float) -> None:
        when = max(self._loop.time() + seconds, self._earliest)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        began = self._loop.time()
        try:
            await self._count(self._on_excess)
        except Exception:  # noqa: BLE001  # whatever it is, the next count must come
            _log.exception("a guest's files could not be counted")
        now = self._loop.time()
        self._earliest = now + _SHARE * (now - began)
        self._task = None
        self._schedule(_BUSY_SECONDS if self._busy() else _IDLE_SECONDS)

    async def _count(self, on_excess: Callable[[str], None] = lambda _: None) -> None:
        """Count, and report an excess while guests are still stopped: on a loaded machine they would write on for tens
        of milliseconds before they are ended."""
        stopped = Stopped(self._pids())
        self._free_bytes, self._written_bytes = _free_bytes(self._folder), _written_bytes(self._pids())
        try:
            self._stored = await asyncio.to_thread(_count_stopped, self._folder, self._quota, stopped)
            self._reason = None
        except Excess as error:
            self._reason = str(error)
            on_excess(self._reason)
        finally:
            stopped.resume()


def _count_stopped(folder: Path, quota: Quota, guests: Stopped) -> Quota:
    """Raises Excess, and leaves the guests stopped then."""
    found = count(folder, quota, guests.wait())
    guests.resume()
    return found


def _written_bytes(pids: list[int]) -> int:
    """Total bytes that these processes have written to files and pipes, by system calls or to mapped files."""
    total = 0
    for pid in pids if sys.platform == "linux" else []:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            words = file.read(500).split()
            total += max(int(words[words.index(b"wchar:") + 1]), int(words[words.index(b"write_bytes:") + 1]))
    return total


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bfree * found.f_frsize
