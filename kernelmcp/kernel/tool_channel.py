"""Tools that a server offers to a kernel: converts the messages on the control channel to callbacks and back.

Knows only which calls are pending: their callers and permissions are decided above. A call's content comes from a
guest; the kernel process has checked its shape and size.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import structlog

TOOL_REQUEST = "tool_request"
TOOL_CANCEL = "tool_cancel"
# How long a reply waits for others, per pending call and at most: a message for each would cost all processes from here
# to the guest more than the reply does. A reply that no other can join is sent at once.
HOLD_SECONDS = 0.0005
MAX_HOLD_SECONDS = 0.012
# Held replies are sent once they exceed this, in bytes of their JSON.
HELD_BYTES = 1_000_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """The servers, and a folder with files that show their tools, and skills. Without both nothing is offered."""

    digest: str
    folder: Path
    servers: Sequence[str]
    concurrent_calls: int = 24


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`size`: bytes of the arguments as JSON."""

    id: int
    server: str
    tool: str
    arguments: dict[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The outcome of a call. One of the three: `result` is a CallToolResult with its wire names, `raw` the same as
    unparsed JSON, `error` the class that the guest raises, and its text."""

    id: int
    result: dict[str, Any] | None = None
    raw: bytes | None = None
    error: tuple[str, str] | None = None


class ToolListener(Protocol):
    """Answers the calls. Must not block, and not raise."""

    def tool_call(self, parent: dict[str, Any], calls: list[ToolCall]) -> None:
        """`parent`: the header of the request whose cell has made the calls."""
        ...

    def tool_cancel(self, ids: list[int]) -> None:
        """These calls were cancelled; nobody waits for them any more."""
        ...


Send = Callable[[str, bytes, list[bytes]], None]
"""Sends a message on the control channel: its type, its content as JSON, and its buffers."""


class ToolChannel:
    """The calls of one kernel."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._listener: ToolListener | None = None
        self._under_way: set[int] = set()
        self._held: list[ToolReply] = []
        self._held_bytes = 0
        self._timer: asyncio.Handle | None = None

    def listen(self, listener: ToolListener) -> None:
        """Let this listener answer calls from now on."""
        self._listener = listener

    def take(self, message: dict[str, Any]) -> bool:
        """Handle a message of this channel. Returns False for other messages."""
        kind, content = message["msg_type"], message["content"]
        if kind == TOOL_REQUEST:
            self._tool_call(message["parent_header"], [_read_call(call) for call in content["calls"]])
        elif kind == TOOL_CANCEL:
            self._tool_cancel([id_ for id_ in content["ids"] if id_ in self._under_way])
        else:
            return False
        return True

    def _tool_call(self, parent: dict[str, Any], calls: list[ToolCall]) -> None:
        self._under_way.update(call.id for call in calls)
        if self._listener is not None:
            self._listener.tool_call(parent, calls)
        else:  # a kernel calls only after an offer
            unavailable = ("ServerUnavailable", "the MCP servers are no longer offered")
            self.reply([ToolReply(call.id, error=unavailable) for call in calls])

    def _tool_cancel(self, ids: list[int]) -> None:
        self._under_way.difference_update(ids)
        if ids and self._listener is not None:
            self._listener.tool_cancel(ids)

    def fail(self) -> None:
        """Cancel all calls: the kernel has ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
        self._tool_cancel(list(self._under_way))

    def reply(self, replies: Sequence[ToolReply]) -> None:
        """Answer calls; those that were cancelled meanwhile are omitted."""
        for reply in replies:
            if reply.id in self._under_way:
                self._under_way.remove(reply.id)
                self._held.append(reply)
                self._held_bytes += len(reply.raw or b"")
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._flush, True)
        elif self._held and (not self._under_way or self._held_bytes > HELD_BYTES):
            self._flush(may_wait=False)

    def _flush(self, may_wait: bool) -> None:
        """Send the held replies. The first time in a while it may wait for more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if may_wait and self._under_way and self._held_bytes <= HELD_BYTES:
            seconds = min(HOLD_SECONDS * len(self._under_way), MAX_HOLD_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._flush, False)
            return
        replies, self._held, self._held_bytes = self._held, [], 0
        buffers: list[bytes] = []
        bodies = [_body(reply, buffers) for reply in replies]
        self._send("tool_reply", f'{{"replies":[{",".join(bodies)}]}}'.encode(), buffers)


def note_answer(answer: asyncio.Future[dict[str, Any]]) -> None:
    """Log an offer that its kernel has rejected: its guests keep the previous one."""
    if not answer.cancelled() and answer.exception() is None:
        content = answer.result()["content"]
        if content.get("status") != "ok":
            log.error("a kernel has refused the offered tools", reason=str(content.get("reason"))[:500])


def _read_call(call: dict[str, Any]) -> ToolCall:
    arguments = cast("dict[str, Any]", call["arguments"])
    return ToolCall(int(call["id"]), str(call["server"]), str(call["tool"]), arguments, int(call["size"]))


def _body(reply: ToolReply, buffers: list[bytes]) -> str:
    if reply.raw is not None:
        buffers.append(reply.raw)
        return f'{{"id":{reply.id},"buffer":{len(buffers) - 1}}}'
    if reply.result is not None:
        try:
            return f'{{"id":{reply.id},"result":{json.dumps(reply.result)}}}'
        except (TypeError, ValueError, RecursionError):
            log.exception("a result of a tool could not be sent")
    kind, message = reply.error or ("ToolError", "the server has a result that it could not send")
    return f'{{"id":{reply.id},"error":{json.dumps({"kind": kind, "message": message})}}}'
