"""This installation's own server over stdio, for commands that run cells as a client does."""

from collections.abc import Mapping
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, Implementation, TextContent

from kernelmcp.mcp_server.results.structured import RESULT_KEY
from kernelmcp.output.sanitize import as_dict
from kernelmcp.process_start import python_command
from kernelmcp.version import __version__

# Time that one answer waits for a running cell.
WAIT_SECONDS = 30


def client_of(name: str, arguments: list[str], environ: Mapping[str, str]) -> Client:
    """A client with this name, of a server that is started with these arguments."""
    python, *options = python_command("kernelmcp", *arguments)
    server = StdioServerParameters(command=python, args=options, env=dict(environ))
    return Client(server, client_info=Implementation(name=name, version=__version__))


async def finished(
    client: Client, tool: str, arguments: dict[str, Any], on_progress: ProgressFnT | None = None
) -> CallToolResult:
    """Call a tool, and wait until its cell has ended."""
    result = await client.call_tool(tool, arguments, progress_callback=on_progress)
    while (fields := fields_of(result)).get("status") == "running":
        more = {"execution_id": fields["execution_id"], "wait_seconds": WAIT_SECONDS}
        result = await client.call_tool("get_execution", more, progress_callback=on_progress)
    return result


def fields_of(result: CallToolResult) -> dict[str, Any]:
    """The fields of a result that every client gets."""
    return as_dict((result.meta or {}).get(RESULT_KEY))


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))
