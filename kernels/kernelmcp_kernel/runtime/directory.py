"""The two directories that a guest may write: `workspace/` (its /workspace) and `tmp/` (its /tmp).

The folder above them is for this process alone: while a guest may live it is sealed (docs/design.md 48).
A server names the directory in KERNELMCP_SANDBOX_DIRECTORY and owns it. Without that the kernel makes a private one and
deletes it at its end. Jupyter starts a kernel again with the connection file that it had, by which it finds its files.
Each private directory is locked for as long as its kernel lives, and those that nobody will come back to are swept.
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

# How long the files of a kernel that was killed wait for it to be started again, in seconds from when that was noticed.
_KEPT_SECONDS = 24 * 3600

# How long a sweep may hold the lock of a directory that it leaves.
_SWEEP_SECONDS = 1.0

# Of a lock file, which holds a path and a time.
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
        self.offered.mkdir(mode=0o700)  # now: guests may read only what was there when they started
        if settings().guest_uid is not None:
            self.offered.chmod(0o755)  # for guests that are another user; who may get here is said by the folder above

    @property
    def offered(self) -> Path:
        """The files of offered MCP servers (offered.py), which guests may read.

        Not in the directory but beside it: what lies below a folder of Landlock's rules cannot be excepted from them.
        """
        return self.path.with_name(f"{self.path.name}-offered")

    @property
    def writable(self) -> list[Path]:
        """What the operating system's rules for a guest name.

        On Linux it is the folder above: Landlock's rules belong to directories and not to their names, and a server
        moves a session's workspace in under a guest that lives. There, `seal` keeps the folder itself shut.
        """
        return [self.path] if sys.platform == "linux" else [self.workspace, self.tmp]

    def seal(self, *, passable: bool = False) -> None:
        """Let nobody without a root's rights make, rename or delete anything beside workspace and tmp. A guest cannot
        take it back: its system calls that change modes do nothing. `passable`: guests are another user."""
        self.path.chmod(0o511 if passable else 0o500)

    def close(self, *, keep_files: bool = False) -> None:
        """Unseal the directory. Its files stay whatever is said: they belong to the server that named it."""
        with contextlib.suppress(OSError):
            self.path.chmod(0o700)
        _delete(self.offered)


class PrivateDirectory(SandboxDirectory):
    """A sandbox directory of the kernel's own, deleted when the kernel ends.

    `connection_file`: by which the kernel is found again after a restart; None: it is not.
    """

    def __init__(self, connection_file: Path | None = None) -> None:
        home = _private_home()
        _sweep(home)
        path = home / _name_of(connection_file)
        lock = _wait_for(path)
        if lock is None:  # a kernel with the same connection file lives
            connection_file = None
            path = home / _name_of(None)
            lock = _wait_for(path)
        if lock is None:
            raise BlockingIOError(f"{path} is in use")
        self._lock: int = lock
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, os.fsencode(connection_file.absolute()) if connection_file else b"", 0)
        if path.exists():
            path.chmod(0o700)  # the one before was killed, and has left it sealed
        super().__init__(path)

    @property
    def offered(self) -> Path:
        return self.path / "offered"

    @property
    def writable(self) -> list[Path]:
        """Exactly the two: no server moves anything in here."""
        return [self.workspace, self.tmp]

    def close(self, *, keep_files: bool = False) -> None:
        """Delete the directory, or leave it to the kernel that is started in place of this one."""
        if keep_files:
            super().close()
        else:
            _delete(self.path)
            if not self.path.exists():  # else its lock file stays, by which the next sweep finds it
                _lock_file(self.path).unlink(missing_ok=True)
        os.close(self._lock)


def open_directory(connection_file: Path | None = None) -> SandboxDirectory:
    """The sandbox directory that the environment names, else a private one."""
    named = settings().sandbox
    return SandboxDirectory(named) if named else PrivateDirectory(connection_file)


def _name_of(connection_file: Path | None) -> str:
    """Of a private directory: the same for the same connection file, as long as that has the same key."""
    if connection_file is None:
        return f"sandbox-{secrets.token_hex(8)}"
    connection = json.loads(connection_file.read_bytes())
    if not isinstance(connection, dict):
        raise ValueError(f"{connection_file} is no connection file")
    key = str(cast("dict[str, Any]", connection).get("key"))
    known_by = os.fsencode(connection_file.absolute()) + b"\0" + key.encode()
    return f"sandbox-{hashlib.sha256(known_by).hexdigest()[:16]}"


def _wait_for(sandbox: Path) -> int | None:
    """Take a private directory; None where a kernel has it. A sweep has it for a moment only."""
    until = time.monotonic() + _SWEEP_SECONDS
    while (fd := _lock(sandbox)) is None and time.monotonic() < until:
        time.sleep(0.02)
    return fd


def _lock(sandbox: Path) -> int | None:
    """Take a private directory, which need not be there yet. None: somebody else has it."""
    fd = os.open(_lock_file(sandbox), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_named(fd, _lock_file(sandbox)):  # else a sweep came between the two calls
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
        home.chmod(0o711)  # another user's guests go through it, and list nothing
    return home


def _delete(sandbox: Path) -> None:
    """Delete a sandbox directory that no guest uses any more. What is in it may be nested deeper than shutil.rmtree can
    go, and than a path can say: each directory is moved to the top first. What cannot be deleted stays."""
    prefix = secrets.token_hex(8)
    numbers = itertools.count()
    with contextlib.suppress(OSError):
        sandbox.chmod(0o700)  # it was sealed
        folders = [folder for folder in sandbox.iterdir() if folder.is_dir() and not folder.is_symlink()]
        while folders:
            folder = folders.pop()
            folder.chmod(0o700)  # a guest can make directories without the right to read them
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
    """Whether the path still names the file that is open."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(fd))


def _sweep(home: Path) -> None:
    """Delete what killed kernels left: directories whose lock is free, and to which no kernel will come back."""
    for lock_file in home.glob("sandbox-*.lock"):
        try:
            fd = _lock(lock_file.with_suffix(""))
        except OSError:
            continue  # it is none of ours
        if fd is None:
            continue  # its kernel lives, or has just cleaned up for itself
        try:
            if not _may_come_back(fd):
                _delete(lock_file.with_suffix(""))
                lock_file.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            os.close(fd)


def _may_come_back(lock: int) -> bool:
    """Whether Jupyter may start the kernel again: it has kept the connection file. Some do so for ever, when they were
    killed themselves: the first sweep that sees it notes the time."""
    connection_file, _, noted = os.pread(lock, _MAX_NOTE_BYTES, 0).partition(b"\0")
    if not connection_file or not os.path.exists(connection_file):
        return False
    now = time.time()
    if not noted:
        os.pwrite(lock, b"\0%d" % now, len(connection_file))
        return True
    return noted.isdigit() and now - int(noted) < _KEPT_SECONDS
