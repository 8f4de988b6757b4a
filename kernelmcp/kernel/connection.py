"""The connection to one Jupyter kernel: its sockets, the requests that are pending, and the messages that come back.

One task reads each socket and dispatches by the parent's message id; a request is done when its reply *and* its idle
status have arrived. Must not know processes, sessions or MCP.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import structlog
import zmq
import zmq.asyncio
from jupyter_client.manager import AsyncKernelManager

from kernelmcp.errors import KernelDied
from kernelmcp.output.late import LateOutput
from kernelmcp.output.sanitize import SMALL_MESSAGE_BYTES, UNREAD, is_readable

# The kernel binds its sockets some 100 ms after we connected; ZMQ's default of 100 ms between attempts shows.
RECONNECT_INTERVAL_MS = 5
# Messages handled before other tasks get a turn: 100,000 outputs must not block other sessions.
MESSAGES_PER_TURN = 100
# Of one request, in its large messages: a second of unpacking or two.
MAX_VALUES = 1_600_000
# Which part of a message its content is.
_CONTENT = 4

log = structlog.get_logger(__name__)

OnOutput = Callable[[str, dict[str, Any]], None]
"""Called with message type and content for each iopub message of a request."""


def make_context() -> zmq.asyncio.Context:
    """The ZMQ context that all kernels of a server share."""
    context = zmq.asyncio.Context()
    context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
    # Unbounded: a high-water mark on iopub would silently drop outputs.
    context.setsockopt(zmq.RCVHWM, 0)
    context.setsockopt(zmq.SNDHWM, 0)
    context.setsockopt(zmq.LINGER, 0)
    return context


@dataclass(slots=True)
class Request:
    """A message to the kernel, until its reply and its idle status have arrived."""

    done: asyncio.Future[dict[str, Any]]
    replied: asyncio.Future[None]
    on_output: OnOutput | None
    is_execution: bool
    reply: dict[str, Any] | None = None
    values: int = 0
    idle: bool = False

    def settle(self) -> None:
        if self.reply is not None and self.idle and not self.done.done():
            self.done.set_result(self.reply)

    def fail(self, error: Exception) -> None:
        for future in (self.done, self.replied):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: whoever waits still gets it, and asyncio does not warn when nobody does


class Connection:
    """The shell, control and iopub sockets of a kernel that a manager has started."""

    def __init__(self, manager: AsyncKernelManager, kernel_name: str) -> None:
        self._session = manager.session
        self._kernel_name = kernel_name
        self._requests: dict[str, Request] = {}
        self._failed = False
        self._late = LateOutput()
        """Of tasks that executions have left behind: the next execution's reply has it under "background"."""
        self.shell = cast("zmq.asyncio.Socket", manager.connect_shell())
        self.control = cast("zmq.asyncio.Socket", manager.connect_control())
        self.iopub = cast("zmq.asyncio.Socket", manager.connect_iopub())

    @property
    def sockets(self) -> list[zmq.asyncio.Socket]:
        return [self.shell, self.control, self.iopub]

    @property
    def execution_id(self) -> str | None:
        """The message id of the execution that runs: the newest, because of one before it the last message may not have
        been read yet."""
        return next((msg_id for msg_id, request in reversed(self._requests.items()) if request.is_execution), None)

    def fail(self, reason: str) -> None:
        """Fail what is pending, and everything from now on."""
        self._failed = True
        for request in self._requests.values():
            request.fail(KernelDied(reason))
        self._requests.clear()

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(0)

    def send(
        self,
        socket: zmq.asyncio.Socket,
        kind: str,
        content: dict[str, Any],
        on_output: OnOutput | None,
        metadata: dict[str, Any] | None = None,
    ) -> Request:
        """Send a request. Its futures fail with `KernelDied` when the kernel has ended."""
        session = self._session
        message = session.msg(kind, content, metadata=metadata)
        loop = asyncio.get_running_loop()
        request = Request(loop.create_future(), loop.create_future(), on_output, kind == "execute_request")
        if self._failed:
            request.fail(KernelDied("the kernel process has ended"))
            return request
        self._requests[message["header"]["msg_id"]] = request
        # Not awaited: with no high-water mark a send never waits. Not session.send: it writes through a shadow of the
        # socket, and that can swallow the edge that wakes the reader.
        socket.send_multipart(session.serialize(message))
        return request

    async def read(self, socket: zmq.asyncio.Socket) -> None:
        """Handle the messages of one socket. Runs for the kernel's life."""
        session = self._session
        is_iopub = socket is self.iopub
        handled = 0
        while True:
            frames = await socket.recv_multipart()
            try:
                self._dispatch(self._unpack(session.feed_identities(frames)[1]), is_iopub)
            except Exception:
                # A message that is not signed, not JSON or not what the protocol says; or our bug in a handler.
                log.exception("dropped a message from the kernel", kernel=self._kernel_name)
            handled += 1
            if handled % MESSAGES_PER_TURN == 0 or sum(map(len, frames)) > SMALL_MESSAGE_BYTES:
                await asyncio.sleep(0)

    def _unpack(self, parts: list[bytes]) -> dict[str, Any]:
        """The message. Its content is left unread when it would take too much memory, or when its request has had its
        share of values: unpacking them holds up everybody. A text or a picture is one value, whatever its size."""
        session, content = self._session, parts[_CONTENT]
        if len(content) <= SMALL_MESSAGE_BYTES:
            return session.deserialize(parts)
        message = session.deserialize(parts, content=False)
        if message["msg_type"] == "stream" or (is_readable(content) and self._has_share(message, content)):
            message["content"] = session.unpack(content)
        else:
            message["content"] = dict(UNREAD)
        return message

    def _has_share(self, message: dict[str, Any], content: bytes) -> bool:
        request = self._requests.get(message["parent_header"].get("msg_id"))
        if request is None:
            return False  # nobody would look at it
        request.values += content.count(b",")
        return request.values <= MAX_VALUES

    def _dispatch(self, message: dict[str, Any], is_iopub: bool) -> None:
        msg_id = message["parent_header"].get("msg_id")
        request = self._requests.get(msg_id)
        if request is None:
            if is_iopub:
                self._late.feed(message["msg_type"], message["content"])
            return
        if not is_iopub:
            request.reply = message
            if not request.replied.done():
                request.replied.set_result(None)
        elif message["msg_type"] == "status":
            request.idle = request.idle or message["content"].get("execution_state") == "idle"
        elif request.on_output is not None:
            request.on_output(message["msg_type"], message["content"])
        if request.reply is not None and request.idle:
            del self._requests[msg_id]
            if request.is_execution and request.on_output is not None:
                request.reply["background"] = self._late.take()
            request.settle()
