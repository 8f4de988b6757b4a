"""Rendered files as a folder that is written once: named by its content, complete as soon as it is there, read-only.

Several servers may share the folder above. Must not know what is in the files.
"""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from kernelmcp.files.safe_open import delete_tree
from kernelmcp.upstreams.stubs.rendered import Rendered

# A kernel takes the files when it is told of them; a server that runs for long tells each new kernel.
KEPT_SECONDS = 7 * 24 * 3600.0
# Tools that change all the time must not fill the disk: beside the newest folders, older ones stay only until the
# kernels that were told of them have taken the files.
MAX_KEPT, TAKEN_SECONDS = 16, 600.0
# What a server that was killed has not finished.
UNFINISHED_SECONDS = 3600.0
_UNFINISHED = ".new-"


def publish(rendered: Rendered, folder: Path) -> Path:
    """Where the files are, below `folder`. Blocking. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / rendered.digest
    if not target.is_dir():
        draft = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            _write(rendered, draft)
            with suppress(FileExistsError, OSError):  # another server was as quick
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
        file.chmod(0o444)  # whatever the umask takes
    for parent, _, _ in os.walk(draft, topdown=False):
        os.chmod(parent, 0o555)  # noqa: S103  # read-only, for guests that are another user too


def _sweep(folder: Path, current: Path) -> None:
    """Delete what was neither written nor published again for a long time, and sooner where there is much of it."""
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
