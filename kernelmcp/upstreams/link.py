"""A connection to an upstream as mcp's dispatcher drives it, whatever carries it: stdio, HTTP or SSE."""

import asyncio
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
