"""A connection to an upstream as mcp's dispatcher drives it, whatever carries it: stdio, HTTP or SSE.

What nobody asked for is read at a pace: reading stops for a moment, and its pipe fills, not our time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from mcp.shared.message import SessionMessage

# Tells the HTTP transport which call a request is; it leaves no request.
NUMBER_HEADER = "x-kernelmcp-call"
# Codes of JSON-RPC errors that a transport makes: nothing was reached; the session there is gone, and nothing was done;
# the request is too large for whoever is there, and nothing was done.
UNREACHED, SESSION_GONE, TOO_LARGE = -32097, -32096, -32095
# A server that starts may have much to say; after that, a few lines a second are plenty.
BURST = 1000.0
PER_SECOND = 200.0


class Reading(Protocol):
    """Where mcp's dispatcher reads: it iterates until the connection has ended."""

    async def receive(self) -> SessionMessage | Exception: ...
    async def aclose(self) -> None: ...
    def __aiter__(self) -> "Reading": ...
    async def __anext__(self) -> SessionMessage | Exception: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None: ...


class Writing(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None: ...


@dataclass(frozen=True)
class Link:
    read: Reading
    write: Writing
    ended: asyncio.Event
    """Set when nothing more will come."""
    reason: Callable[[], Awaitable[str]]
    """Why it has ended: a clause for a person, or nothing."""
    last_words: Callable[[], str]
    """The end of what its process has written to stderr."""


class Pace:
    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND) -> None:
        self._burst = self._credit = burst
        self._per_second = per_second
        self._at = time.monotonic()

    def delay(self, cost: float = 1.0) -> float:
        """Count one line, or what it costs beside one; how long to wait before the next is read, seconds."""
        now = time.monotonic()
        self._credit = min(self._burst, self._credit + (now - self._at) * self._per_second) - cost
        self._at = now
        return max(0.0, -self._credit / self._per_second)

    def forgive(self, count: int) -> None:
        """What came with an answer."""
        self._credit = min(self._burst, self._credit + count)
