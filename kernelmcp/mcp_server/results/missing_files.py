"""A line about a file that a cell did not find, if the user's folders explain it; paths that only a user's machine has.

Models mistake paths that a user names for paths in the sandbox, and misspell those of volumes. Blocking: it lists
volumes.
"""

import posixpath
import re

from kernelmcp.cells.cell import GuestError
from kernelmcp.errors import InvalidArgument
from kernelmcp.files.paths import INSIDE as WORKSPACE
from kernelmcp.files.paths import printable
from kernelmcp.files.volume_files import is_in_volume, named, names_in, resembling
from kernelmcp.files.volumes import INSIDE

# Python's FileNotFoundError, and JavaScript's ENOENT.
_PATH = re.compile(
    r"(?:N|n)o such file or directory[^'\"]{0,200}(?P<quote>['\"])(?P<path>.{1,4000}?)(?P=quote)", re.DOTALL
)
# Paths of a user's machine: macOS, Linux, WSL, Windows, and a home directory.
_OF_HOST = re.compile(r"(?:/(?:Users|home|root|mnt|media|Volumes|Downloads|Desktop|Documents)/|~|[A-Za-z]:[\\/])")
# A home directory, a drive of Windows, and an address. Names such as ~x and a:b.txt are possible.
_ELSEWHERE = re.compile(r"~(?:[\\/]|$)|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]+:/")
NO_FOLDER = (
    "No folder of the user's machine is shared with the sandbox. write_file puts content into the workspace. The user "
    "shares a folder with `kernelmcp install CLIENT --folder PATH`, or with `--folder PATH` in the server's arguments."
)
NO_FOLDER_ELSEWHERE = (
    "No folder is shared with the sandbox: write_file puts content into the workspace. The server's operator shares "
    "a folder with [volumes.NAME] in its configuration."
)


def about_missing(error: GuestError, volumes: list[dict[str, str]], *, is_local: bool) -> str | None:
    """A note for the result. `is_local`: the client is on the server's machine. None if there is nothing to report."""
    if error.name != "FileNotFoundError" and "ENOENT" not in error.value:
        return None
    if (match := _PATH.search(error.value)) is None:
        return None
    path = match["path"].replace("\\\\", "\\")
    for volume in volumes:
        if is_local and f"{path}/".startswith(f"{volume['path']}/"):
            return f"Code sees {volume['path']} as {INSIDE}/{volume['name']}."
    if not is_in_volume(path) and not _OF_HOST.match(path):
        return _beside(path, volumes)
    return _about_shared(path, volumes, is_local=is_local)


def is_elsewhere(path: str) -> bool:
    """True for a path of a user's machine, and for an address, which would be strange names in the workspace. As ./PATH
    they are possible."""
    return _ELSEWHERE.match(path) is not None


def not_inside(path: str, volumes: list[dict[str, str]], *, is_local: bool) -> InvalidArgument:
    """The error for such a path."""
    return InvalidArgument(
        f"{path[:200]!r} is no path in the workspace or in a volume",
        "Give one such as notes.txt, /workspace/notes.txt or /volumes/NAME/notes.txt. "
        f"A file of this very name in the workspace is {f'./{path}'[:200]!r}.",
        _about_shared(path, volumes, is_local=is_local),
        argument="path",
    )


def _about_shared(path: str, volumes: list[dict[str, str]], *, is_local: bool) -> str:
    if not volumes:
        return NO_FOLDER if is_local else NO_FOLDER_ELSEWHERE
    named_volume = [one for one in volumes if f"{path}/".startswith(f"{INSIDE}/{one['name']}/")]
    shown = " ".join(named(one, path) for one in (named_volume or volumes)[:2])
    return shown if named_volume else f"Code sees no files of the user's machine but those in its volumes. {shown}"


def _beside(path: str, volumes: list[dict[str, str]]) -> str | None:
    """A name in a volume that a path in the workspace may refer to."""
    inside = posixpath.normpath(posixpath.join(WORKSPACE, path))
    if not inside.startswith(f"{WORKSPACE}/"):
        return None
    for volume in volumes:
        if found := resembling(inside, names_in(volume)):
            return f"Did you mean {INSIDE}/{volume['name']}/{printable(found[0])}, in the user's folder?"
    return None
