"""Reads and writes files in the configured volumes. Blocking: called in worker threads.

A volume holds a user's own files, and guests may write in it: nothing is opened through a link, a read-only volume
stays read-only, and a root server does for a guest only what that guest's user could. New files follow the user's
umask. Must not know sessions or MCP.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, PermissionDenied, ServerError
from kernelmcp.files.listing import Entry, Listing, names_at, scan
from kernelmcp.files.paths import as_caller_error, parts_below, printable
from kernelmcp.files.regular import Piece, made, opened, read_piece, size_of, write_whole
from kernelmcp.files.safe_open import DIRECTORY, check_may_make, open_beneath
from kernelmcp.files.volumes import INSIDE, kernel_volumes
from kernelmcp.files.workspace import MAX_CHANGED
from kernelmcp.process_start import users_umask

# Limit for all folders that a cell names, and for a message that names the existing files.
MAX_SCANNED = 1_000
MAX_NAMED = 12
MAX_NAMED_CHARS = 400
# Of each name: guests choose them, and a comparison takes time in proportion to the product of their lengths.
MAX_COMPARED_CHARS = 48


def is_in_volume(path: str) -> bool:
    return path.startswith(f"{INSIDE}/")


class VolumeFiles:
    """The files of all volumes, by their guest paths: /volumes/NAME/PATH."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> Piece:
        """Read at most `limit` bytes, starting at `offset`. Raises only `ServerError`s."""
        volume, parts = self._find(path)
        with self._caller_error(path), _root(volume) as root, opened(root, parts, reader=self._user) as fd:
            return read_piece(fd, path, offset, limit)

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, and its parent directories. Raises only `ServerError`s."""
        volume, (*above, name) = self._find(path)
        if volume["mode"] != "rw":
            raise PermissionDenied(
                f"{path!r} is in a volume that is read-only",
                "Write below /workspace, or ask the user for another folder.",
            )
        umask = users_umask()
        with self._caller_error(path), _root(volume) as root:
            size_of(root, [*above, name], path, reader=self._user)
            with made(root, above, 0o777 & ~umask, user=self._user) as directory:
                check_may_make(directory, self._user)
                write_whole(directory, name, data, 0o666 & ~umask, user=self._user)

    def look(self, paths: list[str]) -> list[Entry]:
        """The regular files among these paths, and in the directories among them. The paths come from the guest."""
        found: dict[str, Entry] = {}
        scanned = Listing()
        for path in paths:
            if len(found) >= MAX_CHANGED:
                break
            with suppress(OSError, ServerError):
                volume, parts = self._find(path)
                if volume["mode"] == "rw":
                    with _root(volume) as root:
                        for entry in self._entries(root, parts, scanned):
                            inside = f"{INSIDE}/{volume['name']}/{entry.path}"
                            found[inside] = Entry(inside, entry.size, entry.modified_ns)
        return list(found.values())[:MAX_CHANGED]

    def _entries(self, root: int, parts: list[str], scanned: Listing) -> list[Entry]:
        with opened(root, parts, reader=self._user) as fd:
            status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            return [Entry("/".join(parts), status.st_size, status.st_mtime_ns)]
        before = len(scanned.files)
        if stat.S_ISDIR(status.st_mode):
            scan(root, tuple(parts), scanned, MAX_SCANNED)
        return scanned.files[before:]

    @property
    def _user(self) -> int | None:
        return self._settings.policy.guest_uid

    def _find(self, path: str) -> tuple[dict[str, str], list[str]]:
        name, _, rest = path.removeprefix(f"{INSIDE}/").partition("/")
        volumes = kernel_volumes(self._settings)
        volume = next((one for one in volumes if one["name"] == name), None)
        if volume is None:
            named = ", ".join(f"{INSIDE}/{one['name']}" for one in volumes)
            raise InvalidArgument(
                f"there is no volume {name!r}",
                f"The {'volume is' if len(volumes) == 1 else 'volumes are'} {named}."
                if named
                else "No folder of the user's is shared. Use a path below /workspace.",
                argument="path",
            )
        return volume, parts_below(rest, path)

    @contextmanager
    def _caller_error(self, path: str) -> Iterator[None]:
        volume, _ = self._find(path)
        with as_caller_error(path, lambda: named(volume, path)):
            yield


@contextmanager
def _root(volume: dict[str, str]) -> Iterator[int]:
    """A volume's directory. Its path had no link when the settings were read; if guests may write above it, in another
    volume, it may have one now, which is not followed. Raises OSError."""
    top = os.open("/", DIRECTORY)
    try:
        fd = open_beneath(top, Path(volume["path"]).parts[1:], DIRECTORY)
    finally:
        os.close(top)
    try:
        yield fd
    finally:
        os.close(fd)


def named(volume: dict[str, str], missing: str) -> str:
    """A sentence with the names in a volume, those that resemble the missing path first."""
    where = f"{INSIDE}/{volume['name']}"
    names = names_in(volume)
    shown: list[str] = []
    room = MAX_NAMED_CHARS
    for name in map(printable, dict.fromkeys([*resembling(missing, names), *names])):
        room -= len(name) + 2
        if room < 0 or len(shown) >= MAX_NAMED:
            break
        shown.append(name)
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return f"{where} has: {', '.join(shown)}{more}." if names else f"{where} has no files."


def names_in(volume: dict[str, str]) -> list[str]:
    """The names of a volume's entries except hidden ones, as they are: not printable. Directories have a slash. Empty
    if it cannot be read."""
    try:
        with _root(volume) as root:
            return [name for name in names_at(root, MAX_SCANNED) if not name.startswith(".")]
    except OSError:
        return []


def resembling(missing: str, names: list[str]) -> list[str]:
    """Likely corrections of a missing path, the best first."""
    wanted = re.split(r"[/\\]", missing)[-1].casefold()[:MAX_COMPARED_CHARS]
    by_key = {name.casefold()[:MAX_COMPARED_CHARS]: name for name in reversed(names)}
    return [by_key[key] for key in get_close_matches(wanted, by_key, MAX_NAMED, 0.75)]
