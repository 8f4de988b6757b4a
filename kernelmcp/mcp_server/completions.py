"""Completes ids that a client types.

Callers get completions only for their own ids.
"""

from collections.abc import Callable, Iterable
from typing import Any

from mcp.server.lowlevel.server import Server as LowlevelServer
from mcp.server.mcpserver import Context
from mcp_types import CompleteRequestParams, CompleteResult, Completion

from kernelmcp.mcp_server.notifications import RequestContext
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry

Ctx = Context[Any, Any]
# The protocol's limit for one answer.
MAX_VALUES = 100


class Completions:
    """The handlers of one server."""

    def __init__(self, registry: Registry, caller: Callable[[Ctx], Caller]) -> None:
        self._registry = registry
        self._caller = caller

    def register(self, server: LowlevelServer[Any]) -> None:
        server.add_request_handler("completion/complete", CompleteRequestParams, self.complete)

    async def complete(self, ctx: RequestContext, params: CompleteRequestParams) -> CompleteResult:
        """Return the matching ids, newest first."""
        caller = self._caller(Context(request_context=ctx))
        known = list(self._known(caller, params.argument.name))
        found = [name for name in known if name.startswith(params.argument.value)]
        shown = found[:MAX_VALUES]
        return CompleteResult(completion=Completion(values=shown, total=len(found), has_more=len(found) > len(shown)))

    def _known(self, caller: Caller, argument: str) -> Iterable[str]:
        sessions = sorted(self._registry.all(caller), key=lambda session: -session.last_used)
        if argument == "session_id":
            return [session.id for session in sessions]
        if argument == "execution_id":
            return [name for session in sessions for name in reversed([found.id for found in session.executions])]
        return []
