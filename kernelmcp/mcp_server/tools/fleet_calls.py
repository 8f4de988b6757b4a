"""Calls of a server among several that share its home: each first brings the sessions that it names to this server, and
counts only if they are still here at its end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import unquote

from mcp_types import CallToolResult, InputRequiredResult

from kernelmcp.errors import ServerError, StorageFailed
from kernelmcp.mcp_server.callers import Callers, Ctx
from kernelmcp.mcp_server.results.execution_result import error_result
from kernelmcp.mcp_server.tools.contract_tool import check_not_refused
from kernelmcp.mcp_server.tools.repeated_calls import RepeatedCalls
from kernelmcp.sessions.caller import Caller, is_name
from kernelmcp.sessions.fleet.fleet import Fleet

# Arguments that name a session, and those that may have the address of something in one.
NAMES, ADDRESSES = ("session_id", "from_session"), ("from_notebook", "path")
SESSIONS = "kernelmcp://sessions/"
# These only look at the disk, whichever server has the session.
READ_BY_ALL = frozenset({"get_sessions"})
# These are not about the connection's own session if they name none.
WITHOUT_DEFAULT = frozenset({"get_sessions", "create_session", "get_execution"})

Result = TypeVar("Result", bound=CallToolResult | InputRequiredResult)


class FleetCalls:
    """The calls of one server."""

    def __init__(self, fleet: Fleet, callers: Callers, repeated: RepeatedCalls) -> None:
        self._fleet = fleet
        self._callers = callers
        self._repeated = repeated

    async def answer(
        self, tool: str, arguments: Mapping[str, Any], context: Ctx, call: Callable[[], Awaitable[Result]]
    ) -> Result | CallToolResult:
        """Make a call of a tool, unless it is one that was made already."""
        try:
            check_not_refused(context)
            caller = self._callers(context)
            key = self._repeated.key_of(tool, arguments, caller)
            before = None if key is None else await self._repeated.begin(key)
        except ServerError as exc:
            return error_result(exc)
        except OSError as exc:
            return error_result(StorageFailed(f"the server cannot use its home: {exc.strerror}", "Try again."))
        if before is not None:
            return before
        result: Result | CallToolResult
        try:
            # An answer is for a cell that waits, wherever its session is.
            named = () if context.request_state is not None else self._named(tool, arguments, caller)
            async with self._with(caller, named):
                result = await call()
        except ServerError as exc:
            result = error_result(exc)
        if key is not None and isinstance(result, CallToolResult):
            await self._repeated.end(key, result)
        return result

    def _named(self, tool: str, arguments: Mapping[str, Any], caller: Caller) -> Iterable[str]:
        """The sessions that must be here."""
        named = {each for name in NAMES if isinstance(each := arguments.get(name), str)}
        named |= {each for name in ADDRESSES if (each := session_in(arguments.get(name))) is not None}
        if not named and tool not in WITHOUT_DEFAULT and not arguments.get("execution_id"):
            named = {own for own in (caller.default_handle,) if own is not None}
        return named if tool not in READ_BY_ALL else ()

    @asynccontextmanager
    async def read(self, uri: str, context: Ctx) -> AsyncIterator[None]:
        """Surround a read of a resource. Raises `ServerError`."""
        named = session_in(uri)
        async with self._with(self._callers(context), () if named is None else (named,)):
            yield

    def confirmed(self, context: Ctx) -> AbstractAsyncContextManager[None]:
        """Surround a request that names no session. Raises `ServerError`."""
        return self._with(self._callers(context), ())

    @asynccontextmanager
    async def _with(self, caller: Caller, named: Iterable[str]) -> AsyncIterator[None]:
        sessions = sorted(filter(is_name, named))
        await self._fleet.confirm()
        with ExitStack() as used:
            for handle in sessions:  # in one order, so that two calls do not wait for each other
                used.enter_context(self._fleet.using(caller.principal, handle))
                await self._fleet.bring(caller.principal, handle)
            with self._fleet.noting_losses(caller.principal, sessions):
                yield
                try:
                    await self._fleet.confirm()
                except StorageFailed as exc:
                    look = "The call may have been made: look (get_sessions, get_workspace_info) before you repeat it."
                    raise StorageFailed(exc.message, look, **exc.context) from exc


def session_in(address: Any) -> str | None:
    """The session that an address is about."""
    if not isinstance(address, str) or not address.startswith(SESSIONS):
        return None
    return unquote(address.removeprefix(SESSIONS).partition("/")[0])
