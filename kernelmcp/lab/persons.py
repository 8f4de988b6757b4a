"""Records which Jupyter clients were browsers of this Lab. Browsers write their executions into the notebook
themselves, so their cells in the log are not written again, unless the browser is gone before the end.

Which ones they were is kept on disk, because the log is read again when Lab restarts.
"""

import json
import time
from collections import Counter
from pathlib import Path

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.output.sanitize import as_list

# Each open tab of a notebook is one client.
MAX_CLIENTS = 20_000
MAX_CLIENT_CHARS = 100
MAX_FILE_BYTES = 4 * 1024 * 1024
# Cells whose executions are remembered: more than anybody has running.
MAX_SENT = 1000
# A connection that has broken comes back within this time.
AWAY_SECONDS = 30.0


class Persons:
    """The session ids of browsers, the newest ones. A damaged file is replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._clients = dict.fromkeys(self._load())
        self._open = Counter[str]()
        """The connections of each browser."""
        self._sent: dict[str, str] = {}
        """The newest execution of each cell, by the cell's id in its notebook."""
        self._asked: dict[str, tuple[str, str]] = {}
        """The kernel and the browser of each execution that waits for a line of input."""
        self._away_since: dict[str, float] = {}
        """Of browsers that are asked and have no connection."""

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

    # -- what an open browser does ------------------------------------------------------------------------------

    def opened(self, client: str) -> None:
        self._open[client] += 1
        self._away_since.pop(client, None)

    def closed(self, client: str) -> None:
        self._open[client] -= 1
        if self._open[client] <= 0:
            del self._open[client]
            if any(client == one for _, one in self._asked.values()):
                self._away_since[client] = time.monotonic()

    def sent(self, execution_id: str, cell: str) -> None:
        """Note that a browser executes this cell of its notebook."""
        self._sent.pop(cell, None)
        self._sent[cell] = execution_id
        while len(self._sent) > MAX_SENT:
            del self._sent[next(iter(self._sent))]

    def asked(self, execution_id: str, kernel_id: str, client: str) -> None:
        """Note that a browser is asked for a line of input, which no other can give."""
        self._asked[execution_id] = kernel_id, client

    def answered(self, client: str) -> None:
        self._asked = {one: asked for one, asked in self._asked.items() if asked[1] != client}

    # -- what it leaves -----------------------------------------------------------------------------------------

    def ended(self, execution_id: str, client: str) -> str | None:
        """Note the end of an execution. Returns the cell that nobody completes now, as its browser is gone."""
        self._asked.pop(execution_id, None)
        if client in self._open:
            return None
        return next((cell for cell, one in self._sent.items() if one == execution_id), None)

    def take_unanswered(self) -> list[str]:
        """The kernels that ask a browser that does not come back. Each question is returned once."""
        gone = {client for client, since in self._away_since.items() if time.monotonic() - since >= AWAY_SECONDS}
        found = [kernel_id for kernel_id, client in self._asked.values() if client in gone]
        for client in gone:
            self.answered(client)
            del self._away_since[client]
        return found

    def _load(self) -> list[str]:
        try:
            found = as_list(json.loads(read_small(self._file, MAX_FILE_BYTES)))
        except (OSError, ValueError, RecursionError):
            return []
        return [client for client in found if isinstance(client, str)][-MAX_CLIENTS:]
