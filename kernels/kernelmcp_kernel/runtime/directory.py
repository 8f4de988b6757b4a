"""The two directories that a guest may write: `workspace/` (its /workspace) and `tmp/` (its /tmp).

The folder above them is for this process alone: while a guest may live it is sealed (docs/design.md 48).
A server names the directory in KERNELMCP_SANDBOX_DIRECTORY and owns it. Without that the kernel makes a private one,
deletes it at its end, and sweeps those of kernels that were killed: each private directory is locked for as long as its
kernel lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from kernelmcp_kernel.settings import settings


class SandboxDirectory:
    """A guest's directories on the host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workspace = path / "workspace"
        self.tmp = path / "tmp"
        for folder in (self.workspace, self.tmp):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

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

    def close(self) -> None:
        """Unseal the directory. Its files stay: they belong to the server that named it."""
        with contextlib.suppress(OSError):
            self.path.chmod(0o700)


class PrivateDirectory(SandboxDirectory):
    """A sandbox directory of the kernel's own, deleted when the kernel ends."""

    def __init__(self) -> None:
        home = _private_home()
        _sweep(home)
        while True:
            path = home / f"sandbox-{secrets.token_hex(8)}"
            self._lock = os.open(_lock_file(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if _is_named(self._lock, _lock_file(path)):
                break
            os.close(self._lock)  # a sweep came between the two calls, and took it for a dead kernel's
        super().__init__(path)

    @property
    def writable(self) -> list[Path]:
        """Exactly the two: no server moves anything in here."""
        return [self.workspace, self.tmp]

    def close(self) -> None:
        _delete(self.path)
        if not self.path.exists():  # else its lock file stays, by which the next sweep finds it
            _lock_file(self.path).unlink(missing_ok=True)
        os.close(self._lock)


def open_directory() -> SandboxDirectory:
    """The sandbox directory that the environment names, else a private one."""
    named = settings().sandbox
    return SandboxDirectory(named) if named else PrivateDirectory()


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
    """Delete what killed kernels left: sandbox directories whose lock is free."""
    for lock_file in home.glob("sandbox-*.lock"):
        try:
            fd = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(fd, lock_file):  # else its kernel has just cleaned up for itself
                _delete(lock_file.with_suffix(""))
                lock_file.unlink(missing_ok=True)
        except OSError:
            pass  # its kernel lives
        finally:
            os.close(fd)
