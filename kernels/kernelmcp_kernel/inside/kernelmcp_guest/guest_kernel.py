"""The object that packages use as `get_ipython().kernel`: the current message, the comms, and a session.

The kernel itself is another process; ipywidgets' Output and older notebooks need only this.
"""

from contextvars import ContextVar
from typing import Any

import comm

from kernelmcp_guest.bridge import send

_DISPLAYS = ("display_data", "update_display_data", "execute_result", "clear_output")


class GuestSession:
    """`kernel.session` for notebooks that predate `display(..., display_id=)`, which send displays with it."""

    def send(self, stream: object, msg_or_type: str, content: dict[str, Any] | None = None, **rest: Any) -> None:
        """Send a display of the running cell, ignoring the given parent."""
        if msg_or_type not in _DISPLAYS:
            raise ValueError(f"a sandbox sends no {msg_or_type}, only {', '.join(_DISPLAYS)}")
        send(msg_or_type, **(content or {}))


class GuestKernel:
    """Replaces ipykernel's kernel. `parent` is the header of the message for which code runs; tasks keep theirs."""

    iopub_socket = None

    def __init__(self) -> None:
        self.session = GuestSession()
        self.parent: ContextVar[dict[str, Any] | None] = ContextVar("parent", default=None)
        self._control: dict[str, Any] = {}
        # Private in ipykernel, but packages read it: the routing ids of the requesters, by channel.
        self._parent_ident: dict[str, list[bytes]] = {"shell": [], "control": []}

    def note_channels(self, idents: dict[str, list[str]], control: dict[str, Any]) -> None:
        """Record the requesters (in hexadecimal) and the newest control message's header, when a cell begins."""
        self._control = control
        self._parent_ident = {channel: [bytes.fromhex(each) for each in found] for channel, found in idents.items()}

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """The current message, or with `control` the last one on that channel before the cell. Only headers are set."""
        header = self._control if channel == "control" else self.parent.get() or {}
        found: dict[str, Any] = {"header": header, "parent_header": {}, "metadata": {}, "content": {}, "buffers": []}
        return {**found, "msg_id": header.get("msg_id", ""), "msg_type": header.get("msg_type", "")}

    @property
    def comm_manager(self) -> Any:
        return comm.get_comm_manager()
