"""One execution as the kernel process sees it, and its requests to guests. Host calls and output both belong to an
execution."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelmcp_kernel.guests.cpu import CpuLimit

if TYPE_CHECKING:
    from kernelmcp_kernel.guests.guest import Guest
    from kernelmcp_kernel.guests.supervisor import GuestSupervisor


@dataclass(eq=False)
class Cell:
    """One execution: the message that its output answers, and the amount of output sent so far."""

    parent: dict[str, Any]
    ident: Any = None  # the client's ZMQ routing id, for input requests
    silent: bool = False
    allow_stdin: bool = False
    interrupted: bool = False
    stream_chars: int = 0
    display_bytes: int = 0
    messages: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Outputs that were not sent, by the reason."""
    dropped_late: set[str] = field(default_factory=set[str])
    """The reasons that were told after the cell had ended."""
    is_finished: bool = False
    """What was dropped has been told."""
    files: dict[str, None] = field(default_factory=dict[str, None])
    """Paths in the workspace, or /volumes/NAME/PATH, that the guest claims to have written. Not verified: a hostile
    guest can lie."""
    files_chars: int = 0
    requests: dict[str, Request] = field(default_factory=dict[str, "Request"])
    """The requests that guests are working on for this cell, by request id."""
    ended: bool = False
    """No more requests are sent to guests for this cell."""
    has_error: bool = False
    """An error of this cell was published."""

    def request_of(self, guest: Guest, request_id: str) -> Request | None:
        """The running request with this id, if it belongs to this guest and is not abandoned."""
        request = self.requests.get(request_id)
        if request is None or request.abandoned or request.supervisor is None:
            return None
        return request if request.supervisor.guest is guest else None


@dataclass(eq=False)
class Request:
    """A guest's work for a cell: running it, or a part of it while the guest that runs the cell waits."""

    cell: Cell
    id: str = ""
    """Only the guest that gets the request knows it."""
    language: str = ""
    level: int = 0
    """The index of the guest within its language; above 0 only if one guest waits for another."""
    host_calls: frozenset[str] = frozenset()
    """The host calls that the guest may make meanwhile."""
    limit: CpuLimit = field(default_factory=lambda: CpuLimit(None))
    supervisor: GuestSupervisor | None = None
    abandoned: bool = False
    """Nobody waits for it any longer."""

    async def make(self, supervisor: GuestSupervisor, op: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send the request to the guest. Raises the same errors as `GuestSupervisor.request`."""
        self.supervisor = supervisor
        self.cell.requests[self.id] = self
        try:
            return await supervisor.request(op, content, self.id, self.limit)
        finally:
            self.cell.requests.pop(self.id, None)
