"""Comms (the channel of ipywidgets): the guest's side of comm_open, comm_msg and comm_close."""

from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from kernelmcp_guest.bridge import send


class GuestComm(BaseComm):
    """A comm whose messages are frames to the kernel process. Binary buffers are not supported."""

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        send(msg_type, comm=content, metadata=metadata or {})


_manager = CommManager()


def _create_comm(*args: Any, **kwargs: Any) -> GuestComm:
    return GuestComm(*args, **kwargs)


def _get_manager() -> CommManager:
    return _manager


def install() -> None:
    """Make `comm.create_comm` (and so ipywidgets) use these comms."""
    comm.create_comm = _create_comm
    comm.get_comm_manager = _get_manager


def comm_message(msg_type: str, content: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Handle one comm message from the frontend."""
    handler = getattr(_manager, msg_type)
    handler(None, None, {"content": content, "metadata": metadata, "buffers": []})


def comm_info(target_name: str | None) -> dict[str, dict[str, str]]:
    """The open comms, for comm_info_request."""
    return {
        comm_id: {"target_name": open_comm.target_name}
        for comm_id, open_comm in _manager.comms.items()
        if target_name is None or open_comm.target_name == target_name
    }
