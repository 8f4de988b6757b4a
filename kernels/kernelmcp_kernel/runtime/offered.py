"""The files of offered MCP servers, which guests of every language see as /servers and none may write.

They are copies, or other names, of what a server keeps in its home: a guest has one folder open to it from its start,
and what is in that changes with an offer. Each file is replaced in one step, and taken away last.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path

from kernelmcp_kernel.settings import settings

# Of one offer: a thousand tools are 3 MiB.
_MAX_FILES = 50_000
_MAX_BYTES = 256 * 2**20
# Folders within folders: /servers/NAME/TOOL.py has one.
_MAX_DEPTH = 8

# What tells what there is: it changes last.
_INDEX = "index.json"


def fill(folder: Path, source: Path | None) -> None:
    """Make `folder` hold what `source` does; None: nothing. Blocking. Raises OSError, ValueError."""
    wanted = _files_of(source) if source else {}
    for name in sorted(wanted, key=lambda name: (name == _INDEX, name)):
        _put(wanted[name], folder, name)
    _remove_all_but(folder, set(wanted))


def _files_of(source: Path) -> dict[str, Path]:
    """The files below a folder, by their names in it."""
    found: dict[str, Path] = {}
    size = 0
    pending = [(source, "", 0)]
    while pending:
        folder, prefix, depth = pending.pop()
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                if depth >= _MAX_DEPTH:
                    raise ValueError(f"{entry.path} lies too deep")
                pending.append((Path(entry.path), f"{prefix}{entry.name}/", depth + 1))
            elif entry.is_file(follow_symlinks=False):
                found[f"{prefix}{entry.name}"] = Path(entry.path)
                size += entry.stat(follow_symlinks=False).st_size
            else:
                raise ValueError(f"{entry.path} is neither a file nor a folder")
            if len(found) > _MAX_FILES or size > _MAX_BYTES:
                raise ValueError(f"an offer has at most {_MAX_FILES} files with {_MAX_BYTES >> 20} MiB")
    return found


def _put(source: Path, folder: Path, name: str) -> None:
    """Give a file its place, whatever was there."""
    target = folder / name
    with contextlib.suppress(OSError):
        if os.path.samefile(source, target):
            return
    for above in reversed(Path(name).parents[:-1]):
        if (folder / above).is_file():
            (folder / above).unlink()
        if not (folder / above).is_dir():
            (folder / above).mkdir()
            (folder / above).chmod(0o755)  # our own mask may take more away
    if target.is_dir():
        shutil.rmtree(target)
    new = target.with_name(f".{secrets.token_hex(8)}")
    try:
        _link_or_copy(source, new)
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)


def _link_or_copy(source: Path, new: Path) -> None:
    """A file that somebody may write is copied, and so is one that the guest's user could not read."""
    mode = stat.S_IMODE(source.stat().st_mode)
    if not mode & 0o222 and (settings().guest_uid is None or mode & 0o004):
        with contextlib.suppress(OSError):  # another file system, or too many links
            os.link(source, new, follow_symlinks=False)
            return
    shutil.copyfile(source, new, follow_symlinks=False)
    new.chmod(0o444)


def _remove_all_but(folder: Path, wanted: set[str]) -> None:
    for current, folders, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(current, name)
            if path.relative_to(folder).as_posix() not in wanted:
                path.unlink()
        for name in folders:
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(Path(current, name))
