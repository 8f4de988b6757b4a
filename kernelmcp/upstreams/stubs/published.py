"""Publishes rendered files as a folder that is written once: named by its content, complete when it appears, read-only.

Several servers may share the parent folder. Must not know the contents of the files.
"""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from kernelmcp.files.safe_open import delete_tree
from kernelmcp.upstreams.stubs.rendered import Rendered

# A kernel copies the files when it is told of them; a long-running server tells each new kernel.
KEPT_SECONDS = 7 * 24 * 3600.0
# Tools that change all the time must not fill the disk: besides the newest folders, older ones stay only until the
# kernels that were told of them have copied the files.
MAX_KEPT, TAKEN_SECONDS = 16, 600.0
# Age at which the unfinished folder of a killed server is deleted.
UNFINISHED_SECONDS = 3600.0
_UNFINISHED = ".new-"


def publish(rendered: Rendered, folder: Path) -> Path:
    """Publish the files; returns their folder below `folder`. Blocking. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / rendered.digest
    if not target.is_dir():
        draft = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            _write(rendered, draft)
            with suppress(FileExistsError, OSError):  # another server published it first
                draft.rename(target)
        finally:
            _delete(draft)
        if not target.is_dir():
            raise OSError(None, "the files of the tools cannot be put in place", str(target))
    with suppress(OSError):
        os.utime(target)
    _sweep(folder, target)
    return target


def _write(rendered: Rendered, draft: Path) -> None:
    draft.mkdir(mode=0o700)
    for path, text in rendered.files.items():
        file = draft / path
        file.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        with os.fdopen(fd, "wb") as stream:
            stream.write(text.encode())
        file.chmod(0o444)  # regardless of the umask
    for parent, _, _ in os.walk(draft, topdown=False):
        os.chmod(parent, 0o555)  # noqa: S103  # read-only, for guests that are another user too


def _sweep(folder: Path, current: Path) -> None:
    """Delete folders that were neither written nor published again for a long time, and sooner if there are many."""
    found: list[tuple[float, Path]] = []
    for entry in folder.iterdir():
        with suppress(OSError):
            found.append((time.time() - entry.lstat().st_mtime, entry))
    for number, (age, entry) in enumerate(sorted(found)):
        kept = UNFINISHED_SECONDS if entry.name.startswith(_UNFINISHED) else KEPT_SECONDS
        if entry != current and age > (kept if number < MAX_KEPT else min(kept, TAKEN_SECONDS)):
            with suppress(OSError):
                _delete(entry)


def _delete(folder: Path) -> None:
    if not folder.exists():
        return
    for parent, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(parent, 0o700)
    delete_tree(folder)
