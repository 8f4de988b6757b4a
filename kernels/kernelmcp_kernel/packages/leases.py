"""Records which process uses which packages of the cache, so that only unused ones are deleted.

    KERNELMCP_HOME/packages/leases/<random>    the sha256 of each package of one kernel process, one per line
    KERNELMCP_HOME/packages/lock               held while a process takes a lease, or deletes unleased packages

A lease's file is locked by flock while its process lives, so that a killed kernel's lease ends with it. Blocking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path


class Leases:
    """The leases of one cache, and this process's own."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "leases"
        self._lock = root / "lock"
        self._file: Path | None = None
        self._fd = -1
        self.own: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While this is held, no other process takes a lease or deletes a package. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def keep(self, packages: Iterable[str]) -> None:
        """Lease exactly these packages to this process from now on. Raises OSError."""
        wanted = frozenset(packages)
        if wanted == self.own:
            return
        with self.alone():
            self._write(wanted)

    def _write(self, wanted: frozenset[str]) -> None:
        """Replace the old file by a new one; it is valid until then: a full disk must not end a lease."""
        file = self._folder / secrets.token_hex(8)
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with open(fd, "wb", closefd=False) as stream:
                stream.write("".join(f"{sha256}\n" for sha256 in sorted(wanted)).encode())
        except BaseException:
            os.close(fd)
            file.unlink(missing_ok=True)
            raise
        old, old_fd = self._file, self._fd
        self._file, self._fd, self.own = file, fd, wanted
        if old is not None:
            os.close(old_fd)
            old.unlink(missing_ok=True)

    def end(self) -> None:
        """Release all leases."""
        if self._file is not None:
            os.close(self._fd)
            self._file.unlink(missing_ok=True)
        self._file, self._fd, self.own = None, -1, frozenset()

    def held(self) -> set[str]:
        """The packages that live processes use, including this one. Only for use inside `alone`.

        Deletes the leases of processes that have ended.
        """
        found = set(self.own)
        for file in self._folder.iterdir():
            if file != self._file:
                found.update(self._of_another(file))
        return found

    @staticmethod
    def _of_another(file: Path) -> list[str]:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read_text("utf-8").split()
        else:
            file.unlink(missing_ok=True)
            return []
        finally:
            os.close(fd)
