"""Calls of a server among several that share its home: each first brings the sessions that it names to this server, and
counts only if they are still here at its end."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kernelmcp.mcp_server.callers import Callers, Ctx
from kernelmcp.sessions.caller import is_name
from kernelmcp.sessions.fleet.fleet import Fleet

# Arguments that name a session.
ARGUMENTS = ("session_id", "from_session")
# These only look at the disk, whichever server has the session.
READ_BY_ALL = frozenset({"get_sessions"})


class FleetCalls:
    """The calls of one server."""

    def __init__(self, fleet: Fleet, callers: Callers) -> None:
        self._fleet = fleet
        self._callers = callers

    @asynccontextmanager
    async def call(self, tool: str, arguments: Mapping[str, Any], context: Ctx) -> AsyncIterator[None]:
        """Surround a call of a tool. Raises `ResourceLimitExceeded`, `StorageFailed`."""
        named = {name for argument in ARGUMENTS if isinstance(name := arguments.get(argument), str)}
        async with self._with(named, context, is_moved=tool not in READ_BY_ALL, has_default=True):
            yield

    @asynccontextmanager
    async def read(self, session_id: str | None, context: Ctx) -> AsyncIterator[None]:
        """Surround a read of a resource."""
        async with self._with({session_id} if session_id else set(), context, is_moved=True, has_default=False):
            yield

    @asynccontextmanager
    async def _with(self, named: set[str], context: Ctx, *, is_moved: bool, has_default: bool) -> AsyncIterator[None]:
        caller = self._callers(context)
        if not named and has_default and (own := caller.default_handle) is not None:
            named = {own}
        sessions = sorted(filter(is_name, named)) if is_moved else []
        await self._fleet.confirm()
        for handle in sessions:
            await self._fleet.bring(caller.principal, handle)
        with self._fleet.noting_losses(caller.principal, sessions):
            yield
            await self._fleet.confirm()
