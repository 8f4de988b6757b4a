"""A position in a tree that may be nested deeper than any limit of paths or descriptors, and change at any moment.

Follows no links, and leaves the tree neither upwards nor downwards. Blocking. Must not know the purpose of the walk.
"""

import errno
import os
from dataclasses import dataclass

from kernelmcp.files.safe_open import DIRECTORY

# The deepest levels, which are kept open. Ordinary trees have fewer.
_OPEN_LEVELS = 16


@dataclass
class _Level:
    """A directory on the way down. `fd` is None if it is not open; `identity` is None if it could not be opened."""

    name: str
    fd: int | None
    identity: tuple[int, int] | None


class TreePosition:
    """A directory in a tree of any depth, and the way down to it.

    Only the root and the deepest levels are open. The way up to another one is "..", if that is still the same
    directory, otherwise through the names from the root.
    """

    def __init__(self, root: int | None) -> None:
        """The root remains the caller's to close. If it is None, nothing below it is open either."""
        self._levels = [_Level("", root, _identity(root))]

    @property
    def fd(self) -> int | None:
        """The open directory; None if it does not exist, or was moved."""
        return self._levels[-1].fd

    @property
    def opened(self) -> int:
        """The open directory. Raises OSError if there is none."""
        if self.fd is None:
            raise OSError(errno.ESTALE, "a directory was moved meanwhile")
        return self.fd

    def path_of(self, name: str) -> str:
        return "/".join([*(level.name for level in self._levels[1:]), name])

    def enter(self, name: str, fd: int | None) -> None:
        """Go down to a directory, which is closed on the way up. None: it does not exist in this tree."""
        self._levels.append(_Level(name, fd, _identity(fd)))
        if len(self._levels) > _OPEN_LEVELS + 1:
            _close(self._levels[-1 - _OPEN_LEVELS])

    def leave(self) -> None:
        """Go up."""
        left, above = self._levels.pop(), self._levels[-1]
        if above.fd is None and above.identity is not None:
            above.fd = _open_same("..", left.fd, above.identity)
            if above.fd is None:
                above.fd = self._open_from_root()
        _close(left)

    def close(self) -> None:
        for level in self._levels[1:]:
            _close(level)

    def _open_from_root(self) -> int | None:
        fd = self._levels[0].fd
        for level in self._levels[1:]:
            above, fd = fd, _open_same(level.name, fd, level.identity)
            if above is not None and above != self._levels[0].fd:
                os.close(above)
        return fd


def _identity(fd: int | None) -> tuple[int, int] | None:
    if fd is None:
        return None
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _close(level: _Level) -> None:
    if level.fd is not None:
        os.close(level.fd)
        level.fd = None


def open_if_there(name: str, directory: int | None) -> int | None:
    """Open a directory without following a link. None if there is none."""
    if directory is None:
        return None
    try:
        return os.open(name, DIRECTORY, dir_fd=directory)
    except OSError:
        return None


def _open_same(name: str, directory: int | None, identity: tuple[int, int] | None) -> int | None:
    """Open a directory, if it is still the same."""
    fd = open_if_there(name, directory)
    if fd is not None and _identity(fd) != identity:
        os.close(fd)
        return None
    return fd
