"""The connection to one Jupyter kernel: its sockets, its pending requests, and the returned messages.

Messages are dispatched by the parent's message id; a request is done when its reply *and* its idle status have
arrived. Must not know processes, sessions or MCP.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, cast

import structlog
import zmq
import zmq.asyncio
from jupyter_client.manager import AsyncKernelManager

from kernelmcp.cells.late import LateOutput
from kernelmcp.config.guests import OWN_KERNELSPEC
from kernelmcp.errors import KernelDied
from kernelmcp.json_bounds import JsonBounds, check_json, values_in
from kernelmcp.kernel.messages import Messages, adapted
from kernelmcp.kernel.sockets import KernelSocket
from kernelmcp.kernel.tool_channel import TOOL_REQUEST, ToolChannel
from kernelmcp.output.sanitize import SMALL_MESSAGE_BYTES, UNREAD, is_readable, parse

# The kernel binds its sockets some 100 ms after we connected; ZMQ's default of 100 ms between attempts is noticeable.
RECONNECT_INTERVAL_MS = 5
# Outputs of our own kernel that ZMQ receives ahead. Each may be 24 MiB; one more is in transit.
IOPUB_MESSAGES = 1
# Limit per request, in its displays and in large messages: a second or two of unpacking.
MAX_VALUES = 1_600_000
_DISPLAYS = ("display_data", "execute_result", "update_display_data")
# A kernel that is not ours may send all text in one message.
STREAM = JsonBounds(2**26, 1000)
# Requests of another client that may run code in the guest.
RUNNING = ("execute_request", "comm_open", "comm_msg", "comm_close")

log = structlog.get_logger(__name__)

OnOutput = Callable[[str, dict[str, Any]], None]
"""Called with message type and content for each iopub message of a request."""
OnQuestion = Callable[..., Coroutine[Any, Any, str]]
"""Called with the prompt and `is_password` when the code asks for a line of input; returns the answer."""


class IopubListener(Protocol):
    """Hears what no pending request waits for."""

    def hear_late(self, execution_id: str, kind: str, content: dict[str, Any]) -> None:
        """An execution has put something out after its end."""

    def hear_other_use(self, request: dict[str, Any], *, begins: bool, is_cell: bool) -> None:
        """Another client of the kernel has code run in it: a cell, or what a widget's message calls. Comes when that
        `begins`, and when it has ended; `request` is the header of its request."""

    def hear_other(self, request: dict[str, Any], kind: str, content: dict[str, Any]) -> None:
        """Another client of the kernel executes something; `request` is the header of its request."""


def make_context() -> zmq.asyncio.Context:
    """The ZMQ context that all kernels of a server share."""
    context = zmq.asyncio.Context()
    context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_INTERVAL_MS)
    # Unbounded: a kernel that is not ours silently drops outputs if we read slower than it writes.
    context.setsockopt(zmq.RCVHWM, 0)
    context.setsockopt(zmq.SNDHWM, 0)
    context.setsockopt(zmq.LINGER, 0)
    return context


def _iopub(manager: AsyncKernelManager, *, waits: bool) -> zmq.asyncio.Socket:
    """The socket for outputs. `waits`: the kernel waits until they are read, so that few are in our memory."""
    context = cast("zmq.asyncio.Context", manager.context)
    context.setsockopt(zmq.RCVHWM, IOPUB_MESSAGES if waits else 0)
    try:
        return cast("zmq.asyncio.Socket", manager.connect_iopub())
    finally:
        context.setsockopt(zmq.RCVHWM, 0)


@dataclass(slots=True)
class Request:
    """A message to the kernel, until its reply and its idle status have arrived."""

    done: asyncio.Future[dict[str, Any]]
    replied: asyncio.Future[None]
    on_output: OnOutput | None
    is_execution: bool
    on_question: OnQuestion | None = None
    answering: asyncio.Task[None] | None = None
    reply: dict[str, Any] | None = None
    values: int = 0
    idle: bool = False

    def settle(self) -> None:
        if self.reply is not None and self.idle and not self.done.done():
            self.done.set_result(self.reply)
            self.end_question()

    def end_question(self) -> None:
        if self.answering is not None:
            self.answering.cancel()

    def fail(self, error: Exception) -> None:
        self.end_question()
        for future in (self.done, self.replied):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: whoever waits still gets it, and asyncio does not warn when nobody does


class Connection:
    """The shell, control and iopub sockets of a kernel that a manager has started."""

    def __init__(self, manager: AsyncKernelManager, kernelspec: str, kernel_name: str) -> None:
        self._messages = Messages(manager.session)
        self._kernel_name = kernel_name
        self._requests: dict[str, Request] = {}
        self._failed = False
        self.listener: IopubListener | None = None
        self._other_values = self._late_values = 0
        self._late = LateOutput()
        """Output of tasks that executions have left behind: the next execution's reply has it under "background"."""
        # The kernel asks the client that sent the request for input, by the same identity on its stdin socket.
        self.shell = self._open(manager.connect_shell(manager.session.bsession), self._handle)
        self.control = self._open(manager.connect_control(), self._handle)
        self._iopub = self._open(_iopub(manager, waits=kernelspec == OWN_KERNELSPEC), self._handle_iopub)
        self._manager = manager
        self._stdin: KernelSocket | None = None
        self._stdin_reader: asyncio.Task[None] | None = None
        self.tools = ToolChannel(self._send_to_control)

    @staticmethod
    def _open(connected: Any, handle: Callable[[list[bytes]], None]) -> KernelSocket:
        return KernelSocket(cast("zmq.asyncio.Socket", connected), handle)

    @property
    def sockets(self) -> list[KernelSocket]:
        return [self.shell, self.control, self._iopub]

    @property
    def execution_id(self) -> str | None:
        """The message id of the running execution: the newest one, because the last message of an earlier one may not
        have been read yet."""
        return next((msg_id for msg_id, request in reversed(self._requests.items()) if request.is_execution), None)

    def fail(self, reason: str) -> None:
        """Fail all pending requests, and all later ones."""
        self._failed = True
        self.tools.fail()
        for request in self._requests.values():
            request.fail(KernelDied(reason))
        self._requests.clear()

    def close(self) -> None:
        if self._stdin_reader is not None:
            self._stdin_reader.cancel()
        for socket in [*self.sockets, *([self._stdin] if self._stdin is not None else [])]:
            socket.close()

    def send(
        self,
        socket: KernelSocket,
        kind: str,
        content: dict[str, Any],
        on_output: OnOutput | None,
        metadata: dict[str, Any] | None = None,
        msg_id: str | None = None,
        on_question: OnQuestion | None = None,
    ) -> Request:
        """Send a request. Its futures fail with `KernelDied` when the kernel has ended."""
        if kind == "execute_request":
            self._late_values = 0
        loop = asyncio.get_running_loop()
        request = Request(loop.create_future(), loop.create_future(), on_output, kind == "execute_request", on_question)
        if self._failed:
            request.fail(KernelDied("the kernel process has ended"))
            return request
        msg_id, frames = self._messages.pack(kind, content, metadata=metadata, msg_id=msg_id)
        self._requests[msg_id] = request
        if on_question is not None and self._stdin is None:
            # Few sessions ever ask: the socket is opened for the first request that may.
            self._stdin = self._open(self._manager.connect_stdin(self._manager.session.bsession), self._handle)
            self._stdin_reader = loop.create_task(self._stdin.read())
        try:
            socket.send(frames)
        except zmq.ZMQError as error:
            del self._requests[msg_id]
            request.fail(KernelDied(f"the connection to the kernel is broken: {error}"))
        return request

    def answer(self, kind: str, content: dict[str, Any]) -> None:
        """Answer on the control channel what the kernel has asked on iopub."""
        self._send_to_control(kind, content, [])

    def _send_to_control(self, kind: str, content: bytes | dict[str, Any], buffers: list[bytes]) -> None:
        """Send a message that is not a request."""
        if not self._failed:
            _, frames = self._messages.pack(kind, content)
            self.control.send([*frames, *buffers], copy=not buffers)

    def _handle(self, frames: list[bytes], *, is_iopub: bool = False) -> None:
        """Handle one message."""
        try:
            message = self._unpack(frames)
            if is_iopub or not self.tools.take(message):  # before it is treated as the reply to its parent
                self._dispatch(message, is_iopub)
        except Exception:
            # An unsigned message, invalid JSON, a violation of the protocol, or a bug in one of our handlers.
            log.exception("dropped a message from the kernel", kernel=self._kernel_name)

    def _handle_iopub(self, frames: list[bytes]) -> None:
        self._handle(frames, is_iopub=True)

    def _unpack(self, frames: list[bytes]) -> dict[str, Any]:
        """Unpack a message. Its content stays unread if it would take too much memory, or if its request has used up
        its share of values: unpacking them blocks the event loop. A text or a picture is one value, whatever its
        size."""
        message, content = self._messages.unpack(frames)
        kind, is_large = message["msg_type"], len(content) > SMALL_MESSAGE_BYTES
        if kind == "stream":
            if is_large:
                check_json(content, STREAM)
        elif not is_readable(content) or (
            ((is_large and kind != TOOL_REQUEST) or kind in _DISPLAYS) and not self._has_share(message, content)
        ):
            return message | {"content": dict(UNREAD)}
        message["content"] = parse(content)
        return adapted(message)

    def _has_share(self, message: dict[str, Any], content: bytes) -> bool:
        """Whether an execution has so many values left. Once it has none, nobody counts them any more."""
        if (request := self._requests.get(message["parent_header"].get("msg_id"))) is not None:
            request.values = _with(request.values, content)
            return request.values <= MAX_VALUES
        if not self._is_of_another(message):
            self._late_values = _with(self._late_values, content)
            return self._late_values <= MAX_VALUES
        if self.listener is None:
            return False  # nothing would use it
        self._other_values = _with(self._other_values, content)
        return self._other_values <= MAX_VALUES

    def _dispatch(self, message: dict[str, Any], is_iopub: bool) -> None:
        msg_id = message["parent_header"].get("msg_id")
        request = self._requests.get(msg_id)
        if request is None:
            if is_iopub:
                self._hear(message)
            return
        if message["msg_type"] == "input_request":
            self._ask(request, message)
        elif not is_iopub:
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

    def _hear(self, message: dict[str, Any]) -> None:
        """Handle a message without a pending request: from a task that has outlived its cell, or for another client."""
        kind, content = message["msg_type"], message["content"]
        if not self._is_of_another(message):
            self._late.feed(kind, content)
            if self.listener is not None:
                self.listener.hear_late(str(message["parent_header"].get("msg_id")), kind, content)
        elif self.listener is not None and (asked := message["parent_header"].get("msg_type")) in RUNNING:
            is_cell = asked == "execute_request"
            if kind == "status":
                begins, header = content.get("execution_state") == "busy", message["parent_header"]
                self.listener.hear_other_use(header, begins=begins, is_cell=is_cell)
            if is_cell:
                if kind == "execute_input":
                    self._other_values = 0
                self.listener.hear_other(message["parent_header"], kind, content)

    def _is_of_another(self, message: dict[str, Any]) -> bool:
        own = self._messages.session_id
        return message["parent_header"].get("session", own) != own

    def _ask(self, request: Request, message: dict[str, Any]) -> None:
        if request.on_question is not None:
            request.end_question()
            request.answering = asyncio.ensure_future(self._answer(request.on_question, message))

    async def _answer(self, on_question: OnQuestion, message: dict[str, Any]) -> None:
        content = message["content"]
        value = await on_question(str(content.get("prompt", "")), is_password=content.get("password") is True)
        if self._stdin is not None and not self._failed:  # it may have ended in the turn of the answer
            _, frames = self._messages.pack("input_reply", {"value": value}, parent=message)
            self._stdin.send(frames)


def _with(values: int, content: bytes) -> int:
    return values if values > MAX_VALUES else values + values_in(content)
