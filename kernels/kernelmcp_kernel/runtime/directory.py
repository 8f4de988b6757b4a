"""The two directories that a guest may write: `workspace/` (its /workspace) and `tmp/` (its /tmp).

The folder above them is for this process only: while a guest may live it is sealed (docs/design.md 48). A server names
the directory in KERNELMCP_SANDBOX_DIRECTORY and owns it. Otherwise the kernel creates a private one and deletes it at
its end. Jupyter restarts a kernel with the same connection file, by which the kernel finds its files. Each private
directory is locked while its kernel lives, and abandoned ones are deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from kernelmcp_kernel.settings import settings

# How long the files of a killed kernel are kept for its restart, in seconds since the kill was noticed.
_KEPT_SECONDS = 24 * 3600

# How long a sweep may hold the lock of a directory that it does not delete.
_SWEEP_SECONDS = 1.0

# Maximum size of a lock file, which contains a path and a time.
_MAX_NOTE_BYTES = 8192


class SandboxDirectory:
    """A guest's directories on the host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workspace = path / "workspace"
        self.tmp = path / "tmp"
        for folder in (self.workspace, self.tmp):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _delete(self.offered)
        self.offered.mkdir(mode=0o700)  # created now: guests may read only folders that existed when they started
        if settings().guest_uid is not None:
            self.offered.chmod(0o755)  # for guests that run as another user; the folder above controls access

    @property
    def offered(self) -> Path:
        """The files of offered MCP servers (offered_files.py), which guests may read.

        It is not in the directory but beside it: Landlock's rules cannot exclude a folder below another.
        """
        return self.path.with_name(f"{self.path.name}-offered")

    @property
    def writable(self) -> list[Path]:
        """The paths in the operating system's rules for a guest.

        On Linux it is the folder above: Landlock's rules belong to directories and not to names, and a server moves a
        session's workspace into it while a guest lives. There, `seal` protects the folder itself.
        """
        return [self.path] if sys.platform == "linux" else [self.workspace, self.tmp]

    def seal(self, *, passable: bool = False) -> None:
        """Prevent all users but root from creating, renaming or deleting anything beside workspace and tmp. A guest
        cannot undo it: its system calls that change modes do nothing. `passable`: guests run as another user."""
        self.path.chmod(0o511 if passable else 0o500)

    def close(self, *, keep_files: bool = False) -> None:
        """Unseal the directory. Its files are kept in any case: they belong to the server that named it."""
        with contextlib.suppress(OSError):
            self.path.chmod(0o700)
        _delete(self.offered)


class PrivateDirectory(SandboxDirectory):
    """A sandbox directory that the kernel owns and deletes when it ends.

    `connection_file`: identifies the kernel after a restart; None: it cannot be restarted.
    """

    def __init__(self, connection_file: Path | None = None) -> None:
        home = _private_home()
        _sweep(home)
        path = home / _name_of(connection_file)
        lock = _wait_for(path)
        if lock is None:  # a kernel with the same connection file is alive
            connection_file = None
            path = home / _name_of(None)
            lock = _wait_for(path)
        if lock is None:
            raise BlockingIOError(f"{path} is in use")
        self._lock: int = lock
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, os.fsencode(connection_file.absolute()) if connection_file else b"", 0)
        if path.exists():
            path.chmod(0o700)  # the previous kernel was killed, and has left it sealed
        super().__init__(path)

    @property
    def offered(self) -> Path:
        return self.path / "offered"

    @property
    def writable(self) -> list[Path]:
        """Exactly these two: no server moves anything in here."""
        return [self.workspace, self.tmp]

    def close(self, *, keep_files: bool = False) -> None:
        """Delete the directory, or leave it to the kernel that replaces this one."""
        if keep_files:
            super().close()
        else:
            _delete(self.path)
            if not self.path.exists():  # otherwise its lock file stays, for the next sweep
                _lock_file(self.path).unlink(missing_ok=True)
        os.close(self._lock)


def open_directory(connection_file: Path | None = None) -> SandboxDirectory:
    """The sandbox directory from the environment, otherwise a private one."""
    named = settings().sandbox
    return SandboxDirectory(named) if named else PrivateDirectory(connection_file)


def _name_of(connection_file: Path | None) -> str:
    """The name of a private directory: the same for the same connection file with the same key."""
    if connection_file is None:
        return f"sandbox-{secrets.token_hex(8)}"
    connection = json.loads(connection_file.read_bytes())
    if not isinstance(connection, dict):
        raise ValueError(f"{connection_file} is not a connection file")
    key = str(cast("dict[str, Any]", connection).get("key"))
    known_by = os.fsencode(connection_file.absolute()) + b"\0" + key.encode()
    return f"sandbox-{hashlib.sha256(known_by).hexdigest()[:16]}"


def _wait_for(sandbox: Path) -> int | None:
    """Lock a private directory; None if a kernel has it. A sweep holds the lock only for a moment."""
    until = time.monotonic() + _SWEEP_SECONDS
    while (fd := _lock(sandbox)) is None and time.monotonic() < until:
        time.sleep(0.02)
    return fd


def _lock(sandbox: Path) -> int | None:
    """Lock a private directory, which need not exist yet. None: another process has it."""
    fd = os.open(_lock_file(sandbox), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_named(fd, _lock_file(sandbox)):  # otherwise a sweep came between the two calls
            return fd
    os.close(fd)
    return None


def _private_home() -> Path:
    home = Path(tempfile.gettempdir()) / f"kernelmcp-sandboxes-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o066 or home.is_symlink():
        raise PermissionError(f"{home} belongs to somebody else; remove it, or set TMPDIR to a directory of yours")
    if settings().guest_uid is not None:
        home.chmod(0o711)  # another user's guests pass through it, but cannot list it
    return home


def _delete(sandbox: Path) -> None:
    """Delete a sandbox directory that no guest uses any longer. Its contents may be nested too deeply for
    shutil.rmtree, and for any path: each directory is moved to the top first. Files that cannot be deleted stay."""
    prefix = secrets.token_hex(8)
    numbers = itertools.count()
    with contextlib.suppress(OSError):
        sandbox.chmod(0o700)  # it was sealed
        folders = [folder for folder in sandbox.iterdir() if folder.is_dir() and not folder.is_symlink()]
        while folders:
            folder = folders.pop()
            folder.chmod(0o700)  # a guest can create directories without read permission
            for entry in list(os.scandir(folder)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    folders.append(sandbox / f"{prefix}-{next(numbers)}")
                    os.rename(entry.path, folders[-1])
                else:
                    os.unlink(entry.path)
            folder.rmdir()
    shutil.rmtree(sandbox, ignore_errors=True)


def _lock_file(sandbox: Path) -> Path:
    return sandbox.with_suffix(".lock")


def _is_named(fd: int, path: Path) -> bool:
    """Return whether the path still names the open file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(fd))


def _sweep(home: Path) -> None:
    """Delete what killed kernels left behind: unlocked directories whose kernel will not be restarted."""
    for lock_file in home.glob("sandbox-*.lock"):
        try:
            fd = _lock(lock_file.with_suffix(""))
        except OSError:
            continue  # not ours
        if fd is None:
            continue  # its kernel is alive, or has just cleaned up
        try:
            if not _may_come_back(fd):
                _delete(lock_file.with_suffix(""))
                lock_file.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            os.close(fd)


def _may_come_back(lock: int) -> bool:
    """Return whether Jupyter may restart the kernel: it has kept the connection file. If Jupyter itself was killed, the
    file may stay forever: the first sweep that sees it records the time."""
    connection_file, _, noted = os.pread(lock, _MAX_NOTE_BYTES, 0).partition(b"\0")
    if not connection_file or not os.path.exists(connection_file):
        return False
    now = time.time()
    if not noted:
        os.pwrite(lock, b"\0%d" % now, len(connection_file))
        return True
    return noted.isdigit() and now - int(noted) < _KEPT_SECONDS
