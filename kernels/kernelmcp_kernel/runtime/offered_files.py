"""The files of offered MCP servers, which guests of every language see as /servers and cannot write.

They are copies of, or hard links to, files in a server's home: a guest has access to one folder from its start, whose
contents change with an offer. Each file is replaced atomically; obsolete files are removed last.
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

# Files of one offer: a thousand tools take 3 MiB.
_MAX_FILES = 50_000
_MAX_BYTES = 256 * 2**20
# Nesting of folders: /servers/NAME/TOOL.py has depth one.
_MAX_DEPTH = 8

# The index of the other files: it is replaced last.
_INDEX = "index.json"


@dataclass(frozen=True)
class _File:
    path: str
    mode: int
    size: int


def fill(folder: Path, source: Path | None) -> None:
    """Make the contents of `folder` those of `source`; None: empty it. Blocking. Raises OSError, ValueError."""
    wanted = _files_of(source) if source else {}
    for inner in sorted({os.path.dirname(name) for name in wanted}):
        _make_folder(folder, inner)
    for name in sorted(wanted, key=lambda name: (name == _INDEX, name)):
        _put(wanted[name], folder / name)
    _remove_all_but(folder, set(wanted))


def _files_of(source: Path) -> dict[str, _File]:
    """The files below a folder, by relative name."""
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
    """Create a folder and its parents inside `folder`, replacing files of these names."""
    for part in [*reversed(Path(inner).parents[:-1]), Path(inner)] if inner else []:
        made = folder / part
        if made.is_file():
            made.unlink()
        if not made.is_dir():
            made.mkdir()
            made.chmod(0o755)  # our own umask may remove more


def _put(file: _File, target: Path) -> None:
    """Put a file in its place atomically, replacing anything."""
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
    """False if somebody may write it, or if the guest's user could not read it."""
    return not file.mode & 0o222 and (settings().guest_uid is None or bool(file.mode & 0o004))


def _link(file: _File, target: Path) -> bool:
    """False if the target exists, is on another file system, or the file has too many links."""
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
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(os.path.join(current, name))
