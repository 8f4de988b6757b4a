"""Builds of guests that are kept in the home, so that an upgrade loses no variables: a saved state fits the build that
saved it, and its session goes on in a guest of that one.

    builds/LANGUAGE-ID/    what guests of this build are started from, as in the installation
    builds/LANGUAGE-ID/kept.json    {protocol, abi}

A build is kept when a state is first saved with it. Whatever else an upgrade changes, such as the confinement, holds
for its guests as for all others.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelmcp_kernel.runtime.places import open_to_guests
from kernelmcp_kernel.settings import data_home

PROTOCOL = 1
"""What kernel processes and guests expect of each other: frames, host calls, options of a start (docs/languages.md).
Increase it with a change that guests of earlier builds do not understand: they are not started any more."""

# Of a language. One of Python has 55 MB, which are links where the installation is on the same file system.
MAX_BUILDS = 3

_IDENTITY = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = ".unfinished-"
_UNFINISHED_SECONDS = 3600.0


def keep(language: str, identity: str, abi: str, parts: Mapping[str, Path]) -> None:
    """Keep a build, unless it is kept already. `parts`: files and folders of the installation, by their names in the
    build. `abi`: what a guest shares with the packages of a home. Blocking. Raises OSError."""
    folder = _place(language, identity)
    if folder.is_dir():
        os.utime(folder)
        return
    open_to_guests(folder.parent)
    with _alone_in(folder.parent) as is_alone:
        if not is_alone or folder.is_dir():
            return  # another kernel does it
        _delete_unfinished(folder.parent)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / folder.name
            made.mkdir()
            for name, part in parts.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(part, made / name, copy_function=_link) if part.is_dir() else _link(part, made / name)
            (made / "kept.json").write_text(json.dumps({"protocol": PROTOCOL, "abi": abi}), "utf-8")
            made.rename(folder)
        _delete_old(folder.parent, language)


def find(language: str, identity: str, abi: str) -> Path | None:
    """The folder of a kept build; None if it is not there, or its guests and this kernel process do not fit."""
    if not _IDENTITY.fullmatch(identity):
        return None
    folder = _place(language, identity)
    try:
        kept = json.loads((folder / "kept.json").read_text("utf-8"))
        os.utime(folder)
        open_to_guests(folder.parent)
    except (OSError, ValueError, RecursionError):
        return None
    return folder if kept == {"protocol": PROTOCOL, "abi": abi} else None


def _place(language: str, identity: str) -> Path:
    return data_home() / "builds" / f"{language}-{identity[:32]}"


def _link(source: str | Path, target: str | Path) -> None:
    """Builds and installers replace the files of an installation, they never write into them."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or another user's file
        shutil.copy(source, target)


@contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def _delete_unfinished(folder: Path) -> None:
    """What a killed kernel has left."""
    for each in folder.glob(f"{_UNFINISHED}*"):
        if time.time() - each.stat().st_mtime > _UNFINISHED_SECONDS:
            shutil.rmtree(each, ignore_errors=True)


def _delete_old(folder: Path, language: str) -> None:
    """Keep those that were used last."""
    used = {each: each.stat().st_mtime for each in folder.glob(f"{language}-*")}
    for each in sorted(used, key=lambda each: used[each], reverse=True)[MAX_BUILDS:]:
        with suppress(OSError):
            gone = each.with_name(f"{_UNFINISHED}{each.name}")
            each.rename(gone)  # so that nobody finds half of it
            shutil.rmtree(gone, ignore_errors=True)
