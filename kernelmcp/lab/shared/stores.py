"""Lab's stored data on its documents besides the notebooks, checked before it opens: a damaged file must not block it.

Everything that matters is in the notebooks and transcripts. Blocking.
"""

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from kernelmcp.atomic import put_aside
from kernelmcp.notebook.transcript import MAX_FOREIGN_BYTES

HISTORIES = "histories.db"
FILE_IDS = "file_id.db"
SESSIONS = "collaboration_sessions.json"
# The histories of all documents. Without them, open tabs only have to be reloaded.
MAX_STORE_BYTES = 1024 * 1024 * 1024


def check_stores(state: Path) -> None:
    """Replace damaged stores. The documents' history goes together with the sessions' ids: one without the other would
    duplicate cells in an open tab."""
    if not _is_database(state / HISTORIES):
        _delete(state, HISTORIES)
        _delete(state, SESSIONS)
    if not _is_database(state / FILE_IDS):
        _delete(state, FILE_IDS)


def check_notebook(file: Path, *, load: bool = False) -> None:
    """Move an invalid notebook away: a person or a disk has changed it. `load`: also one that a document cannot load,
    which takes seconds to find out about a large one. Raises `OSError`."""
    if not file.exists() and not file.is_symlink():
        return
    try:
        if file.is_symlink():
            raise ValueError("it is a link")
        if not load and file.stat().st_size > MAX_FOREIGN_BYTES:
            return  # not read: a person's own outputs have no limit
        content = file.read_bytes()
        found = cast("dict[str, Any]", json.loads(content))
        if found["nbformat"] != 4 or not all("cell_type" in cell and "source" in cell for cell in found["cells"]):
            raise ValueError("it is not a notebook")
        if load:
            _load(content)
    except (IsADirectoryError, PermissionError, ValueError, TypeError, KeyError, RecursionError):
        put_aside(file)


def _load(content: bytes) -> None:
    """Load a notebook as Lab does. Raises `ValueError`."""
    import nbformat  # Lab chooses its folders before Jupyter is imported
    from jupyter_ydoc import YNotebook

    try:
        YNotebook().set(nbformat.reads(content, as_version=4))
    except Exception as exc:
        raise ValueError("Lab cannot load it") from exc


def _is_database(file: Path) -> bool:
    """True if it is usable, or if there is none yet."""
    try:
        if file.is_symlink() or file.stat().st_size > MAX_STORE_BYTES:
            return False
        with closing(sqlite3.connect(file)) as opened:
            # Check all of it: a damaged page appears when a document is read or written, and open tabs duplicate its
            # cells.
            return opened.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except FileNotFoundError:
        return True
    except (OSError, sqlite3.DatabaseError):
        return False


def _delete(state: Path, name: str) -> None:
    for file in state.glob(f"{name}*"):
        with suppress(OSError):
            file.unlink()
