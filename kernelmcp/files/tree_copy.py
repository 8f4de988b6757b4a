"""Copies a directory that hostile guest code has written: for forks of sessions, and for checkpoints. Blocking.

Nothing is opened through a link. The tree may be nested deeper than any limit of paths, descriptors or recursion, and
it may change meanwhile: a file that changes is copied as a mixture, an entry that is moved may be left out.

A checkpoint is a directory of the server's that nobody writes to: `files/` holds the copy, and the manifest records of
which version of a file each copy was made. So the next checkpoint can share unchanged files, as hard links. The
manifest is written last: a checkpoint without one is incomplete. Must not know sessions.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from kernelmcp.atomic import read_small, replace
from kernelmcp.errors import ResourceLimitExceeded
from kernelmcp.files.file_content import copy_content
from kernelmcp.files.listing import stored_bytes
from kernelmcp.files.paths import FREE_SPACE, printable
from kernelmcp.files.regular import FILE, NEW_FILE
from kernelmcp.files.safe_open import DIRECTORY, MAY_ENTER, check_right, delete_tree, open_beneath
from kernelmcp.files.tree_position import TreePosition, open_if_there
from kernelmcp.files.workspace import Quota

FILES = "files"
"""The directory of a checkpoint that holds the copied files."""
MANIFEST = "manifest.json"
MAX_NAMES = 10
MAX_NAME_CHARS = 200
# More than a file takes in the manifest: five numbers of 64 bits.
_RECORD_BYTES = 128
# Timestamps advance only every 10 ms: within that, a file can change again without getting another ctime.
_SETTLED_NS = 100_000_000
# The guest has removed a permission, or has just replaced the entry by one of another type.
_NOT_READABLE = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO}

_Version = tuple[int, int, int, int]
"""Of a source file: inode, size in bytes, mtime and ctime in ns. A guest can set any mtime, but no ctime."""
_T = TypeVar("_T")


@dataclass
class Copied:
    """The outcome of a copy. Bytes count as in a quota (`stored_bytes`); `new_bytes` excludes the `shared` files, which
    an earlier checkpoint has. `files` are regular ones; `entries` includes directories, links and what was left out.

    `left_out` counts pipes, sockets, devices and unreadable entries; `left_out_names` has the paths of some, printable
    and shortened.
    """

    files: int = 0
    entries: int = 0
    total_bytes: int = 0
    new_bytes: int = 0
    shared: int = 0
    left_out: int = 0
    left_out_names: list[str] = field(default_factory=list[str])

    def __add__(self, other: "Copied") -> "Copied":
        return Copied(
            self.files + other.files,
            self.entries + other.entries,
            self.total_bytes + other.total_bytes,
            self.new_bytes + other.new_bytes,
            self.shared + other.shared,
            self.left_out + other.left_out,
            [*self.left_out_names, *other.left_out_names][:MAX_NAMES],
        )


def copy_tree(source: Path, target: Path, quota: Quota, *, owner: int | None = None) -> Copied:
    """Copy a directory to `target`, which is created: files, directories and links, with permissions and mtimes.

    Pipes, sockets and devices are left out, and so are entries that the source's owner may not read. `owner`: a server
    that is root gives the copy to this user. Raises `ResourceLimitExceeded` if the source exceeds the quota, OSError;
    then there is no target.
    """
    with _opened(source) as found, _created(target) as made:
        return _TreeCopy(found, made, quota, owner=owner).run()


def save_checkpoint(source: Path, target: Path, quota: Quota, *, base: Path | None = None) -> Copied:
    """Copy a directory to a new checkpoint; `copy_tree(target / FILES, ...)` restores it.

    `base`: an earlier checkpoint of the same directory, with which unchanged files are shared. If it is missing,
    damaged or in another file system, they are copied. Raises as `copy_tree` does.
    """
    with _opened(source) as found, _created(target), _created(target / FILES) as made:
        with _opened_checkpoint(base, quota) as (base_files, base_versions):
            copy = _TreeCopy(found, made, quota, base=base_files, base_versions=base_versions)
            copied = copy.run()
        manifest = msgspec.json.encode(copy.versions)
        replace(target / MANIFEST, lambda out: out.write(manifest))
        return copied


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _created(directory: Path) -> Iterator[int]:
    """Create a directory and open it; if the block fails, delete it."""
    directory.mkdir(mode=0o700)
    try:
        with _opened(directory) as fd:
            yield fd
    except BaseException:
        delete_tree(directory)
        raise


@contextmanager
def _opened_checkpoint(path: Path | None, quota: Quota) -> Iterator[tuple[int | None, dict[int, _Version]]]:
    """Open a checkpoint's files. The dictionary has the version of which each copy was made, by the copy's inode. The
    descriptor is None if there is no checkpoint, or if it is damaged or larger than the quota."""
    fd: int | None = None
    versions: dict[int, _Version] = {}
    if path is not None:
        with suppress(OSError, msgspec.DecodeError):
            encoded = read_small(path / MANIFEST, max_bytes=quota.max_files * _RECORD_BYTES)
            versions = msgspec.json.decode(encoded, type=dict[int, _Version])
            fd = os.open(path / FILES, DIRECTORY)
    try:
        yield fd, versions
    finally:
        if fd is not None:
            os.close(fd)


@dataclass
class _Folder:
    """A directory that is being copied: its name, its status, and the directories in it that are still to be copied."""

    name: str
    status: os.stat_result
    pending: list[str]


class _TreeCopy:
    """One copy of a tree: goes through source, target and base in step, depth first."""

    def __init__(
        self,
        source: int,
        target: int,
        quota: Quota,
        *,
        owner: int | None = None,
        base: int | None = None,
        base_versions: dict[int, _Version] | None = None,
    ) -> None:
        self._source, self._target, self._base = TreePosition(source), TreePosition(target), TreePosition(base)
        self._base_versions = base_versions or {}
        self._quota = quota
        is_root = os.geteuid() == 0
        self._owner = owner if is_root else None
        # A guest can move files into its workspace that it may not read.
        self._reader = os.fstat(source).st_uid or None if is_root else None
        self._copied = Copied()
        self.versions: dict[int, _Version] = {}
        """The version of which each copy was made, by the copy's inode."""

    def run(self) -> Copied:
        """Copy everything. Raises `ResourceLimitExceeded`, OSError."""
        try:
            source, target = self._source.opened, self._target.opened
            folders = [_Folder("", os.fstat(source), self._copy_entries(source))]
            while folders[-1].pending or len(folders) > 1:
                if not folders[-1].pending:
                    self._leave(folders)
                elif folder := self._enter(folders[-1].pending.pop()):
                    folders.append(folder)
            self._set_status(target, folders[0].status)
        finally:
            for position in (self._source, self._target, self._base):
                position.close()
        return self._copied

    # -- directories --------------------------------------------------------------------------------------------

    def _enter(self, name: str) -> _Folder | None:
        """Create the copy of a directory, and copy what is in it except directories. None if it cannot be read."""
        fd = self._read(name, partial(self._open_directory, name))
        if fd is None:
            return None
        self._source.enter(name, fd)
        os.mkdir(name, 0o700, dir_fd=self._target.opened)
        self._target.enter(name, os.open(name, DIRECTORY, dir_fd=self._target.opened))
        self._base.enter(name, open_if_there(name, self._base.fd))
        return _Folder(name, os.fstat(fd), self._copy_entries(fd))

    def _leave(self, folders: list[_Folder]) -> None:
        left = folders.pop()
        for position in (self._source, self._target, self._base):
            position.leave()
        if self._source.fd is None:
            for name in folders[-1].pending:
                self._leave_out(name)
            folders[-1].pending.clear()
        fd = os.open(left.name, DIRECTORY, dir_fd=self._target.opened)
        try:
            self._set_status(fd, left.status)
        finally:
            os.close(fd)

    def _open_directory(self, name: str) -> int:
        fd = open_beneath(self._source.opened, (name,), DIRECTORY, reader=self._reader)
        try:
            check_right(fd, self._reader, MAY_ENTER)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _names(self, source: int) -> list[str]:
        """The names in a directory, each once: while entries move, a system may list one twice."""
        names: set[str] = set()
        with os.scandir(source) as entries:
            for entry in entries:
                if self._copied.entries + len(names) > self._quota.max_files:
                    break
                names.add(entry.name)
        self._copied.entries += len(names)
        if self._copied.entries > self._quota.max_files:
            raise ResourceLimitExceeded(
                f"there are more than {self._quota.max_files:,} files, which is the limit",
                *FREE_SPACE,
                max_files=self._quota.max_files,
            )
        return sorted(names)

    # -- entries ------------------------------------------------------------------------------------------------

    def _copy_entries(self, source: int) -> list[str]:
        """Copy what is in a directory except directories; returns their names."""
        directories: list[str] = []
        for name in self._names(source):
            status = self._read(name, partial(os.stat, name, dir_fd=source, follow_symlinks=False))
            if status is None:
                continue
            if stat.S_ISDIR(status.st_mode):
                directories.append(name)
            elif stat.S_ISREG(status.st_mode):
                self._copy_file(source, name)
            elif stat.S_ISLNK(status.st_mode):
                self._copy_link(source, name)
            else:
                self._leave_out(name)
        return directories

    def _copy_link(self, source: int, name: str) -> None:
        text = self._read(name, partial(os.readlink, name, dir_fd=source))
        if text is None:
            return
        os.symlink(text, name, dir_fd=self._target.opened)
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=self._target.opened, follow_symlinks=False)

    def _copy_file(self, source: int, name: str) -> None:
        fd = self._read(name, partial(open_beneath, source, (name,), FILE, reader=self._reader))
        if fd is None:
            return
        try:
            now = time.time_ns()  # before the status: what changes later gets a later ctime
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self._leave_out(name)
                return
            self._count(status)
            version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if self._share(name, version):
                return
            inode = self._copy_content(fd, name, status)
            if now - status.st_ctime_ns > _SETTLED_NS:
                self.versions[inode] = version
        finally:
            os.close(fd)

    def _count(self, status: os.stat_result) -> None:
        self._copied.files += 1
        self._copied.total_bytes += stored_bytes(status)
        if self._copied.total_bytes > self._quota.max_bytes:
            raise ResourceLimitExceeded(
                f"the files take more than {self._quota.max_bytes:,} bytes, which is the limit",
                *FREE_SPACE,
                quota_bytes=self._quota.max_bytes,
            )

    def _share(self, name: str, version: _Version) -> bool:
        """Link to the base's copy of a file. False if the base has no copy of this version, or none can be linked."""
        if self._base.fd is None:
            return False
        try:
            found = os.stat(name, dir_fd=self._base.fd, follow_symlinks=False)
            known = self._base_versions.get(found.st_ino)
            if known != version or (found.st_size, found.st_mtime_ns) != version[1:3]:
                return False
            os.link(name, name, src_dir_fd=self._base.fd, dst_dir_fd=self._target.opened, follow_symlinks=False)
        except OSError:  # too many links, for instance
            return False
        self.versions[found.st_ino] = version
        self._copied.shared += 1
        return True

    def _copy_content(self, source: int, name: str, status: os.stat_result) -> int:
        """Copy a file; returns the copy's inode."""
        fd = os.open(name, NEW_FILE, 0o600, dir_fd=self._target.opened)
        try:
            copy_content(source, fd, status.st_size)
            self._set_status(fd, status)
            self._copied.new_bytes += stored_bytes(status)
            return os.fstat(fd).st_ino
        finally:
            os.close(fd)

    def _set_status(self, fd: int, status: os.stat_result) -> None:
        if self._owner is not None:
            os.fchown(fd, self._owner, self._owner)
        os.fchmod(fd, status.st_mode & 0o777)
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))

    # -- what is left out ---------------------------------------------------------------------------------------

    def _read(self, name: str, access: Callable[[], _T]) -> _T | None:
        """Access an entry of the source. None if it has been deleted, or is left out."""
        try:
            return access()
        except FileNotFoundError:
            return None
        except OSError as exc:
            if exc.errno not in _NOT_READABLE:
                raise
            self._leave_out(name)
            return None

    def _leave_out(self, name: str) -> None:
        self._copied.left_out += 1
        if len(self._copied.left_out_names) < MAX_NAMES:
            self._copied.left_out_names.append(printable(self._source.path_of(name)[-MAX_NAME_CHARS:]))
