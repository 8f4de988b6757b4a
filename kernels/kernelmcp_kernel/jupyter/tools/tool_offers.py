"""The messages of tools on the control channel: `tools_offer_request`, `tool_request`, `tool_cancel`, `tool_reply`.

The control socket belongs to the control thread, and calls to the event loop's: all messages change threads here.
"""

# ipykernel declares its traits (session, streams) without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
from typing import Any, cast

import zmq
from jupyter_client.session import Session
from zmq.eventloop.zmqstream import ZMQStream

from kernelmcp_kernel.jupyter.requests import AnsweringKernel
from kernelmcp_kernel.jupyter.tools.tool_calls import Peer, ToolCalls
from kernelmcp_kernel.jupyter.tools.tool_messages import Content, Offer, checked_offer
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.offered_files import fill

# Index of the header in a message without routing ids and delimiter.
_HEADER = 1


class OfferedKernel(AnsweringKernel):
    """Accepts the tools that a client offers, and forwards calls and replies."""

    _sandbox: SandboxDirectory

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.control_handlers["tools_offer_request"] = self.tools_offer_request
        self._tools = ToolCalls(self._send_to_peer)

    async def tools_offer_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Handle an offer of tools, or its withdrawal (no servers). Answered when guests see the files."""
        try:
            offer = checked_offer(parent["content"])
            if not hasattr(self, "_guests"):
                raise ValueError("the kernel is just starting: offer it once more")
            await asyncio.to_thread(fill, self._sandbox.offered, offer.folder)
            await self._on_loop(self._offered(list(ident), offer))
            content = {"status": "ok"}
        except (OSError, ValueError) as error:
            content = {"status": "error", "reason": str(error)}
        self.session.send(stream, "tools_offer_reply", content, parent, ident=ident)

    async def _offered(self, peer: Peer, offer: Offer) -> None:
        self._tools.offered(peer, offer)

    async def dispatch_control(self, msg: Any) -> None:
        """Handle a `tool_reply` without busy and idle on iopub, which would cost more than the reply itself."""
        if not self._is_reply(msg):
            await super().dispatch_control(msg)
            return
        session = cast(Session, self.session)
        try:
            peer, parts = session.feed_identities(msg, copy=False)
            reply: Content = session.deserialize(cast("list[bytes]", parts), content=True, copy=False)
        except Exception as error:  # noqa: BLE001  # not signed, sent twice, or no message
            self.log.warning("a tool_reply is refused: %s", error)
            return
        content = reply["content"]
        if hasattr(self, "_guests") and isinstance(content, dict):  # otherwise nothing was asked
            self._loop.call_soon_threadsafe(self._tools.replied, peer, cast(Content, content), reply["buffers"])

    def _is_reply(self, parts: list[zmq.Frame]) -> bool:
        session = cast(Session, self.session)
        try:
            _, signed = session.feed_identities(parts, copy=False)
            header = cast(Content, session.unpack(cast("list[zmq.Frame]", signed)[_HEADER].bytes))
            return header.get("msg_type") == "tool_reply"
        except (ValueError, IndexError, AttributeError):
            return False

    def _send_to_peer(self, kind: str, content: bytes, parent: Content, peer: Peer, ids: list[int]) -> None:
        """Send a message from the event loop's thread."""
        self.control_stream.io_loop.add_callback(self._send_control, kind, content, parent, peer, ids)

    def _send_control(self, kind: str, content: bytes, parent: Content, peer: Peer, ids: list[int]) -> None:
        session, stream = cast(Session, self.session), cast(ZMQStream, self.control_stream)
        message = session.msg(kind, cast(Any, content), parent=parent)  # already JSON
        try:
            _send_to(cast("zmq.Socket[bytes]", stream.socket), session.serialize(message, peer))
        except zmq.ZMQError:
            if ids:
                self._loop.call_soon_threadsafe(self._tools.unreachable, ids)
        stream.flush(zmq.POLLIN)  # a send that bypasses the stream can swallow the event for received messages


def _send_to(socket: zmq.Socket[bytes], parts: list[bytes]) -> None:
    """Send, and raise if a client is gone or does not read: a router does not report this by itself."""
    socket.router_mandatory = 1
    try:
        socket.send_multipart(parts, zmq.NOBLOCK)
    finally:
        socket.router_mandatory = 0
