"""Reports about a cell besides its own output: its guest died, earlier variables are lost, a limit was reached.

Programs read them in the execute_reply's metadata, people as an error or a line on stderr that begins with [kernelmcp].
Such a line has a sign that the guest's have not (`jupyter.iopub`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.guests.cpu import BackgroundLimit, CpuLimit
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.supervisor import Loss
from kernelmcp_kernel.jupyter.iopub import REPORT, Publish
from kernelmcp_kernel.languages.python.prepared import PreparedPackage
from kernelmcp_kernel.settings import settings

Content = dict[str, Any]


class Report:
    """The reports of one execution. `metadata` is the value of "kernelmcp" in its reply's metadata."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self.metadata: Content = {}

    def guest_died(self, cell: Cell, error: GuestDied) -> Content:
        """The reply of a cell whose guest ended while it ran."""
        self._note_loss(str(error))
        whose = f" of {self.metadata['language']}" if "language" in self.metadata else ""
        text = f"The sandbox process{whose} ended: {error}. Its variables are lost; files are kept."
        return self._error(cell, type(error).__name__, text)

    def failure(self, cell: Cell, error: ValueError) -> Content:
        """The reply of a cell that did not run; its variables are unchanged."""
        return self._error(cell, type(error).__name__, str(error))

    def interrupted(self, cell: Cell) -> Content:
        """The reply of a cell that was interrupted before its guest was asked."""
        return self._error(cell, "KeyboardInterrupt", "")

    def earlier_loss(self, cell: Cell, loss: Loss | None) -> None:
        """Mark the first cell in a new guest. A loss that no request has failed with is also reported in text."""
        if loss is None:
            return
        self._note_loss(loss.reason)
        # The reply goes to one client, and the variables were those of all. nbclient takes the type for an error.
        if settings().sandbox is not None:
            self._publish("variables_lost", {"language": self.metadata.get("language")}, {}, cell.parent)
        if not loss.reported:
            self._say(cell, f"the sandbox process had ended ({loss.reason}); earlier variables are lost")

    def background(self, cell: Cell, limit: BackgroundLimit) -> None:
        """Report cancelled tasks, in the first cell after that."""
        if limit.exceeded and not cell.silent:
            limit.exceeded = False
            self._say(cell, f"tasks that earlier cells left running were cancelled: they {limit.text}")

    def limit(self, cell: Cell, limit: CpuLimit) -> None:
        """Report that the cell was interrupted for its CPU time, if it was."""
        if limit.exceeded:
            self.metadata["limit"] = "cpu_seconds"
            self._say(cell, f"the cell {limit.text}")

    def packages(self, packages: Iterable[PreparedPackage]) -> None:
        """Report the packages that come from the guest's boot image, without an install."""
        if listed := [{"name": package.name, "version": package.version} for package in packages]:
            self.metadata["packages"] = listed

    def _note_loss(self, reason: str) -> None:
        self.metadata |= {"state_lost": True, "reason": reason}

    def _say(self, cell: Cell, text: str) -> None:
        if not cell.silent:
            self._publish("stream", {"name": "stderr", "text": f"{REPORT} {text}\n"}, {}, cell.parent)

    def _error(self, cell: Cell, name: str, text: str) -> Content:
        content: Content = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
        if not cell.silent:
            self._publish("error", content, {}, cell.parent)
        return {"status": "error", **content, "user_expressions": {}, "payload": []}
