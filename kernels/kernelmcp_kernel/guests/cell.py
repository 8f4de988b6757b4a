"""One execution as the kernel process sees it, and the requests to guests that are made for it. Host calls and output
both belong to an execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelmcp_kernel.guests.cpu import CpuLimit

if TYPE_CHECKING:
    from kernelmcp_kernel.guests.guest import Guest
    from kernelmcp_kernel.guests.supervisor import GuestSupervisor


@dataclass(eq=False)
class Cell:
    """One execution: the message that its output answers, and how much it has sent."""

    parent: dict[str, Any]
    ident: Any = None  # the client's ZMQ routing id, for input requests
    silent: bool = False
    allow_stdin: bool = False
    interrupted: bool = False
    stream_chars: int = 0
    display_bytes: int = 0
    messages: int = 0
    dropped: int = 0
    files: dict[str, None] = field(default_factory=dict[str, None])
    """Paths in the workspace, or /volumes/NAME/PATH, that the guest says it has written. It may be lying: nothing has
    checked it."""
    files_chars: int = 0
    requests: dict[str, Request] = field(default_factory=dict[str, "Request"])
    """What guests do for it now, by the id of the request."""
    ended: bool = False
    """Nothing more is asked of guests for it."""

    def request_of(self, guest: Guest, request_id: str) -> Request | None:
        """The request under way with this id, if it is this guest's and somebody waits for it."""
        request = self.requests.get(request_id)
        if request is None or request.abandoned or request.supervisor is None:
            return None
        return request if request.supervisor.guest is guest else None


@dataclass(eq=False)
class Request:
    """What one guest is asked to do for a cell: to run it, or its part in it while the guest that runs it waits."""

    cell: Cell
    id: str = ""
    """Nobody but the guest that is asked can know it."""
    language: str = ""
    level: int = 0
    """Which of the language's guests: more than one only where one waits for the other."""
    host_calls: frozenset[str] = frozenset()
    """What the guest may call meanwhile."""
    limit: CpuLimit = field(default_factory=lambda: CpuLimit(None))
    supervisor: GuestSupervisor | None = None
    abandoned: bool = False
    """Nobody waits for it any more."""

    async def make(self, supervisor: GuestSupervisor, op: str, content: dict[str, Any]) -> dict[str, Any]:
        """Ask the guest. Raises as `GuestSupervisor.request`."""
        self.supervisor = supervisor
        self.cell.requests[self.id] = self
        try:
            return await supervisor.request(op, content, self.id, self.limit)
        finally:
            self.cell.requests.pop(self.id, None)
