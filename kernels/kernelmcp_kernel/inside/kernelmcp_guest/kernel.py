"""What packages look for as `get_ipython().kernel`: the message that is being answered, and the comms.

The kernel itself is another process; ipywidgets' Output asks for no more than this.
"""

from contextvars import ContextVar
from typing import Any

import comm


class GuestKernel:
    """Stands in for ipykernel's. `parent` is the header of the message that code runs for; tasks keep theirs."""

    def __init__(self) -> None:
        self.parent: ContextVar[dict[str, Any] | None] = ContextVar("parent", default=None)

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """The message that is being answered; of its fields only the header is known here."""
        header = self.parent.get() or {}
        found: dict[str, Any] = {"header": header, "parent_header": {}, "metadata": {}, "content": {}, "buffers": []}
        return {**found, "msg_id": header.get("msg_id", ""), "msg_type": header.get("msg_type", "")}

    @property
    def comm_manager(self) -> Any:
        return comm.get_comm_manager()
