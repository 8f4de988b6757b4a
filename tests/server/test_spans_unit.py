"""Spans that nobody would get are not made, and nothing else that mcp does for a request goes with them."""

from typing import cast

from mcp.server.mcpserver import MCPServer

from kernelmcp.mcp_server.assemble import drop_spans
from kernelmcp.mcp_server.resources import ResourceServer


def test_of_mcps_own_middleware_only_its_span_is_dropped() -> None:
    server = MCPServer("x")
    before = [type(each).__name__ for each in server.middleware]
    drop_spans(cast("ResourceServer", server))
    assert before == ["OpenTelemetryMiddleware", "RequestStateBoundary"]
    assert [type(each).__name__ for each in server.middleware] == ["RequestStateBoundary"]
