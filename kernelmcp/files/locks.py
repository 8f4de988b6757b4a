"""Locks on files: whoever has one owns what is beside it, and is alive. They are held with flock, so a crash releases
them, unlike a pid in a file. Must not know kernels or MCP.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kernelmcp.config.models import SLOT
from kernelmcp.errors import SessionDamaged, SessionInUse, StorageFailed

# In the directory of a session or a server: whoever has it locked owns the directory.
LOCK_FILE = "lock"
LOCK_ATTEMPTS = 5
# `owner_of_lock` holds a lock for less.
LOOK_SECONDS = 0.002
# The name of a server among several with one home (`server.slot`).
MAX_SLOT_BYTES = 24
_SLOT = re.compile(SLOT)


class Lock:
    """An flock on a file, held until closed or until the process ends."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def note(self, text: str) -> None:
        """Write who has it. Raises OSError."""
        if os.pread(self._fd, MAX_SLOT_BYTES + 1, 0) != text.encode():
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def is_at(self, path: Path) -> bool:
        """True if the locked file is still the one of this name: who has the lock of a deleted one has nothing. Raises
        OSError."""
        try:
            return os.path.samestat(os.fstat(self._fd), path.lstat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def free_place(place: Path) -> Iterator[bool]:
    """True if no server has the session at this place, and none gets it meanwhile. Raises OSError."""
    if not place.is_dir():
        yield False
        return
    with closing(Lock(place / LOCK_FILE)) as lock:
        yield lock.try_acquire()


def owner_of_lock(place: Path) -> str | None:
    """The slot of the server that has a session's lock; None if none has, or one without a slot. Raises OSError."""
    try:
        fd = os.open(place / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        slot = os.read(fd, MAX_SLOT_BYTES + 1).decode(errors="replace")
        if _SLOT.fullmatch(slot) is None:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return slot
    finally:
        os.close(fd)
    return None


def lock_session(directory: Path, session_id: str, *, make: bool = True, slot: str | None = None) -> Lock:
    """Lock a session for this server: two servers may share one home (two clients on one machine), but not a session.
    `make` creates its directory if there is none. `slot`: of this server.

    Raises `SessionInUse` if another server has it, `SessionDamaged`, `StorageFailed`.
    """
    file = directory / LOCK_FILE
    try:
        is_deleted = True
        for _ in range(LOCK_ATTEMPTS):
            if make:
                directory.mkdir(mode=0o700, exist_ok=True)
            lock = Lock(file)
            try:
                if lock.try_acquire() and lock.is_at(file):
                    lock.note(slot or "")
                    return lock
                is_deleted = not lock.is_at(file)
            except BaseException:
                lock.close()
                raise
            lock.close()
            if not is_deleted:  # another server has it or, if there are others, has just looked who has it
                if slot is None:
                    break
                time.sleep(LOOK_SECONDS)
        else:
            if is_deleted:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    except (IsADirectoryError, FileExistsError) as exc:
        raise SessionDamaged(
            f"session {session_id!r} cannot be locked: its lock is not a regular file in a directory",
            "The server's operator must move it away (the log says where), or use another session_id.",
            session_id=session_id,
            path=str(exc.filename),
        ) from exc
    except OSError as exc:
        raise StorageFailed(
            f"session {session_id!r} cannot be opened: {exc.strerror}",
            "The operator should check its home directory: it must exist and be writable.",
            session_id=session_id,
            path=str(exc.filename or file),
        ) from exc
    raise SessionInUse(
        f"session {session_id!r} is in use by another kernelmcp server on this machine"
        if slot is None
        else f"session {session_id!r} is in use by another kernelmcp server with this home",
        "Use another session_id, or omit it to get your own session." if slot is None else "Call again.",
        session_id=session_id,
    )
