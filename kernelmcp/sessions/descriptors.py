"""Publishes this server's sessions to other Jupyter programs of the same user: one file each in the runtime directory.

    runtime/sessions/<kernel id>.json     the session's description, and the connection file of its kernel

A session keeps its kernel id for life, across kernel processes. `docs/lab.md` has the fields; `kernelmcp.lab` reads
them. Anyone who can read the file can use the kernel, so the directory is private to the user.
"""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import structlog

from kernelmcp.atomic import replace_text
from kernelmcp.files.home import Home
from kernelmcp.sessions.session import Observer, Session
from kernelmcp.sessions.storage.stored import StoredSessions
from kernelmcp.version import __version__

FORMAT = 1
FOLDER = "sessions"
# The namespace of kernel ids; any fixed UUID would do.
NAMESPACE = uuid.UUID("6b2f6f3a-5f0e-4c0a-9f3e-6e2d0a1c7b54")

log = structlog.get_logger(__name__)


def kernel_id_of(directory: Path) -> str:
    """The id under which Jupyter programs know the kernel of a session; derived from the session's directory."""
    return str(uuid.uuid5(NAMESPACE, directory.name))


class Descriptors(Observer):
    """The files of one server. They are written in the event loop: one kilobyte, if that has changed."""

    def __init__(self, home: Home, stored: StoredSessions, transport: str) -> None:
        self._folder = home.runtime / FOLDER
        self._stored = stored
        self._server = {"pid": os.getpid(), "version": __version__, "transport": transport}
        self._written: dict[str, str] = {}
        self._sessions: dict[str, Session] = {}

    def find(self, kernel_id: str) -> Session | None:
        """The session that has this kernel id."""
        return self._sessions.get(kernel_id)

    def kernel_changed(self, session: Session) -> None:
        """Write any changes; delete the file of a session that this server no longer has."""
        directory = self._stored.directory(session.principal, session.id)
        kernel_id = kernel_id_of(directory)
        file = self._folder / f"{kernel_id}.json"
        try:
            if session.life.is_ending:
                self._sessions.pop(kernel_id, None)
                self._written.pop(kernel_id, None)
                file.unlink(missing_ok=True)
                return
            self._sessions[kernel_id] = session
            text = json.dumps(self._describe(session, kernel_id))
            if self._written.get(kernel_id) != text:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                replace_text(file, text)
                self._written[kernel_id] = text
        except OSError as exc:  # JupyterLab loses the session; the model must not notice
            log.error("a session cannot be shown to JupyterLab", session=session.id, error=str(exc))

    def _describe(self, session: Session, kernel_id: str) -> dict[str, Any]:
        file = session.kernel.connection_file if session.kernel is not None else None
        return {
            "format": FORMAT,
            "kernel_id": kernel_id,
            "session_id": session.id,
            "principal": session.principal,
            "language": session.record.language,
            "created_at": session.record.created_at,
            "state": "stopped" if file is None else "live",
            "connection_file": None if file is None else str(file),
            "went_back_to": session.queue.binding.went_back_to,
            "directory": str(session.place),
            "server": self._server,
        }
