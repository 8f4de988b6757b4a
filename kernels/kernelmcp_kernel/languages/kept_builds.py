"""Builds of guests that are kept in the home, so that an upgrade loses no variables: a saved state fits the build that
saved it, and its session goes on in a guest of that one.

    builds/LANGUAGE-ID/    what guests of this build are started from, as in the installation

A build is kept when a state is first saved with it. Whatever else an upgrade changes, such as the confinement, holds
for its guests as for all others.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelmcp_kernel.runtime.places import open_to_guests
from kernelmcp_kernel.settings import data_home

PROTOCOL = 1
"""What kernel processes and guests expect of each other: frames, host calls, options of a start (docs/languages.md).
Increase it with a change after which guests and kernel processes of two versions would not understand each other: such
guests are not started any more."""

# Of a language. One of Python has 55 MB, which are links where the installation is the same user's on the same file
# system.
MAX_BUILDS = 3

_LOCK = ".lock"
_UNFINISHED = ".unfinished-"
_UNFINISHED_SECONDS = 3600.0


def keep(
    language: str, identity: str, abi: str, parts: Mapping[str, Path], is_current: Callable[[], bool] = lambda: True
) -> bool:
    """Keep a build; if it is kept already, note that it is used. `parts`: files and folders of the installation, by
    their names in the build; `is_current`: they still are of this build. `abi`: what a guest shares with the packages
    of a home. Returns whether it is kept. Blocking. Raises OSError."""
    if find(language, identity, abi):
        return True
    folder = _place(language, identity, abi)
    open_to_guests(folder.parent)
    with _alone_in(folder.parent) as is_alone:
        if not is_alone or folder.is_dir():
            return folder.is_dir()  # another kernel does it, or has done it
        _delete_unfinished(folder.parent)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / folder.name
            made.mkdir()
            for name, part in parts.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(part, made / name, copy_function=_link) if part.is_dir() else _link(part, made / name)
            for path, _, _ in os.walk(made):
                Path(path).chmod(0o755)  # whatever ours is: guests may be another user, and we delete it one day
            if not is_current():
                return False  # it was replaced meanwhile
            with suppress(OSError):  # it is there: locks do not reach every machine
                made.rename(folder)
        _delete_old(folder.parent, language)
    return folder.is_dir()


def find(language: str, identity: str, abi: str) -> Path | None:
    """The folder of a kept build, which is used now. None if there is none whose guests this kernel process
    understands."""
    folder = _place(language, identity, abi)
    try:
        os.utime(folder)
        open_to_guests(folder.parent)
    except OSError:
        return None
    return folder


def _place(language: str, identity: str, abi: str) -> Path:
    digest = hashlib.sha256(json.dumps([PROTOCOL, abi, identity]).encode()).hexdigest()
    return data_home() / "builds" / f"{language}-{digest[:32]}"


def _link(source: str | Path, target: str | Path) -> None:
    """Builds and installers replace the files of an installation, they never write into them."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or another user's file
        shutil.copy(source, target)


@contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_alone = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_alone = False
        except OSError:
            pass  # a file system without locks
        yield is_alone
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
