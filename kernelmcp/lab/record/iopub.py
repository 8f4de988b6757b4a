"""Reads a kernel's iopub messages for as long as its process lives: in order and within bounds, for the record.

Reading never waits for the notebook: unwanted messages, and those beyond an execution's limit, are dropped on arrival,
so that a guest that floods fills neither Lab's memory nor the kernel's. Must not know notebooks.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

import zmq
from jupyter_client.session import Session

from kernelmcp.notebook.cells import MAX_CELL_BYTES
from kernelmcp.output.sanitize import as_dict, is_readable

# Messages read before other tasks get a turn.
MESSAGES_PER_TURN = 100
# Limit for one execution's messages to the record, even if it clears its output repeatedly.
MAX_EXECUTION_BYTES = 4 * MAX_CELL_BYTES
# Overhead per message besides its content, so that a million empty ones still count.
MESSAGE_BYTES = 200
# Executions whose remaining room is remembered.
MAX_EXECUTIONS = 1000
KINDS = (
    "execute_input",
    "stream",
    "display_data",
    "execute_result",
    "error",
    "clear_output",
    "update_display_data",
)
_HEADER, _PARENT, _CONTENT = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Event:
    """A message of one execution. `end` is its idle status, `left_out` stands for messages that were dropped."""

    execution_id: str
    client: str
    kind: str
    content: dict[str, Any]


class Iopub:
    """One kernel's iopub channel. `wanted` returns whether executions of a client's session id are recorded."""

    def __init__(self, context: Any, url: str, key: bytes, scheme: str, wanted: Callable[[str], bool]) -> None:
        self.on_state: Callable[[str], None] = lambda _: None
        """Called with the `busy` and `idle` states of executions."""
        self._wire = Session(key=key, signature_scheme=scheme)
        self._wanted = wanted
        self._events: list[Event] = []
        self._some = asyncio.Event()
        self._rooms: OrderedDict[str, int] = OrderedDict()
        self._socket: Any = context.socket(zmq.SUB)
        self._socket.linger = 0
        self._socket.rcvhwm = 0
        self._socket.subscribe(b"")
        self._socket.connect(url)

    def close(self) -> None:
        self._socket.close(0)

    async def wait(self) -> None:
        """Wait until there are events."""
        await self._some.wait()

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        self._some.clear()
        return events

    async def read(self) -> None:
        """Run until cancelled."""
        handled = 0
        while True:
            frames: list[bytes] = await self._socket.recv_multipart()
            event = self._event(frames)
            if event is not None:
                self._keep(event)
            handled += 1
            if handled % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _keep(self, event: Event) -> None:
        if event.kind == "left_out" and self._events and self._events[-1] == event:
            return
        self._events.append(event)
        self._some.set()

    def _event(self, frames: list[bytes]) -> Event | None:
        try:
            parts: list[Any] = self._wire.feed_identities(frames)[1]
            # Not `deserialize`: it spends half of its time on dates that are not used here.
            if not compare_digest(parts[0], self._wire.sign(parts[_HEADER : _CONTENT + 1])):
                return None
            header, parent = as_dict(self._wire.unpack(parts[_HEADER])), as_dict(self._wire.unpack(parts[_PARENT]))
            kind, execution_id, client = header["msg_type"], parent.get("msg_id"), parent.get("session")
            if parent.get("msg_type") != "execute_request" or not isinstance(execution_id, str):
                return None
            content: bytes = parts[_CONTENT]
            if kind == "status":
                return self._status(execution_id, str(client), self._wire.unpack(content).get("execution_state"))
            if kind not in KINDS or not self._wanted(str(client)):
                return None
            if not self._has_room(execution_id, MESSAGE_BYTES + len(content)) or not is_readable(content):
                return Event(execution_id, str(client), "left_out", {})
            return Event(execution_id, str(client), kind, as_dict(self._wire.unpack(content)))
        except Exception:  # noqa: BLE001 - not signed, not JSON, not what the protocol says: as if it had not come
            return None

    def _status(self, execution_id: str, client: str, state: Any) -> Event | None:
        if state not in ("busy", "idle"):
            return None
        self.on_state(state)
        if state == "busy" or not self._wanted(client):
            return None
        return Event(execution_id, client, "end", {})

    def _has_room(self, execution_id: str, more: int) -> bool:
        room = self._rooms.get(execution_id, MAX_EXECUTION_BYTES) - more
        if room < 0:
            return False
        self._rooms[execution_id] = room
        if len(self._rooms) > MAX_EXECUTIONS:
            self._rooms.popitem(last=False)
        return True
