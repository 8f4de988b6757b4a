"""Sends log messages to clients that request them: one for each of their ended executions.

Until 2025-11-25 a client requests them with logging/setLevel, for its connection; in 2026-07-28 with each request. The
content is that of the server's own log (docs/configuration.md): ids, status and times, never code or output.
"""

import warnings
from typing import Any, get_args

from mcp import MCPDeprecationWarning
from mcp.server.lowlevel.server import Server as LowlevelServer
from mcp.server.mcpserver import Context
from mcp_types import EmptyResult, LoggingLevel, SetLevelRequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.notifications import RequestContext

Ctx = Context[Any, Any]
_LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
# Connections whose level is remembered; the oldest are forgotten and get no messages until they set it again.
MAX_CONNECTIONS = 1000
STDIO = ""
# It is deprecated, but current clients still request it.
warnings.filterwarnings("ignore", "The logging capability is deprecated", MCPDeprecationWarning)


class ClientLog:
    """The levels that the clients of one server have set."""

    def __init__(self) -> None:
        self._levels: dict[str, LoggingLevel] = {}

    def register(self, server: LowlevelServer[Any]) -> None:
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self.set_level)

    async def set_level(self, ctx: RequestContext, params: SetLevelRequestParams) -> EmptyResult:
        """Handle logging/setLevel."""
        connection = _connection(Context(request_context=ctx))
        self._levels.pop(connection, None)
        self._levels[connection] = params.level
        while len(self._levels) > MAX_CONNECTIONS:
            del self._levels[next(iter(self._levels))]
        return EmptyResult()

    async def report(self, execution: Execution, context: Ctx) -> None:
        """Log an ended execution once, if the client requested messages of this level."""
        if execution.logged_to_client:
            return
        execution.logged_to_client = True
        lost = execution.state_lost or execution.status in ("dead", "timeout")
        level: LoggingLevel = "warning" if lost else "info"
        if context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            wanted = self._levels.get(_connection(context))
            if wanted is None or _LEVELS.index(level) < _LEVELS.index(wanted):
                return
        data = {
            "event": "execution",
            "session": execution.session_id,
            "execution": execution.id,
            "status": execution.status,
            "state_lost": execution.state_lost,
            "duration_ms": round(execution.execution_time_ms),
        }
        await context.log(level, data, logger_name="kernelmcp")  # pyright: ignore[reportDeprecated]


def _connection(context: Ctx) -> str:
    request = context.request_context.request
    if request is None:
        return STDIO
    return str(request.headers.get("mcp-session-id") or request.query_params.get("session_id") or "")
