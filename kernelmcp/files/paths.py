"""Splits a caller's path into its parts, and translates the operating system's errors for the caller.

Must not touch files.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelmcp.errors import InvalidArgument, PermissionDenied, ResourceLimitExceeded

INSIDE = "/workspace"
"""The workspace's path in the guest."""
MAX_COMPONENT_BYTES = 255
MAX_PATH_BYTES = 4000
LOOK = "List the files with get_workspace_info."
FREE_SPACE = (
    "Delete files with execute_code (os.remove), or all of them with reset_workspace(scope='files').",
    "The limits are workspace_max_mb and max_files of policy.toml, and for all your sessions storage_max_mb.",
    "destroy_session deletes a session that you no longer need (get_sessions has their sizes).",
)
IN_VOLUME = "Delete files of this folder that are no longer needed, or ask the user to make room on its disk."

_BRACKET = re.compile(r"[\[\]]")
# As in report[1].pdf: without a blank, it is no note, nor the end of one before another.
_ONE_WORD = re.compile(r"\[[\w.-]+\]")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK, errno.ENOTEMPTY, errno.EXDEV}


def components(path: str) -> list[str]:
    """The parts of a caller's path, relative to the workspace: `a/b`, `./a/b` and `/workspace/a/b` are the same.

    Raises `InvalidArgument` for an invalid path, `PermissionDenied` for one that leads out of the workspace.
    """
    inside = path
    if path.startswith("/"):
        inside = path.removeprefix(INSIDE + "/")
        if inside == path:
            raise PermissionDenied(
                f"{path!r} is outside the workspace",
                f"Use a path below {INSIDE}, such as notes.txt, or one in a volume: get_volume_path shows them.",
            )
    return parts_below(inside, path)


def parts_below(inside: str, path: str) -> list[str]:
    """The parts of `inside`, which is relative to a directory; errors name `path`. Raises as `components` does."""
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PermissionDenied(f"{path!r} contains ..", "Give the path without it.")
    if not parts or path.endswith("/"):
        raise InvalidArgument(
            f"{path!r} is not the path of a file", "Give the path of a file, such as notes.txt.", argument="path"
        )
    if "\0" in path:
        raise InvalidArgument("the path contains a NUL character", "Leave it out.", argument="path")
    sizes = [len(_encoded(part)) for part in parts]
    if max(sizes) > MAX_COMPONENT_BYTES or sum(sizes) + len(sizes) > MAX_PATH_BYTES:
        raise InvalidArgument(
            f"the path is longer than {MAX_PATH_BYTES:,} bytes, or a name in it is longer than {MAX_COMPONENT_BYTES}",
            "Shorten it.",
            argument="path",
        )
    return parts


def _encoded(name: str) -> bytes:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError as exc:
        raise InvalidArgument("the path is not valid Unicode", "Use ordinary characters.", argument="path") from exc


def printable(name: str) -> str:
    """A file's name for a reader: a guest can put line breaks, terminal codes and invalid UTF-8 in it, and brackets
    that could look like a note of the server's."""
    text = os.fsencode(name).decode("utf-8", "replace")
    if text.isprintable() and not _BRACKET.search(_ONE_WORD.sub("", text)):
        return text
    return _BRACKET.sub(lambda bracket: f"\\x{ord(bracket[0]):02x}", repr(text))


def look_beside(path: str) -> str:
    """Advice for a file that cannot be used."""
    if not _is_in_volume(path):
        return LOOK
    return f"List it with code: os.listdir({'/'.join(path.split('/')[:3])!r})."


def _is_in_volume(path: str) -> bool:
    return path.startswith("/volumes/")


def not_a_regular_file(path: str) -> PermissionDenied:
    return PermissionDenied(
        f"{path!r} is not a regular file: directories, links, pipes and devices cannot be read or written",
        look_beside(path),
    )


@contextmanager
def as_caller_error(path: str, look: Callable[[], str] = lambda: LOOK) -> Iterator[None]:
    """Translate the operating system's errors into errors that the caller understands. `look` returns the advice for a
    missing file."""
    try:
        yield
    except FileNotFoundError as exc:
        raise InvalidArgument(f"there is no file {path!r}", look()) from exc
    except OSError as exc:
        if exc.errno in _NO_FILE:
            raise not_a_regular_file(path) from exc
        if exc.errno in _FULL:
            advice = (IN_VOLUME,) if _is_in_volume(path) else ("Free disk space on the server's machine.", *FREE_SPACE)
            raise ResourceLimitExceeded(f"the disk is full: {exc.strerror}", *advice) from exc
        raise PermissionDenied(f"{path!r} cannot be used: {exc.strerror}", look_beside(path)) from exc
