"""The session's folders as the shell sees them: /workspace, /tmp and /volumes/NAME, some devices, and nothing else. A
convenience, never a boundary: the operating system decides where links lead and what a process may access.

All paths are the shell's: absolute, as text. Errors are OSErrors with the messages that programs use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelmcp_shell.quota import Quota

# A bashkit command holds a whole file in memory, several times over.
MAX_READ_BYTES = 64 * 1024 * 1024

STANDARD_INPUT = "/dev/shell-input"
"""The standard input of a request's commands."""

_MAX_CHANGED = 1000
_COPY_BYTES = 1 << 20
# A device is a finite file: bashkit reads whole files. More than a pipe holds, so that `cat /dev/zero` is refused.
_ZERO_BYTES = 40 << 20
_RANDOM_BYTES = 4 << 20
_OPEN = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a pipe in a folder would otherwise block forever


class Folder(NamedTuple):
    """A folder of the host, and its path in the shell. `noted`: the prefix of its files' paths in the list of changed
    files; None: its files are not listed."""

    point: str
    root: str
    counted: bool = False
    noted: str | None = None
    read_only: bool = False


class Facts(NamedTuple):
    """A file's metadata. `kind`: FILE, FOLDER or LINK. `modified`: seconds since 1970."""

    kind: int
    size: int
    mode: int
    modified: float


FILE, FOLDER, LINK = range(3)  # bashkit's own numbers
_NO_FOLDER, _A_DEVICE = Facts(FOLDER, 0, 0o555, 0.0), Facts(FILE, 0, 0o666, 0.0)


class Files:
    def __init__(self, folders: list[Folder], quota: Quota) -> None:
        self._folders = folders
        self._quota = quota
        self._modes: dict[str, int] = {}  # the system lets no guest change modes: a script's changes are kept here
        self._changed: dict[str, None] = {}
        self.standard_input = b""
        self._devices: dict[str, Callable[[], bytes]] = {
            "/dev/null": lambda: b"",
            "/dev/zero": lambda: bytes(_ZERO_BYTES),
            "/dev/random": lambda: os.urandom(_RANDOM_BYTES),
            "/dev/urandom": lambda: os.urandom(_RANDOM_BYTES),
            STANDARD_INPUT: lambda: self.standard_input,
        }
        # Folders that exist only because others are below them.
        self._above: dict[str, set[str]] = {"/": {"dev"}, "/dev": {"null", "zero", "random", "urandom"}}
        for folder in folders:
            above, name = posixpath.split(folder.point)
            self._above.setdefault(above, set()).add(name)
            if above != "/":
                self._above["/"].add(above.strip("/"))

    def take_changed(self) -> list[str]:
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def read(self, path: str) -> bytes:
        if (device := self._devices.get(path)) is not None:
            return device()
        _, file = self._find(path)
        fd = os.open(file, os.O_RDONLY | _OPEN)
        try:
            size = _regular(fd)
            if size > MAX_READ_BYTES:
                raise OSError(errno.EFBIG, f"File too large for the shell, which reads {MAX_READ_BYTES >> 20} MiB")
            pieces: list[bytes] = []
            while size >= 0 and (piece := os.read(fd, MAX_READ_BYTES)):
                pieces.append(piece)
                size -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)

    def write(self, path: str, content: memoryview | bytes, *, append: bool = False) -> None:
        if path in self._devices:
            return
        folder, file = self._to_change(path)
        fd = self._open_to_write(folder, file)
        try:
            before = _regular(fd)
            kept = before if append else 0
            if folder.counted:
                self._quota.reserve(kept + len(content) - before, 0)
            os.lseek(fd, kept, os.SEEK_SET)
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if not append:
                os.ftruncate(fd, len(content))
        finally:
            os.close(fd)
        self._note(folder, file)

    def _open_to_write(self, folder: Folder, file: str) -> int:
        try:
            return os.open(file, os.O_WRONLY | _OPEN)
        except FileNotFoundError:
            if folder.counted:
                self._quota.reserve(0, 1)
            return os.open(file, os.O_WRONLY | os.O_CREAT | _OPEN, 0o666)

    def stat(self, path: str, *, follow: bool = True) -> Facts:
        if path in self._devices or path in self._above:
            return _A_DEVICE if path in self._devices else _NO_FOLDER
        _, file = self._find(path)
        return self._facts(os.stat(file, follow_symlinks=follow), file)

    def is_read_only(self, path: str) -> bool:
        """True if nothing there may be changed, whatever its mode."""
        with contextlib.suppress(FileNotFoundError):
            return self._find(path)[0].read_only
        return False

    def exists(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.stat(path))
        return False

    def list(self, path: str) -> list[tuple[str, Facts]]:
        if (names := self._above.get(path)) is not None:
            return [(name, self.stat(posixpath.join(path, name))) for name in sorted(names)]
        _, file = self._find(path)
        with os.scandir(file) as entries:
            found = [(os.fsencode(entry.name).decode("utf-8", "replace"), entry) for entry in entries]
        listed: list[tuple[str, Facts]] = []
        for name, entry in sorted(found, key=lambda each: each[0]):
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                listed.append((name, self._facts(entry.stat(follow_symlinks=False), entry.path)))
        return listed

    def make_folder(self, path: str, *, parents: bool) -> None:
        if self.exists(path):
            if parents and self.stat(path).kind == FOLDER:
                return
            raise FileExistsError(errno.EEXIST, "File exists")
        folder, file = self._to_change(path)
        if parents and not os.path.isdir(os.path.dirname(file)):
            self.make_folder(posixpath.dirname(path), parents=True)
        if folder.counted:
            self._quota.reserve(0, 1)
        os.mkdir(file)
        self._note(folder, file)

    def remove(self, path: str, *, recursive: bool) -> None:
        folder, file = self._to_change(path)
        if file == folder.root:
            raise OSError(errno.EBUSY, "Device or resource busy")
        found = os.lstat(file)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(file)
            if folder.counted:
                self._quota.reserve(-found.st_size, -1)
        elif recursive:
            _remove_tree(file)
        else:
            os.rmdir(file)
        self._take_modes(file, is_folder=stat.S_ISDIR(found.st_mode))
        self._note(folder, file)

    def rename(self, source: str, target: str) -> None:
        came_from, old = self._to_change(source)
        folder, new = self._to_change(target)
        if old == came_from.root or new == folder.root:
            raise OSError(errno.EBUSY, "Device or resource busy")
        try:
            os.rename(old, new)
        except OSError as error:
            if error.errno != errno.EXDEV or os.path.isdir(old):
                raise
            self.copy(source, target, with_mode=True)
            os.unlink(old)
        is_folder = os.path.isdir(new)
        modes = self._take_modes(old, is_folder=is_folder)
        self._take_modes(new, is_folder=is_folder)
        self._modes |= {new + name[len(old) :]: mode for name, mode in modes.items()}
        if came_from.noted is not None and self._changed.pop(_listed(came_from, old), old) is not None:
            self._note(came_from, old)  # otherwise it is a temporary file: `sed -i` writes beside the file
        self._note(folder, new)

    def touch(self, path: str, *, create: bool) -> None:
        """Create an empty file, or set the modification time of a file or folder to now."""
        if path in self._devices or (not create and not self.exists(path)):
            return
        folder, file = self._to_change(path)
        if os.path.isdir(file):
            return
        fd = self._open_to_write(folder, file)
        try:
            os.ftruncate(fd, _regular(fd))
        finally:
            os.close(fd)
        self._note(folder, file)

    def copy(self, source: str, target: str, *, with_mode: bool = False) -> None:
        """A file that is there keeps its mode, unless `with_mode`."""
        if source in self._devices:
            self.write(target, self.read(source))
            return
        _, old = self._find(source)
        is_there = self.exists(target)
        if is_there and target not in self._devices and os.path.samefile(old, self._find(target)[1]):
            raise OSError(errno.EINVAL, "are the same file")  # otherwise it would be emptied first
        fd = os.open(old, os.O_RDONLY | _OPEN)
        try:
            _regular(fd)
            self.write(target, b"")
            while piece := os.read(fd, _COPY_BYTES):
                self.write(target, piece, append=True)
        finally:
            os.close(fd)
        if target not in self._devices and (with_mode or not is_there):
            _, new = self._find(target)
            self._modes.pop(new, None)
            if (mode := self._modes.get(old)) is not None:
                self._modes[new] = mode

    def link(self, target: str, path: str) -> None:
        _, file = self._to_change(path)
        os.symlink(target, file)  # the system refuses: no guest creates links

    def read_link(self, path: str) -> str:
        return os.readlink(self._find(path)[1])

    def change_mode(self, path: str, mode: int) -> None:
        folder, file = self._to_change(path)
        os.stat(file)
        if len(self._modes) < self._quota.limits["max_files"]:
            self._modes[file] = mode & 0o7777
        self._note(folder, file)

    def _find(self, path: str) -> tuple[Folder, str]:
        """A path's folder and its path on the host. Raises FileNotFoundError if there is none."""
        whole = posixpath.normpath("/" + path.lstrip("/"))
        for folder in self._folders:
            if whole == folder.point:
                return folder, folder.root
            if whole.startswith(folder.point + "/"):
                return folder, folder.root + whole[len(folder.point) :]
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    def _to_change(self, path: str) -> tuple[Folder, str]:
        with contextlib.suppress(FileNotFoundError):
            folder, file = self._find(path)
            if not folder.read_only:
                return folder, file
        raise OSError(errno.EROFS, "Read-only file system")

    def _take_modes(self, file: str, *, is_folder: bool) -> dict[str, int]:
        """The modes of a file, or of a folder and all below it, which are no longer kept."""
        below = [name for name in self._modes if name.startswith(f"{file}/")] if is_folder else []
        return {name: self._modes.pop(name) for name in (file, *below) if name in self._modes}

    def _facts(self, found: os.stat_result, file: str) -> Facts:
        kind = LINK if stat.S_ISLNK(found.st_mode) else FOLDER if stat.S_ISDIR(found.st_mode) else FILE
        usual = 0o755 if kind == FOLDER or found.st_mode & stat.S_IXUSR else 0o644
        return Facts(kind, found.st_size, self._modes.get(file, usual), found.st_mtime)

    def _note(self, folder: Folder, file: str) -> None:
        if folder.noted is not None and len(self._changed) < _MAX_CHANGED:
            self._changed[_listed(folder, file)] = None


def _listed(folder: Folder, file: str) -> str:
    return f"{folder.noted}{file[len(folder.root) + 1 :]}"


def _regular(fd: int) -> int:
    """The size of a regular file. Raises OSError for anything else."""
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")
    return found.st_size


def _remove_tree(top: str) -> None:
    pending = [top]
    folders: list[str] = []
    while pending:
        folders.append(current := pending.pop())
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    os.unlink(entry.path)
    for folder in reversed(folders):
        os.rmdir(folder)
