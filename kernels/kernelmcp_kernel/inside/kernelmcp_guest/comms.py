"""Comms (the channel of ipywidgets): the guest's side of comm_open, comm_msg and comm_close."""

from base64 import b64decode, b64encode
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from kernelmcp_guest.bridge import send
from kernelmcp_guest.ipython_shell import GuestShell


class GuestComm(BaseComm):
    """A comm whose messages are frames to the kernel process, binary buffers in base64."""

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        encoded = [b64encode(memoryview(each).tobytes()).decode() for each in buffers or []]
        send(msg_type, comm=content, metadata=metadata or {}, buffers=encoded)


_manager = CommManager()


def install() -> None:
    """Make `comm.create_comm` (and so ipywidgets) use these comms."""
    comm.create_comm = GuestComm
    comm.get_comm_manager = lambda: _manager


def comm_message(
    msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[str], parent: dict[str, Any]
) -> dict[str, Any]:
    """comm_open, comm_msg or comm_close from the frontend; `parent` is the message's header. Buffers are in base64."""
    GuestShell.instance().kernel.parent.set(parent)
    handler = getattr(_manager, msg_type)
    decoded = [memoryview(b64decode(each)) for each in buffers]
    handler(None, None, {"content": content, "metadata": metadata, "buffers": decoded})
    return {}


def comm_info(target_name: str | None) -> dict[str, Any]:
    """comm_info_request: the open comms."""
    found = {
        comm_id: {"target_name": each.target_name}
        for comm_id, each in _manager.comms.items()
        if target_name is None or each.target_name == target_name
    }
    return {"status": "ok", "comms": found}
