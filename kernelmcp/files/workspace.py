"""Reads and writes a session's files. Blocking: called in worker threads.

Everything in a workspace is hostile: a guest can create any tree there, with any names, and change it during an access.
So nothing is opened by a path that could lead through a link (safe_open.py), and only regular files are opened. Must
not know sessions or MCP.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernelmcp.errors import InvalidArgument, PermissionDenied, ResourceLimitExceeded, SessionDamaged
from kernelmcp.files.listing import MAX_LISTED, Entry, Listing, scan
from kernelmcp.files.paths import FREE_SPACE, as_caller_error, components
from kernelmcp.files.regular import Piece, made, opened, read_piece, size_of, write_whole
from kernelmcp.files.safe_open import DIRECTORY

# Limit for the files in a result that one cell wrote.
MAX_CHANGED = 100


@dataclass(frozen=True)
class Quota:
    """Limits for a session's files, workspace and /tmp together: bytes, and files including directories."""

    max_bytes: int
    max_files: int

    def without(self, used_bytes: int, used_files: int) -> "Quota":
        """What is left of it."""
        return Quota(max(0, self.max_bytes - used_bytes), max(0, self.max_files - used_files))


class Workspace:
    """The files of one sandbox directory. No guest can change that directory itself; its contents may be anything."""

    def __init__(self, sandbox: Path, quota: Quota) -> None:
        self._sandbox = sandbox
        self._quota = quota
        # Beyond the quota, so that a listing can show by how much it is exceeded.
        self._max_scanned = 2 * quota.max_files

    # -- read ---------------------------------------------------------------------------------------------------

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> Piece:
        """Read at most `limit` bytes, starting at `offset`. Raises only `ServerError`s."""
        parts = components(path)
        with self._root() as root, as_caller_error(path), opened(root, parts, reader=_owner(root)) as fd:
            return read_piece(fd, path, offset, limit)

    # -- write --------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, and its parent directories. A reader sees either the old content or the new.

        Raises only `ServerError`s.
        """
        *above, name = components(path)
        with self._root() as root, as_caller_error(path):
            replaced = size_of(root, [*above, name], path, reader=_owner(root))
            self._check_quota(len(data) - replaced, new_files=len(above) + 1)
            with made(root, above) as directory:
                write_whole(directory, name, data)

    def _check_quota(self, growth: int, *, new_files: int) -> None:
        used = self.usage()
        if growth > 0 and used.total_bytes + growth > self._quota.max_bytes:
            raise ResourceLimitExceeded(
                f"the session's files would take {used.total_bytes + growth:,} bytes, and "
                f"{self._quota.max_bytes:,} are allowed",
                *FREE_SPACE,
                quota_bytes=self._quota.max_bytes,
            )
        if growth > 0 and not used.complete:
            raise ResourceLimitExceeded(
                "the session's files cannot be counted: there are too many, or they are nested too deeply",
                *FREE_SPACE,
            )
        if used.entries + new_files > self._quota.max_files:
            raise ResourceLimitExceeded(
                f"the session has {used.entries:,} files, and {self._quota.max_files:,} are allowed",
                *FREE_SPACE,
                max_files=self._quota.max_files,
            )

    # -- look ---------------------------------------------------------------------------------------------------

    def listing(self, limit: int = MAX_LISTED) -> Listing:
        """The workspace's files, sorted by path, at most `limit` of them.

        Raises `SessionDamaged`.
        """
        found = Listing()
        with self._root() as root:
            scan(root, (), found, self._max_scanned)
        found.files.sort(key=lambda entry: entry.path)
        if len(found.files) > limit:
            del found.files[limit:]
            found.complete = False
        return found

    def usage(self) -> Listing:
        """All entries that count against the quota: the files in the workspace and in /tmp."""
        found = Listing()
        with self._root() as root:
            scan(root, (), found, self._max_scanned)
        with suppress(OSError), self._directory("tmp") as tmp:
            scan(tmp, (), found, self._max_scanned)
        return found

    def look(self, paths: list[str]) -> list[Entry]:
        """The regular files among these paths, and in the directories among them. The paths come from the guest."""
        found = Listing()
        with self._root() as root:
            for path in paths:
                if len(found.files) >= MAX_CHANGED:
                    break
                with (
                    suppress(OSError, InvalidArgument, PermissionDenied),
                    opened(root, components(path), reader=_owner(root)) as fd,
                ):
                    status = os.fstat(fd)
                    if stat.S_ISREG(status.st_mode):
                        found.files.append(Entry("/".join(components(path)), status.st_size, status.st_mtime_ns))
                    elif stat.S_ISDIR(status.st_mode):
                        scan(root, tuple(components(path)), found, self._max_scanned)
        unique = {entry.path: entry for entry in found.files}
        return list(unique.values())[:MAX_CHANGED]

    @contextmanager
    def _root(self) -> Iterator[int]:
        try:
            with self._directory("workspace") as fd:
                yield fd
        except _DirectoryMissing as exc:
            raise SessionDamaged(
                f"the session's workspace directory cannot be opened: {exc.reason}",
                "reset_workspace(scope='files') makes an empty one.",
                path=str(self._sandbox / "workspace"),
            ) from exc

    @contextmanager
    def _directory(self, name: str) -> Iterator[int]:
        try:
            sandbox = os.open(self._sandbox, DIRECTORY)
            try:
                fd = os.open(name, DIRECTORY, dir_fd=sandbox)
            finally:
                os.close(sandbox)
        except OSError as exc:
            raise _DirectoryMissing(exc.strerror) from exc
        try:
            yield fd
        finally:
            os.close(fd)


class _DirectoryMissing(OSError):
    """The workspace or tmp of a sandbox directory is missing, or is not a directory."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(errno.ENOENT, reason)
        self.reason = reason


def _owner(root: int) -> int:
    """The guest's user, as reader: a guest can move files that it may not read into its workspace."""
    return os.fstat(root).st_uid
