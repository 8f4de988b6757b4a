"""What a guest's files take, counted in trusted code: the host side in the guest (storage.mjs) answers ENOSPC, but
guest JavaScript can take that out.

Counting follows no link and is bounded. A hostile guest that moves its directories meanwhile can make it count wrong,
until the next count, but not look or change anything elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from kernelmcp_kernel.settings import Quota

_log = logging.getLogger(__name__)

# The guest's own count lags behind a server that writes files at the same time: so much is forgiven.
_SLACK = 1.1
_SLACK_BYTES = 16 * 1024 * 1024
_SLACK_FILES = 100

# How often is counted: soon while a cell runs, less often while none does, and never more than a share of the time.
_BUSY_SECONDS = 1.0
_IDLE_SECONDS = 5.0
_SHARE = 20

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Descriptors of one count. Deeper trees than this are opened again from above now and then.
_MAX_OPEN = 32


class Excess(Exception):
    """A guest has stored more than its quota and the slack. The text says what."""


def count(folder: Path, quota: Quota) -> Quota:
    """Count bytes and files. Blocking. Raises Excess as soon as there are too many."""
    max_bytes = int(quota.max_bytes * _SLACK) + _SLACK_BYTES
    max_files = int(quota.max_files * _SLACK) + _SLACK_FILES
    size = files = 0
    with contextlib.suppress(OSError), contextlib.closing(_Descent(folder)) as descent:
        pending = [""]
        while pending:
            current = pending.pop()
            with contextlib.suppress(OSError), os.scandir(descent.open(current)) as entries:
                for entry in entries:
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{current}/{entry.name}" if current else entry.name)
                    else:
                        with contextlib.suppress(OSError):
                            size += entry.stat(follow_symlinks=False).st_size
                    if size > max_bytes:
                        raise Excess(f"its files take more than the {quota.max_bytes:,} bytes that are allowed")
                    if files > max_files:
                        raise Excess(f"it has more than the {quota.max_files:,} files that are allowed")
    return Quota(size, files)


class _Descent:
    """Opens the directories below one, component by component and through no link, so that a guest which moves them
    meanwhile leads nowhere else.

    Quick for a walk that goes down before it goes on: descriptors of the deepest directories on the way stay open, a
    bounded number, because a guest can nest them a thousand deep.
    """

    def __init__(self, top: Path) -> None:
        # The path to the top is the host's, and may have links.
        real = os.path.realpath(top)
        self._max_length = os.pathconf(real, "PC_PATH_MAX") - len(os.fsencode(real)) - 2
        self._names: list[str] = []
        self._open = {0: _open_directory(real, None)}

    def open(self, path: str) -> int:
        """A descriptor of the directory at this path below the top, until the next call. Raises OSError, Excess."""
        if len(os.fsencode(path)) > self._max_length:  # only renaming makes such a tree
            raise Excess("its directories are nested too deeply for any path to name them")
        names = path.split("/") if path else []
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._names, names, strict=False)))
        for depth in [depth for depth in self._open if depth > shared]:
            os.close(self._open.pop(depth))
        self._names = names
        for depth in range(max(self._open), len(names)):
            self._open[depth + 1] = _open_directory(names[depth], self._open[depth])
            if len(self._open) > _MAX_OPEN:
                os.close(self._open.pop(min(filter(None, self._open))))
        return self._open[len(names)]

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _open_directory(name: str, above: int | None) -> int:
    """Open a directory in another. A guest can make one without the right to read it: that is made readable first."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except PermissionError:
        _reveal(name, above)
        return os.open(name, _DIRECTORY, dir_fd=above)
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_mode & 0o500 != 0o500:  # its names can be read, but not the sizes of its files
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
    """Counts a guest's files now and then, from the first cell on, and calls `on_excess` when there are too many."""

    def __init__(self, folder: Path, quota: Quota, busy: Callable[[], bool], on_excess: Callable[[str], None]):
        self._folder = folder
        self._quota = quota
        self._busy = busy
        self._on_excess = on_excess
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._earliest = 0.0
        self._stored = Quota(0, 0)
        self._granted = quota
        self._reason: str | None = None

    def allow(self, quota: Quota) -> None:
        """Set what may be stored from now on.

        A smaller quota than before ends no guest for what is stored already, as far as that was allowed once; what lies
        in the slack does not become a right to more.
        """
        granted = self._granted = _each(max, self._granted, quota)
        self._quota = _each(max, quota, _each(min, self._stored, granted))

    def poke(self) -> None:
        """Count soon: a cell begins, and may write files."""
        if self._task is None:
            self._schedule(_BUSY_SECONDS)

    async def refusal(self) -> str | None:
        """Why no cell may run: the last count was over, and it is still so."""
        if self._reason is not None:
            await self._count()
        return self._reason

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
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
            await self._count()
            if self._reason is not None:
                self._on_excess(self._reason)
        except Exception:  # noqa: BLE001  # whatever it is, the next count must come
            _log.exception("a guest's files could not be counted")
        now = self._loop.time()
        self._earliest = now + _SHARE * (now - began)
        self._task = None
        self._schedule(_BUSY_SECONDS if self._busy() else _IDLE_SECONDS)

    async def _count(self) -> None:
        try:
            self._stored = await asyncio.to_thread(count, self._folder, self._quota)
            self._reason = None
        except Excess as error:
            self._reason = str(error)
