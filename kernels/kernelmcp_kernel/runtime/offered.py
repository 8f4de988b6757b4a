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
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.settings import settings

# Of one offer: a thousand tools are 3 MiB.
_MAX_FILES = 50_000
_MAX_BYTES = 256 * 2**20
# Folders within folders: /servers/NAME/TOOL.py has one.
_MAX_DEPTH = 8

# What tells what there is: it changes last.
_INDEX = "index.json"


@dataclass(frozen=True)
class _File:
    path: str
    mode: int
    size: int


def fill(folder: Path, source: Path | None) -> None:
    """Make `folder` hold what `source` does; None: nothing. Blocking. Raises OSError, ValueError."""
    wanted = _files_of(source) if source else {}
    for inner in sorted({os.path.dirname(name) for name in wanted}):
        _make_folder(folder, inner)
    for name in sorted(wanted, key=lambda name: (name == _INDEX, name)):
        _put(wanted[name], folder / name)
    _remove_all_but(folder, set(wanted))


def _files_of(source: Path) -> dict[str, _File]:
    """The files below a folder, by their names in it."""
    found: dict[str, _File] = {}
    size = 0
    pending = [(os.fspath(source), "", 0)]
    while pending:
        folder, prefix, depth = pending.pop()
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                if depth >= _MAX_DEPTH:
                    raise ValueError(f"{entry.path} lies too deep")
                pending.append((entry.path, f"{prefix}{entry.name}/", depth + 1))
            elif entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found[f"{prefix}{entry.name}"] = _File(entry.path, stat.S_IMODE(status.st_mode), status.st_size)
                size += status.st_size
            else:
                raise ValueError(f"{entry.path} is neither a file nor a folder")
            if len(found) > _MAX_FILES or size > _MAX_BYTES:
                raise ValueError(f"an offer has at most {_MAX_FILES} files with {_MAX_BYTES >> 20} MiB")
    return found


def _make_folder(folder: Path, inner: str) -> None:
    """A folder within, and those above it, in place of files that are there."""
    for part in [*reversed(Path(inner).parents[:-1]), Path(inner)] if inner else []:
        made = folder / part
        if made.is_file():
            made.unlink()
        if not made.is_dir():
            made.mkdir()
            made.chmod(0o755)  # our own mask may take more away


def _put(file: _File, target: Path) -> None:
    """Give a file its place in one step, whatever was there."""
    if _may_be_linked(file) and _link(file, target):
        return
    with contextlib.suppress(FileNotFoundError):
        if os.path.samefile(file.path, target):
            return
        if target.is_dir():
            shutil.rmtree(target)
    new = target.with_name(f".{secrets.token_hex(8)}")
    try:
        if not (_may_be_linked(file) and _link(file, new)):
            shutil.copyfile(file.path, new, follow_symlinks=False)
            new.chmod(0o444)
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)


def _may_be_linked(file: _File) -> bool:
    """Not where somebody may write it, and not where the guest's user could not read it."""
    return not file.mode & 0o222 and (settings().guest_uid is None or bool(file.mode & 0o004))


def _link(file: _File, target: Path) -> bool:
    """Not where something is there already, on another file system, or with too many links."""
    try:
        os.link(file.path, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def _remove_all_but(folder: Path, wanted: set[str]) -> None:
    beginning = len(os.fspath(folder)) + 1
    for current, folders, files in os.walk(folder, topdown=False):
        for name in files:
            path = os.path.join(current, name)
            if path[beginning:] not in wanted:
                os.unlink(path)
        for name in folders:
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(os.path.join(current, name))
