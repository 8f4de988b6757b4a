"""The host call `tools`: calls to other MCP servers' tools, from a guest to the client that offered them here.

A call belongs to the request that makes it, and is always answered: by a reply, at the end of the cell, at an
interrupt, or at the end of the offer. For the event loop's thread; the channel itself is in tool_offers.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelmcp_kernel.guests.cell_requests import Request
from kernelmcp_kernel.guests.guest import Guest
from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.jupyter.tools.tool_messages import (
    MAX_CALLS_AT_ONCE,
    MAX_CALLS_IN_FRAME,
    Body,
    Content,
    Offer,
    ToolCall,
    checked_replies,
    checked_tool_calls,
    failure,
)

NO_OFFER = "no MCP servers are offered to this kernel"

# Calls of one cell without an answer, whether sent or queued. Our own guest queues further calls itself, so only other
# code sees a refusal.
MAX_CALLS = MAX_CALLS_AT_ONCE
# Arguments of all calls without an answer: eight calls of the largest size.
_MAX_HELD_BYTES = 64 * 2**20
# Calls go in one message up to this size: a server examines larger ones more closely.
_MESSAGE_BYTES = 200_000
# Results that a guest has not fetched yet. Further results are refused.
_MAX_READY_BYTES = 64 * 2**20
# Results in one answer to a guest.
_ANSWER_BYTES = 4 * 2**20

Peer = list[bytes]
"""The routing ids of a client, as its message had them."""
Send = Callable[[str, bytes, Content, Peer, list[int]], None]
"""Sends a message: type, content, parent, recipient, and ids to pass to `unreachable` if the recipient is gone."""


@dataclass(eq=False)
class _Caller:
    """A request that has made calls."""

    request: Request
    numbers: dict[int, _PendingCall] = field(default_factory=dict[int, "_PendingCall"])
    """The calls without a reply, by the guest's own numbers."""
    ready: deque[tuple[int, Body]] = field(default_factory=deque[tuple[int, Body]])
    waiting: tuple[Guest, int] | None = None
    """The host call that waits for a reply."""

    @property
    def ready_bytes(self) -> int:
        return sum(len(body.text) for _, body in self.ready)


@dataclass(eq=False)
class _PendingCall:
    id: int
    caller: _Caller
    number: int
    text: str
    """The JSON to send; empty once it was sent."""
    size: int
    peer: Peer
    sent: bool = False


class ToolCalls:
    """The calls of a kernel."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._peer: Peer | None = None
        self._offer: Offer | None = None
        self._ids = itertools.count(1)
        self._calls: dict[int, _PendingCall] = {}
        self._callers: dict[Request, _Caller] = {}
        self._queue: deque[_PendingCall] = deque()
        self._sent = 0
        self._held_bytes = 0
        self._flushing = False

    # -- the guest's side

    def answer(self, guest: Guest, number: int, arguments: Content, request: Request) -> None:
        """Accept the calls of a host call, and answer it as soon as the request has a new reply."""
        try:
            asked, cancelled = checked_tool_calls(arguments)
        except HostCallError as error:
            guest.answer(number, error=str(error))
            return
        caller = self._callers.get(request)
        if caller is None:
            caller = self._callers[request] = _Caller(request)
        if len(caller.ready) > MAX_CALLS_IN_FRAME:
            guest.answer(number, error="too many answers are waiting to be collected")
            return
        if caller.waiting is not None:  # it is replaced by this one
            earlier, caller.waiting = caller.waiting, (guest, number)
            earlier[0].answer_lines(earlier[1], b"[]")
        caller.waiting = (guest, number)
        self._drop([caller.numbers[each] for each in dict.fromkeys(cancelled) if each in caller.numbers])
        for each in asked:
            if (refusal := each.problem or self._refusal(caller, each)) is not None:
                caller.ready.append((each.number, refusal))
            elif self._peer is not None:
                self._take(caller, each, self._peer)
        self._deliver(caller)

    def _refusal(self, caller: _Caller, asked: ToolCall) -> Body | None:
        if self._offer is None:
            return failure("ServerUnavailable", NO_OFFER)
        if asked.server not in self._offer.servers:
            there = ", ".join(sorted(name for name in self._offer.servers if not name.startswith("(")))
            return failure("ToolError", f"there is no MCP server {asked.server!r}; there are: {there}")
        if asked.number in caller.numbers:
            return failure("ToolError", "a call already has this number")
        if len(self._calls) >= MAX_CALLS:
            return failure("LimitExceeded", f"a cell has at most {MAX_CALLS} calls of tools under way at a time")
        if self._held_bytes + len(asked.arguments) > _MAX_HELD_BYTES:
            limit = f"{_MAX_HELD_BYTES >> 20} MiB together"
            return failure("LimitExceeded", f"the arguments of calls that are under way are at most {limit}")
        return None

    def _take(self, caller: _Caller, asked: ToolCall, peer: Peer) -> None:
        id_, size = next(self._ids), len(asked.arguments)
        names = f'"server":{json.dumps(asked.server)},"tool":{json.dumps(asked.tool)}'
        text = f'{{"id":{id_},{names},"size":{size},"arguments":{asked.arguments}}}'
        call = _PendingCall(id_, caller, asked.number, text, size, peer)
        caller.numbers[asked.number] = self._calls[id_] = call
        self._held_bytes += size
        self._queue.append(call)
        self._flush_soon()

    def _deliver(self, caller: _Caller) -> None:
        """Answer the request's host call if there are replies, or if no call is under way."""
        if caller.waiting is None or not (caller.ready or not caller.numbers):
            return
        entries: list[bytes] = []
        lines: list[bytes] = []
        size = 0
        while caller.ready and size < _ANSWER_BYTES:
            if size and len(caller.ready[0][1].text) > _ANSWER_BYTES:
                break  # alone in the next answer
            number, body = caller.ready.popleft()
            size += len(body.text)
            if body.is_raw:
                lines.append(body.text)
                entries.append(b'[%d,{"line":%d}]' % (number, len(lines)))
            else:
                entries.append(b"[%d,%b]" % (number, body.text))
        (guest, number), caller.waiting = caller.waiting, None
        guest.answer_lines(number, b"\n".join([b"[" + b",".join(entries) + b"]", *lines]))
        if not caller.numbers and not caller.ready:
            self._callers.pop(caller.request, None)

    # -- the offerer's side

    def offered(self, peer: Peer, offer: Offer) -> None:
        """Let this client answer from now on; an offer without a folder means that nobody does."""
        if offer.folder is None:
            self._peer = self._offer = None
            self._fail(list(self._calls.values()), "ServerUnavailable", "the MCP servers are no longer offered")
        else:
            self._peer, self._offer = peer, offer
            self._flush_soon()

    def replied(self, peer: Peer, content: Content, buffers: Sequence[Any]) -> None:
        """Handle a tool_reply. Replies that nobody waits for, or to calls sent to another client, are ignored."""
        callers: dict[_Caller, None] = {}
        for id_, body in checked_replies(content, buffers):
            call = self._calls.get(id_)
            if call is not None and call.sent and call.peer == peer:
                self._forget(call)
                if len(body.text) + sum(each.ready_bytes for each in self._callers.values()) > _MAX_READY_BYTES:
                    body = failure("LimitExceeded", f"waiting results may have at most {_MAX_READY_BYTES >> 20} MiB")
                call.caller.ready.append((call.number, body))
                callers[call.caller] = None
        for caller in callers:
            self._deliver(caller)

    def unreachable(self, ids: Iterable[int]) -> None:
        """A tool_request did not reach the client, which is gone."""
        calls = [self._calls[id_] for id_ in ids if id_ in self._calls]
        if calls and calls[0].peer == self._peer:
            self._peer = self._offer = None
        self._fail(calls, "ServerUnavailable", "the client that offered the MCP servers has left this kernel")

    # -- ends

    def cancel(self, reason: str) -> None:
        """End all calls: the cell was interrupted or has ended."""
        self._drop(list(self._calls.values()))
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            if caller.waiting is not None:
                guest, number = caller.waiting
                guest.answer(number, error=reason)

    def _fail(self, calls: list[_PendingCall], kind: str, message: str) -> None:
        self._drop(calls)
        for call in calls:
            call.caller.ready.append((call.number, failure(kind, message)))
        for caller in {call.caller: None for call in calls}:
            self._deliver(caller)

    def _drop(self, calls: list[_PendingCall]) -> None:
        """Forget calls, and cancel those that were sent."""
        sent = [call for call in calls if call.sent]
        for call in calls:
            self._forget(call)
        for peer in {tuple(call.peer): call.peer for call in sent}.values():
            ids = [call.id for call in sent if call.peer == peer]
            self._send("tool_cancel", json.dumps({"ids": ids}).encode("ascii"), {}, peer, [])

    def _forget(self, call: _PendingCall) -> None:
        del self._calls[call.id]
        call.caller.numbers.pop(call.number, None)
        self._held_bytes -= call.size
        if call.sent:
            self._sent -= 1
            if self._queue:
                self._flush_soon()
        else:
            self._queue.remove(call)

    # -- sending

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send as many calls as the offer allows at a time, batching those of one cell."""
        self._flushing = False
        limit = self._offer.concurrent_calls if self._offer else 0
        batch: list[_PendingCall] = []
        size = 0
        while self._queue and self._sent < limit:
            call = self._queue[0]
            if batch and (size + len(call.text) > _MESSAGE_BYTES or not _go_together(batch[0], call)):
                self._send_batch(batch)
                batch, size = [], 0
            self._queue.popleft()
            batch.append(call)
            size += len(call.text)
            call.sent = True
            self._sent += 1
        if batch:
            self._send_batch(batch)

    def _send_batch(self, batch: list[_PendingCall]) -> None:
        content = f'{{"calls":[{",".join(call.text for call in batch)}]}}'.encode("ascii")
        for call in batch:
            call.text = ""
        first = batch[0]
        self._send("tool_request", content, first.caller.request.cell.parent, first.peer, [call.id for call in batch])


def _go_together(one: _PendingCall, other: _PendingCall) -> bool:
    return one.peer == other.peer and one.caller.request.cell is other.caller.request.cell
