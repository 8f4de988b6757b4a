"""A browser's connection to a kernel. It records which Jupyter clients are browsers, and what they execute; and it
forwards to a browser only the messages that it needs: outputs of the model's cells arrive with the notebook, and would
be shown twice."""

import contextlib
from typing import Any, ClassVar

from jupyter_client.session import DELIM
from jupyter_server.services.kernels.connection import base
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from kernelmcp.lab.persons import Persons
from kernelmcp.lab.tame import Room, tame_bundle, tame_metadata, tame_state
from kernelmcp.output.sanitize import UNREAD, as_dict, as_list, is_readable

# Messages of other clients' executions that a browser needs: whether the kernel is busy, and changes of its own
# displays and widgets.
OF_OTHERS = ("status", "update_display_data", "comm_open", "comm_msg", "comm_close", "input_request")
# Messages that may contain markup. In a reply it is a pager's content: Lab draws that as an output of the cell.
SHOWN = ("display_data", "execute_result", "update_display_data", "comm_open", "comm_msg")
REPLIES = ("execute_reply", "inspect_reply")
# How JupyterLab frames its messages.
WIRE = "v1.kernel.websocket.jupyter.org"
TOO_LARGE = {"data": {"text/plain": "[this output is too large to be shown]"}, "metadata": {}, "transient": {}}
_HEADER, _PARENT, _CONTENT = 1, 2, 4


class BrowserConnection(ZMQChannelsWebsocketConnection):
    persons: ClassVar[Persons]
    """Set before the first instance is created."""
    _is_gone = False
    _is_open = False
    _all: ClassVar[dict[str, set["BrowserConnection"]]] = {}

    async def prepare(self) -> None:
        await super().prepare()
        with contextlib.suppress(OSError):  # remembered while this Lab runs
            self.persons.add(self.session.session)
        self.persons.opened(self.session.session)
        self._is_open = True
        self._all.setdefault(self.kernel_id, set()).add(self)

    def disconnect(self) -> None:
        """Disconnect once: the inherited method counts a kernel's connections, and that may be another kernel by
        then."""
        if self._is_gone:
            return
        self._is_gone = True
        self._all.get(self.kernel_id, set()).discard(self)
        if self._is_open:
            self.persons.closed(self.session.session)
        super().disconnect()

    def handle_incoming_message(self, incoming_msg: Any) -> None:
        if self.subprotocol == WIRE:
            framing: Any = base
            channel, parts = framing.deserialize_msg_from_ws_v1(incoming_msg)
            header, _, metadata = (as_dict(self.session.unpack(part)) for part in parts[:3])
            if channel == "stdin":
                self.persons.answered(self.session.session)
            elif header.get("msg_type") == "execute_request":
                self.persons.sent(str(header.get("msg_id")), str(metadata.get("cellId")))
        super().handle_incoming_message(incoming_msg)

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[Any]) -> None:
        channel = stream if isinstance(stream, str) else getattr(stream, "channel", None)
        wire: Any = self.session
        if channel == "stdin":
            _, parts = wire.feed_identities(outgoing_msg)
            parent = as_dict(wire.unpack(parts[_PARENT]))
            self.persons.asked(str(parent.get("msg_id")), self.kernel_id, wire.session)
        if channel in ("iopub", "shell"):
            identities, parts = wire.feed_identities(outgoing_msg, copy=True)
            kind = wire.unpack(parts[_HEADER]).get("msg_type")
            if channel == "iopub" and kind not in OF_OTHERS:
                parent = wire.unpack(parts[_PARENT])
                if parent and parent.get("session") not in self.persons:
                    return
            if kind in SHOWN or kind in REPLIES:
                outgoing_msg = [*identities, DELIM, *self._tamed(parts, kind)]
        super().handle_outgoing_message(stream, outgoing_msg)

    def _tamed(self, parts: list[bytes], kind: str) -> list[bytes]:
        wire: Any = self.session
        content: dict[str, Any] = UNREAD if kind in REPLIES else TOO_LARGE
        if is_readable(parts[_CONTENT]):
            content = tamed_content(kind, as_dict(wire.unpack(parts[_CONTENT])))
        signed: list[Any] = [*parts[_HEADER:_CONTENT], self.session.pack(content)]
        return [self.session.sign(signed), *signed, *parts[_CONTENT + 1 :]]

    @classmethod
    def close_all_of(cls, kernel_id: str, *, restarted: bool) -> None:
        """Close them: the kernel process is gone. A browser that is told of a restart reports it and reconnects."""
        for connection in cls._all.pop(kernel_id, set()):
            with contextlib.suppress(Exception):  # the peer is about to close it
                if restarted:
                    connection.on_kernel_restarted()
            with contextlib.suppress(Exception):
                connection.disconnect()
                connection.websocket_handler.close()


def tamed_content(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Sanitize a message that may contain markup before a browser gets it. Code is unchanged, including that of the
    next cell, which a reply may contain."""
    if kind == "execute_reply":
        payload, room = map(as_dict, as_list(content.get("payload"))), Room()
        return content | {"payload": [_with_tame_data(one, room) if "data" in one else one for one in payload]}
    if kind in ("comm_open", "comm_msg"):
        return tame_state(content)
    return _with_tame_data(content, Room())


def _with_tame_data(content: dict[str, Any], room: Room) -> dict[str, Any]:
    data, metadata = as_dict(content.get("data")), as_dict(content.get("metadata"))
    return content | {"data": tame_bundle(data, room), "metadata": tame_metadata(metadata)}
