"""Deletes the data of a session on disk. Blocking."""

from pathlib import Path

from kernelmcp.files.home import RECORD_FILES, SandboxDirectory
from kernelmcp.files.safe_open import delete_for_good


def delete_session(directory: Path, sandbox: SandboxDirectory | None) -> None:
    """Delete the files, and the record last, so that partly deleted files still have an owner. Raises OSError."""
    if sandbox is not None:
        sandbox.delete_for_good()
    for entry in directory.iterdir():
        if entry.name not in RECORD_FILES:
            delete_for_good(entry)
    delete_for_good(directory)
