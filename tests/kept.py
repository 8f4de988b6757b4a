"""What tests make once for a machine, and keep in the user's cache directory."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import platformdirs

_DONE = "done"


def folder_of(name: str) -> Path:
    return Path(platformdirs.user_cache_dir("kernelmcp-tests", appauthor=False)) / name


def is_kept(name: str) -> bool:
    return (folder_of(name) / _DONE).exists()


def kept(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder of this name, which is filled where it is not yet. Other processes that want it wait.

    The name says all that decides what is in it, such as versions.
    """
    folder = folder_of(name)
    if is_kept(name):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_kept(name):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            (folder / _DONE).touch()
    return folder
