"""A connection to an upstream for mcp's dispatcher, over stdio, HTTP or SSE.

Unsolicited messages are throttled: reading pauses, so the upstream's pipe fills and our time does not.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from anyio.abc import ObjectReceiveStream
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED

# Tells the HTTP transport which call a request belongs to; it is removed before sending.
NUMBER_HEADER = "x-kernelmcp-call"
# Codes of JSON-RPC errors that a transport generates: there is no usable answer, and nobody knows what was done; the
# session there is gone, the request is too large for the server, or it was not sent: nothing was done.
UNREACHED, SESSION_GONE, TOO_LARGE, UNSENT = -32097, -32096, -32095, -32094
# The data of these errors, which no server knows: its own errors may have any code.
OURS = secrets.token_hex()
CLOSED = "it closed the connection"
# Our message and mcp's for requests whose answer can no longer come. Servers use their code for any error.
_CLOSED_MESSAGES = (CLOSED, "Connection closed", "SSE stream ended", "SSE stream failed")
# A starting server may send many lines; after that, a few lines a second are plenty.
BURST = 1000.0
PER_SECOND = 200.0
# A longer line counts once per this many bytes: parsing takes time by the byte.
BYTES_PER_LINE = 1024
# The same for a line that is examined and not parsed.
UNREAD_BYTES_PER_LINE = 5 * 1024
# And for one of which only the ends are examined.
SKIPPED_BYTES_PER_LINE = 128 * 1024


class Writing(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None: ...


@dataclass(frozen=True)
class Link:
    read: ObjectReceiveStream[SessionMessage | Exception]
    write: Writing
    ended: asyncio.Event
    """Set when no more messages will come."""
    reason: Callable[[], Awaitable[str]]
    """Returns why it has ended: a clause for a person, or nothing."""
    last_words: Callable[[], str] = str
    """Returns the end of the process's stderr."""


def is_closed(exc: MCPError) -> bool:
    """True if the connection, or the stream of the answer, has ended."""
    return exc.code == CONNECTION_CLOSED and exc.message.startswith(_CLOSED_MESSAGES)


def code_of_ours(exc: MCPError) -> int | None:
    """The code of an error that a transport generated. None for an error of a server."""
    return exc.code if exc.data == OURS else None


def cost_of(line: bytes) -> float:
    """The cost of parsing a line, relative to a short one."""
    return max(1.0, len(line) / BYTES_PER_LINE)


class ReadThrottle:
    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND) -> None:
        self._burst = self._credit = burst
        self._per_second = per_second
        self._at = time.monotonic()

    def delay(self, cost: float = 1.0) -> float:
        """Count one line, or its cost relative to one; returns the wait before the next read, in seconds."""
        now = time.monotonic()
        self._credit = min(self._burst, self._credit + (now - self._at) * self._per_second) - cost
        self._at = now
        return max(0.0, -self._credit / self._per_second)

    def forgive(self, count: float) -> None:
        """Return the credit for lines that belong to an answer."""
        self._credit = min(self._burst, self._credit + count)
