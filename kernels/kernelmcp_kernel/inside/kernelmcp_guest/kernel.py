"""What packages look for as `get_ipython().kernel`: the message that is being answered, the comms, and a session.

The kernel itself is another process; ipywidgets' Output and older notebooks ask for no more than this.
"""

from contextvars import ContextVar
from typing import Any

import comm

from kernelmcp_guest.bridge import send

_DISPLAYS = ("display_data", "update_display_data", "execute_result", "clear_output")


class GuestSession:
    """What notebooks do with `kernel.session` that predate `display(..., display_id=)`: they send displays."""

    def send(self, stream: object, msg_or_type: str, content: dict[str, Any] | None = None, **rest: Any) -> None:
        """Send a display of the running cell, whatever parent is named."""
        if msg_or_type not in _DISPLAYS:
            raise ValueError(f"a sandbox sends no {msg_or_type}, only {', '.join(_DISPLAYS)}")
        send(msg_or_type, **(content or {}))


class GuestKernel:
    """Stands in for ipykernel's. `parent` is the header of the message that code runs for; tasks keep theirs."""

    iopub_socket = None

    def __init__(self) -> None:
        self.session = GuestSession()
        self.parent: ContextVar[dict[str, Any] | None] = ContextVar("parent", default=None)
        self._control: dict[str, Any] = {}
        # Private in ipykernel, and kept there because packages read it: the routing ids of who asked, by channel.
        self._parent_ident: dict[str, list[bytes]] = {"shell": [], "control": []}

    def note_channels(self, idents: dict[str, list[str]], control: dict[str, Any]) -> None:
        """Who asked (in hexadecimal), and the header of the newest control message, as they are when a cell begins."""
        self._control = control
        self._parent_ident = {channel: [bytes.fromhex(each) for each in found] for channel, found in idents.items()}

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """The message that is being answered, or with `control` the last one on that channel before the cell; of its
        fields only the header is known here."""
        header = self._control if channel == "control" else self.parent.get() or {}
        found: dict[str, Any] = {"header": header, "parent_header": {}, "metadata": {}, "content": {}, "buffers": []}
        return {**found, "msg_id": header.get("msg_id", ""), "msg_type": header.get("msg_type", "")}

    @property
    def comm_manager(self) -> Any:
        return comm.get_comm_manager()
