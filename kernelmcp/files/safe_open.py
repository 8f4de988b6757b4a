"""Opens files below a directory that a hostile program may change at any moment, and deletes such directories.

Nothing is opened by a path that could lead through a link: one openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS if
the operating system supports it (tried once), else a walk that opens each component relative to the previous descriptor
with O_NOFOLLOW. Must not know sessions.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_OPENAT2 = 437  # the same number on every architecture
_RESOLVE = 0x02 | 0x04 | 0x08  # no magic links, no symbolic links, beneath the directory
_PATH_MAX = 4096
# Any concurrent rename makes openat2 return EAGAIN; for a guest that never stops renaming, the walk is used.
_ATTEMPTS = 8
# A running guest may create files faster than they are deleted.
_DELETE_ROUNDS = 100
MAY_READ, MAY_WRITE, MAY_ENTER = 0o4, 0o2, 0o1
# Errors after such a guest has changed an entry that was just read: it is gone, of another type, or no longer empty.
_CHANGED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST}


def open_beneath(directory: int, parts: Sequence[str], flags: int, mode: int = 0, *, reader: int | None = None) -> int:
    """Open `parts` below a directory; returns a descriptor. Raises OSError: ELOOP or ENOTDIR for a link on the way.

    `reader`: a server that is root opens it for this user, and only if that user could read it.
    """
    if not parts:
        return os.open(".", flags, dir_fd=directory)
    if reader and os.geteuid() == 0:
        return _walk(directory, parts, flags, mode, reader)
    if _has_openat2():
        for _ in range(_ATTEMPTS):
            try:
                return _openat2(directory, "/".join(parts), flags, mode)
            except BlockingIOError:
                continue
            except OSError as exc:
                if exc.errno == errno.EXDEV:  # a component was moved out meanwhile
                    continue
                raise
    return _walk(directory, parts, flags, mode)


def _walk(directory: int, parts: Sequence[str], flags: int, mode: int, reader: int | None = None) -> int:
    if sum(map(len, parts)) + len(parts) > _PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))  # as openat2
    fd = directory
    try:
        for part in parts[:-1]:
            above, fd = fd, os.open(part, DIRECTORY, dir_fd=fd)
            if above != directory:
                os.close(above)
            check_right(fd, reader, MAY_ENTER)
        found = os.open(parts[-1], flags | os.O_NOFOLLOW, mode, dir_fd=fd)
    finally:
        if fd != directory:
            os.close(fd)
    try:
        check_right(found, reader, MAY_READ)
    except BaseException:
        os.close(found)
        raise
    return found


def check_right(fd: int, reader: int | None, right: int) -> None:
    """Raises PermissionError if that user, whose only group has the same number, lacks this permission."""
    if reader is None:
        return
    found = os.fstat(fd)
    shift = 6 if found.st_uid == reader else 3 if found.st_gid == reader else 0
    if found.st_mode >> shift & right != right:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@cache
def _has_openat2() -> bool:
    """Linux 5.6 and later, unless a container's filter denies it."""
    if sys.platform != "linux":
        return False
    try:
        root = os.open("/", DIRECTORY)
        try:
            os.close(_openat2(root, ".", DIRECTORY, 0))
        finally:
            os.close(root)
    except OSError:
        return False
    return True


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _openat2(directory: int, path: str, flags: int, mode: int) -> int:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise OSError(errno.EINVAL, "a NUL character in a path")
    how = struct.pack("QQQ", flags, mode, _RESOLVE)
    fd = int(_libc().syscall(_OPENAT2, directory, encoded, how, ctypes.c_size_t(len(how))))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def reveal(name: str, directory: int) -> None:
    """Make a directory readable for its owner: a guest can remove that permission. Raises OSError."""
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=directory, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | DIRECTORY, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def check_may_make(directory: int, user: int | None) -> None:
    """Raises PermissionError if a server that is root acts for a user who could create no file there."""
    if user and os.geteuid() == 0:
        check_right(directory, user, MAY_WRITE | MAY_ENTER)


def open_made(directory: int, name: str, mode: int = 0o700, *, user: int | None = None) -> int:
    """Open a directory, and create it if it is missing; returns a descriptor. `user`: a server that is root acts for
    this user, and only where that user could. Raises OSError."""
    try:
        fd = os.open(name, DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        check_may_make(directory, user)
        os.mkdir(name, mode, dir_fd=directory)
        fd = os.open(name, DIRECTORY, dir_fd=directory)
        is_new = True
    else:
        is_new = False
    try:
        if is_new:
            give_to_owner(fd, directory, user)
        elif user and os.geteuid() == 0:
            check_right(fd, user, MAY_ENTER)
    except BaseException:
        os.close(fd)
        raise
    return fd


def give_to_owner(fd: int, directory: int, user: int | None = None) -> None:
    """If the server is root and the guest another user, give the new entry to `user`, or to the directory's owner.
    Raises OSError."""
    if os.geteuid() != 0:
        return
    found = os.fstat(directory)
    if user:
        os.fchown(fd, user, user)
    elif found.st_uid != 0:
        os.fchown(fd, found.st_uid, found.st_gid)


def delete_tree(path: Path) -> None:
    """Delete a file or a tree of any depth. Anything that cannot be deleted stays; raises no error."""
    with suppress(OSError):
        empty_tree(path)
        path.rmdir()
    with suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()


def delete_for_good(path: Path) -> None:
    """Delete a file or a tree of any depth. Raises OSError if something cannot be deleted."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    empty_tree(path)
    path.rmdir()


def empty_tree(path: Path) -> None:
    """Delete everything in a directory, even if a guest moves entries in it meanwhile. Raises OSError if there is no
    directory, or if something cannot be deleted.

    Not shutil.rmtree: that is recursive, and a guest can nest directories deeper than any stack or limit of
    descriptors. Here each nested directory is moved to the top before its turn comes, so at most two are open.
    """
    top = os.open(path, DIRECTORY)
    try:
        numbers = iter(range(sys.maxsize))
        prefix = os.urandom(8).hex()
        for _ in range(_DELETE_ROUNDS):
            folders = _delete_files(top)
            if not folders and not os.listdir(top):
                return
            while folders:
                name = folders.pop()
                with _unless_changed():
                    _move_to_top(top, name, folders, lambda: f".{prefix}-{next(numbers)}")
                    os.rmdir(name, dir_fd=top)
        raise OSError(errno.EBUSY, "files are being made faster than they are deleted", str(path))
    finally:
        os.close(top)


def _move_to_top(top: int, name: str, folders: list[str], new_name: Callable[[], str]) -> None:
    """Empty a directory: its files go, its directories move to the top."""
    try:
        _empty_to_top(top, name, folders, new_name)
    except PermissionError:  # a guest can make a directory that even its owner may not read, change or enter
        reveal(name, top)
        _empty_to_top(top, name, folders, new_name)


def _empty_to_top(top: int, name: str, folders: list[str], new_name: Callable[[], str]) -> None:
    fd = os.open(name, DIRECTORY, dir_fd=top)
    try:
        for inner in _delete_files(fd):
            moved = new_name()
            with _unless_changed():
                try:
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top)
                except PermissionError:  # moving a directory requires permission to write in it
                    reveal(inner, fd)
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top)
                folders.append(moved)
    finally:
        os.close(fd)


def _delete_files(fd: int) -> list[str]:
    """Delete everything in a directory except directories; returns their names."""
    with os.scandir(fd) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_dir in entries:
        if not is_dir:
            with _unless_changed():
                os.unlink(name, dir_fd=fd)
    return [name for name, is_dir in entries if is_dir]


@contextmanager
def _unless_changed() -> Iterator[None]:
    """Ignore errors of changed entries; the next round handles them."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _CHANGED:
            raise
