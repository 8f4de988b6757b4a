"""A session's files as the server reads and writes them. Blocking: called in worker threads.

Whatever lies in a workspace is hostile: the guest makes any tree there, with any names, and changes it while we look.
So nothing is opened by a path. Each component is opened relative to the descriptor of the directory before it, never
through a link, and what is opened must be a regular file (docs/design.md). Above: file_tools, files (resources),
changes. Below: the file system. Must not know sessions or MCP.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kernelmcp.errors import InvalidArgument, PermissionDenied, ResourceLimitExceeded

INSIDE = "/workspace"
"""What the guest calls it."""
MAX_COMPONENT_BYTES = 255
MAX_DEPTH = 64
# A listing is for a reader; counting goes further, so that a quota of many files can be kept.
MAX_LISTED = 1_000
LIST_SECONDS = 2.0

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO would make an open wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Quota:
    """What a session's files may take: bytes and number, workspace and /tmp together."""

    max_bytes: int
    max_files: int


@dataclass(frozen=True)
class Piece:
    """A part of a file, and the size of all of it, bytes."""

    data: bytes
    size: int


@dataclass(frozen=True)
class Entry:
    """A regular file: its path in the workspace, size in bytes, time of its last change in ns since 1970."""

    path: str
    size: int
    modified_ns: int
    inode: int


@dataclass
class Listing:
    """The files found, and what all of them take. `complete` is false when the search was cut."""

    files: list[Entry] = field(default_factory=list[Entry])
    total_bytes: int = 0
    count: int = 0
    complete: bool = True


def components(path: str) -> list[str]:
    """The directories and the name that a caller's path means: `a/b`, `./a/b` and `/workspace/a/b` are one.

    Raises `InvalidArgument` for a path that is none, `PermissionDenied` for one that leads out.
    """
    inside = path
    if path.startswith("/"):
        inside = path.removeprefix(INSIDE + "/")
        if inside == path:
            raise PermissionDenied(
                f"{path!r} is outside of the workspace", f"Use a path below {INSIDE}, such as notes.txt.", path=path
            )
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PermissionDenied(f"{path!r} leads up with ..", f"Use a path below {INSIDE} without it.", path=path)
    if not parts or path.endswith("/"):
        raise InvalidArgument(f"{path!r} names no file", "Give the path of a file, such as notes.txt.", argument="path")
    if "\0" in path:
        raise InvalidArgument("the path contains a NUL character", "Leave it out.", argument="path")
    if len(parts) > MAX_DEPTH:
        raise InvalidArgument(f"the path has more than {MAX_DEPTH} components", "Shorten it.", argument="path")
    for part in parts:
        if len(_encoded(part)) > MAX_COMPONENT_BYTES:
            raise InvalidArgument(
                f"a name in the path has more than {MAX_COMPONENT_BYTES} bytes", "Shorten it.", argument="path"
            )
    return parts


def _encoded(name: str) -> bytes:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError as exc:
        raise InvalidArgument("the path is not valid Unicode", "Use ordinary characters.", argument="path") from exc


class Workspace:
    """The files of one berth. `berth` itself lies where no guest can change it; everything in it may be anything."""

    def __init__(self, berth: Path, quota: Quota) -> None:
        self._berth = berth
        self._quota = quota

    # -- read ---------------------------------------------------------------------------------------------------

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> Piece:
        """At most `limit` bytes from `offset`. Raises `CallerError`s only."""
        *above, name = components(path)
        with _as_caller_error(path), self._directory(above) as directory:
            fd = os.open(name, _FILE, dir_fd=directory)
            with os.fdopen(fd, "rb", buffering=0) as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise _no_regular_file(path)
                wanted = max(0, status.st_size - offset) if limit is None else limit
                return Piece(_read_at(file.fileno(), offset, wanted), status.st_size)

    # -- write --------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the directories above it: a reader sees the old content or the new.

        Raises `CallerError`s only.
        """
        *above, name = components(path)
        with _as_caller_error(path), self._directory(above, make=True) as directory:
            replaced = _regular_size(directory, name, path)
            self._check_quota(len(data) - (replaced or 0), new_file=replaced is None)
            draft = f".kernelmcp-{secrets.token_hex(8)}"
            fd = os.open(draft, _DRAFT, 0o600, dir_fd=directory)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with _forgiving():
                    os.unlink(draft, dir_fd=directory)
                raise

    def _check_quota(self, growth: int, *, new_file: bool) -> None:
        used = self.usage()
        if used.total_bytes + growth > self._quota.max_bytes and growth > 0:
            raise ResourceLimitExceeded(
                f"the session's files would take {used.total_bytes + growth:,} bytes, and "
                f"{self._quota.max_bytes:,} are allowed",
                *FREE_SPACE,
                quota_bytes=self._quota.max_bytes,
            )
        if new_file and used.count >= self._quota.max_files:
            raise ResourceLimitExceeded(
                f"the session has {used.count:,} files, and {self._quota.max_files:,} are allowed",
                *FREE_SPACE,
                max_files=self._quota.max_files,
            )

    # -- look ---------------------------------------------------------------------------------------------------

    def list(self, limit: int = MAX_LISTED) -> Listing:
        """The workspace's files, the first `limit` of them named, in the order of their paths."""
        found = self._scan(("workspace",), time.monotonic() + LIST_SECONDS)
        found.files.sort(key=lambda entry: entry.path)
        if len(found.files) > limit:
            del found.files[limit:]
            found.complete = False
        return found

    def usage(self) -> Listing:
        """What counts against the quota."""
        return self._scan(("workspace", "tmp"), time.monotonic() + LIST_SECONDS)

    def _scan(self, roots: tuple[str, ...], deadline: float) -> Listing:
        """Bounded by the quota's number of files, by depth and by time."""
        found = Listing()
        for root in roots:
            with _forgiving():
                berth = os.open(self._berth, _DIRECTORY)
                try:
                    top = os.open(root, _DIRECTORY, dir_fd=berth)
                finally:
                    os.close(berth)
                _walk(top, "", found, 2 * self._quota.max_files, deadline, MAX_DEPTH)
        return found

    @contextmanager
    def _directory(self, names: list[str], *, make: bool = False) -> Iterator[int]:
        """A descriptor of a directory in the workspace, found component by component, through no link."""
        fd = os.open(self._berth, _DIRECTORY)
        try:
            for name in ("workspace", *names):
                if make:
                    with _forgiving(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=fd)
                fd, above = os.open(name, _DIRECTORY, dir_fd=fd), fd
                os.close(above)
            yield fd
        finally:
            os.close(fd)


FREE_SPACE = (
    "Delete files with execute_code (os.remove), or all of them with reset_workspace(scope='files').",
    "The limits are workspace_max_mb and max_files of policy.toml.",
)


def disk_bytes(status: os.stat_result) -> int:
    """What a file counts: its size, but a sparse one what it really takes."""
    return min(status.st_size, 512 * status.st_blocks)


def _walk(fd: int, prefix: str, found: Listing, max_files: int, deadline: float, depth: int) -> None:
    """Add what lies below a directory, and close it. Links and special files count as files of no size."""
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if found.count >= max_files or time.monotonic() > deadline or depth == 0:
                    found.complete = False
                    return
                path = f"{prefix}{entry.name}"
                with _forgiving():
                    if entry.is_dir(follow_symlinks=False):
                        below = os.open(entry.name, _DIRECTORY, dir_fd=fd)
                        found.count += 1
                        _walk(below, path + "/", found, max_files, deadline, depth - 1)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    found.count += 1
                    if stat.S_ISREG(status.st_mode):
                        found.total_bytes += disk_bytes(status)
                        found.files.append(Entry(path, status.st_size, status.st_mtime_ns, status.st_ino))
    finally:
        os.close(fd)


def _read_at(fd: int, offset: int, size: int) -> bytes:
    """A file that is cut short meanwhile gives less, one that grows no more."""
    pieces: list[bytes] = []
    while size > 0:
        piece = os.pread(fd, min(size, 1 << 20), offset)
        if not piece:
            break
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return b"".join(pieces)


def _regular_size(directory: int, name: str, path: str) -> int | None:
    """The bytes that a file to be replaced counts; None: there is none."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _no_regular_file(path)
    return disk_bytes(status)


def _no_regular_file(path: str) -> PermissionDenied:
    return PermissionDenied(
        f"{path!r} is no regular file: directories, links, pipes and devices are neither read nor written",
        "List the files with get_workspace_info.",
        path=path,
    )


@contextmanager
def _forgiving(*kinds: type[OSError]) -> Iterator[None]:
    """What went away or changed while we looked is left out."""
    try:
        yield
    except kinds or OSError:
        pass


@contextmanager
def _as_caller_error(path: str) -> Iterator[None]:
    """Translates what the operating system says, once."""
    try:
        yield
    except FileNotFoundError as exc:
        raise InvalidArgument(
            f"there is no file {path!r} in the workspace", "List the files with get_workspace_info.", path=path
        ) from exc
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise _no_regular_file(path) from exc
        if exc.errno in _FULL:
            raise ResourceLimitExceeded(
                f"the disk is full: {exc.strerror}", "Free disk space on the server's machine.", *FREE_SPACE
            ) from exc
        raise PermissionDenied(
            f"{path!r} cannot be used: {exc.strerror}", "List the files with get_workspace_info.", path=path
        ) from exc
