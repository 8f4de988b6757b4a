"""Keeps the package cache under its cap: deletes the least recently used packages, never those in use.

A package is in use if a live kernel has a lease on it, or if a boot image contains it. One session may use half of the
cap, so that it cannot keep all others from installing. Blocking.

    KERNELMCP_HOME/packages/leases/<random>    the sha256 of each package of one kernel process, one per line
    KERNELMCP_HOME/packages/lock               held while a process takes a lease, or deletes unleased packages

A lease's file is locked by flock while its process lives, so that a killed kernel's lease ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.packages.package_errors import PackageCacheError, over_share

STAMP = ".kernelmcp-package.json"
# The minimum size of a file or folder on disk: a package of 50,000 empty files is not small.
_BLOCK_BYTES = 4096


@dataclass
class _Entry:
    """A package in the cache, as a wheel, unpacked, or both."""

    bytes: int = 0
    used_at: float = 0


class Room:
    """The space that is left in one cache, and this process's lease on packages in it."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._lease: Path | None = None
        self._fd = -1
        self._own: frozenset[str] = frozenset()

    @property
    def max_staged_bytes(self) -> int:
        """The bytes that one session may be downloading at a time."""
        return self._max_bytes // 2

    def use(self, packages: Iterable[str]) -> None:
        """Take a lease on these packages in addition to this process's others, before it checks if they exist. A cache
        that cannot be written grants no lease, and deletes nothing either."""
        packages = list(packages)
        self.use_only(self._own.union(packages))
        for sha256 in packages:
            for part in ("wheels", "unpacked"):
                with contextlib.suppress(OSError):
                    os.utime(self._root / part / sha256)

    def use_only(self, packages: Iterable[str]) -> None:
        """Keep a lease on exactly these packages: an installation has finished."""
        wanted = frozenset(packages)
        if wanted != self._own:
            with contextlib.suppress(OSError), self._alone():
                self._write_lease(wanted)
                self._leased()  # deletes the leases of kernels that have ended

    def _write_lease(self, wanted: frozenset[str]) -> None:
        """Replace the old file by a new one; it is valid until then: a full disk must not end a lease."""
        file = self._root / "leases" / secrets.token_hex(8)
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with open(fd, "wb", closefd=False) as stream:
                stream.write("".join(f"{sha256}\n" for sha256 in sorted(wanted)).encode())
        except BaseException:
            os.close(fd)
            file.unlink(missing_ok=True)
            raise
        self.end()
        self._lease, self._fd, self._own = file, fd, wanted

    def end(self) -> None:
        """Release the lease."""
        if self._lease is not None:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                self._lease.unlink(missing_ok=True)
        self._lease, self._fd, self._own = None, -1, frozenset()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While this is held, no other process takes a lease or deletes a package. Raises OSError."""
        (self._root / "leases").mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def making(self, needed: int) -> Iterator[None]:
        """Delete unused packages until this many bytes fit, which must be put in place inside the context: other
        processes wait, so that none takes the same space. Raises PackageCacheError, OSError."""
        with self._alone():
            self._make(needed)
            yield

    def _make(self, needed: int) -> None:
        entries = self._entries()
        own = sum(entries[sha256].bytes for sha256 in self._own if sha256 in entries)
        if own + needed > self.max_staged_bytes:
            raise over_share(self.max_staged_bytes)
        used = sum(entry.bytes for entry in entries.values())
        free = self._unused(entries) if used + needed > self._max_bytes else []
        while used + needed > self._max_bytes:
            if not free:
                raise PackageCacheError(
                    f"the package cache has the {self._max_bytes / 2**20:,.0f} MB that it may have "
                    "(packages.max_cache_mb), and all of it is in use; stop sessions that have large packages, "
                    "or ask for a higher limit. Cached packages can still be installed"
                )
            sha256 = free.pop(0)
            used -= entries[sha256].bytes
            self._delete(sha256)

    def _entries(self) -> dict[str, _Entry]:
        found: dict[str, _Entry] = {}
        for part, size_of in (("wheels", size_of_files), ("unpacked", _size_of_package), ("bytecode", size_of_files)):
            for folder in _folders(self._root / part):
                with contextlib.suppress(OSError):
                    entry = found.setdefault(folder.name, _Entry())
                    entry.bytes += size_of(folder)
                    entry.used_at = max(entry.used_at, folder.stat().st_mtime)
        return found

    def _unused(self, entries: dict[str, _Entry]) -> list[str]:
        """The packages that may be deleted, least recently used first."""
        kept = self._leased() | self._of_images()
        return sorted((sha256 for sha256 in entries if sha256 not in kept), key=lambda name: entries[name].used_at)

    def _leased(self) -> set[str]:
        """The packages that live processes use, including this one. Deletes the leases of processes that have ended.
        Only for use inside `_alone`."""
        found = set(self._own)
        for file in (self._root / "leases").iterdir():
            if file != self._lease:
                found.update(_leased_by(file))
        return found

    def _of_images(self) -> set[str]:
        """The packages that were prepared or are in boot images: guests mount them without a lease."""
        kept: set[str] = set()
        home = self._root.parent
        for listing, key in [
            (home / "setup.json", "wheels"),
            *((each, "packages") for each in home.glob("images/*.json")),
        ]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                kept.update(str(package["sha256"]) for package in json.loads(listing.read_text("utf-8"))[key])
        return kept

    def _delete(self, sha256: str) -> None:
        """Delete a package atomically for other processes: it is renamed away first."""
        with tempfile.TemporaryDirectory(dir=self._root / "tmp", ignore_cleanup_errors=True) as grave:
            for part in ("unpacked", "bytecode", "wheels"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self._root / part / sha256, Path(grave) / part)


def trim(folder: Path, max_files: int) -> None:
    """Delete the older half of a folder's files when there are too many. Raises OSError."""
    found = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    if len(found) > max_files:
        for entry in sorted(found, key=lambda entry: entry.stat().st_mtime)[: len(found) // 2]:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _leased_by(lease: Path) -> list[str]:
    """The packages of another process's lease. None if it ends meanwhile."""
    try:
        fd = os.open(lease, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with open(fd, "rb", closefd=False) as stream:
            return stream.read().decode().split()
    else:
        lease.unlink(missing_ok=True)
        return []
    finally:
        os.close(fd)


def size_of_files(folder: Path) -> int:
    """The disk space of a folder with its files and folders, in bytes. A file that vanishes meanwhile counts as 0."""
    total = 0
    for parent, _, files in os.walk(folder):
        total += _BLOCK_BYTES
        for name in files:
            with contextlib.suppress(OSError):
                total += -(-os.lstat(os.path.join(parent, name)).st_size // _BLOCK_BYTES) * _BLOCK_BYTES + _BLOCK_BYTES
    return total


def _size_of_package(folder: Path) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / STAMP).read_text("utf-8"))["bytes"])
    return size_of_files(folder)


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def delete_abandoned(folder: Path) -> None:
    """Delete a staging folder if its process has ended: then its lock is free."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # its process is alive
    finally:
        os.close(fd)
