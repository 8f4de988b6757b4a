"""Records which Jupyter clients were browsers of this Lab. Browsers write their executions into the notebook
themselves, so their cells in the log are not written again.

Kept on disk, because the log is read again when Lab restarts.
"""

import json
from pathlib import Path

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.output.sanitize import as_list

# Each open tab of a notebook is one client.
MAX_CLIENTS = 20_000
MAX_CLIENT_CHARS = 100
MAX_FILE_BYTES = 4 * 1024 * 1024


class Persons:
    """The session ids of browsers, the newest ones. A damaged file is replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._clients = dict.fromkeys(self._load())

    def __contains__(self, client: object) -> bool:
        return isinstance(client, str) and client in self._clients

    def add(self, client: str) -> None:
        """Add a client. It is remembered even if this raises OSError."""
        if client in self._clients or len(client) > MAX_CLIENT_CHARS:
            return
        self._clients[client] = None
        while len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        replace_text(self._file, json.dumps(list(self._clients)))

    def _load(self) -> list[str]:
        try:
            found = as_list(json.loads(read_small(self._file, MAX_FILE_BYTES)))
        except (OSError, ValueError, RecursionError):
            return []
        return [client for client in found if isinstance(client, str)][-MAX_CLIENTS:]
