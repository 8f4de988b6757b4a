"""What Lab keeps of its documents besides the notebooks, looked at before it opens: a damaged file keeps nothing shut.

The notebooks and the transcripts have everything that matters. Blocking.
"""

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

from kernelmcp.notebook.journal import put_aside
from kernelmcp.notebook.transcript import MAX_FOREIGN_BYTES

HISTORIES = "histories.db"
FILE_IDS = "file_id.db"
SESSIONS = "collaboration_sessions.json"
# The histories of all documents. Without them tabs that are open ask to be loaded again, no more.
MAX_STORE_BYTES = 1024 * 1024 * 1024


def check_stores(state: Path) -> None:
    """Begin damaged ones anew. The documents' history goes with the sessions' ids: one without the other would double
    cells in an open tab."""
    if not _is_database(state / HISTORIES):
        _delete(state, HISTORIES)
        _delete(state, SESSIONS)
    if not _is_database(state / FILE_IDS):
        _delete(state, FILE_IDS)


def check_notebook(file: Path) -> None:
    """Put aside what is no notebook: a person or a disk has changed it. Raises `OSError`."""
    if not file.exists() and not file.is_symlink():
        return
    try:
        if file.is_symlink() or file.stat().st_size > MAX_FOREIGN_BYTES:
            raise ValueError("it is a link, or too large")
        found = cast("dict[str, Any]", json.loads(file.read_bytes()))
        if found["nbformat"] != 4 or not all("cell_type" in cell and "source" in cell for cell in found["cells"]):
            raise ValueError("it is no notebook")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        put_aside(file)


def _is_database(file: Path) -> bool:
    """Whether it can be used; also when there is none yet."""
    try:
        if file.is_symlink() or file.stat().st_size > MAX_STORE_BYTES:
            return False
        with closing(sqlite3.connect(file)) as opened:
            # All of it: a damaged page is found when a document is read or written, and open tabs double its cells.
            return opened.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except FileNotFoundError:
        return True
    except (OSError, sqlite3.DatabaseError):
        return False


def _delete(state: Path, name: str) -> None:
    for file in state.glob(f"{name}*"):
        with suppress(OSError):
            file.unlink()
