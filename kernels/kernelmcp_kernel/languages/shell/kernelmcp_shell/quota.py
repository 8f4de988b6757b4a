"""The storage quota of a session's files, counted in the shell for honest programs: they get "No space left on device"
instead of being killed. Like host/quota.mjs for Python and JavaScript; guests/storage.py is the hard limit."""

from __future__ import annotations

import contextlib
import errno
import os
import time

_RECOUNT_SECONDS = 1.0  # other guests and the server also write files
_RECOUNT_SHARE = 20  # the time between counts is at least this many times their duration


class Quota:
    def __init__(self, limits: dict[str, int], folders: list[str]) -> None:
        self.limits = limits
        self._folders = folders
        self._may_recount = True
        self._bytes = self._files = 0
        self._counted_at = float("-inf")
        self._seconds = 0.0

    def begin(self) -> None:
        """A request begins: files found before may have been deleted."""
        self._may_recount = True

    def reserve(self, size: int, files: int) -> None:
        """Reserve storage. Raises OSError if there is too little."""
        self._count(_RECOUNT_SECONDS)
        if not self._fits(size, files):
            if self._may_recount:
                self._counted_at = float("-inf")  # once per request, at any cost
            self._may_recount = False
            self._count(0.0)
            if not self._fits(size, files):
                raise OSError(errno.ENOSPC, "No space left on device")
        self._bytes = max(0, self._bytes + size)
        self._files = max(0, self._files + files)

    def used(self) -> int:
        """The bytes in use."""
        self._count(_RECOUNT_SECONDS)
        return self._bytes

    def _fits(self, size: int, files: int) -> bool:
        return (size <= 0 or self._bytes + size <= self.limits["max_bytes"]) and (
            files <= 0 or self._files + files <= self.limits["max_files"]
        )

    def _count(self, age: float) -> None:
        began = time.monotonic()
        if began - self._counted_at < max(age, _RECOUNT_SHARE * self._seconds):
            return
        self._bytes = self._files = 0
        pending = list(self._folders)
        while pending:
            with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
                for entry in entries:
                    self._files += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        with contextlib.suppress(OSError):
                            self._bytes += entry.stat(follow_symlinks=False).st_size
        self._counted_at = time.monotonic()
        self._seconds = self._counted_at - began
