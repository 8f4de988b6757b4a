"""`kernelmcp demo`: the real server over stdio, a real MCP client, a scripted session, and its notebook.

Uses nothing of the server but its command.
"""

import os
import sys
from pathlib import Path
from typing import Any, TextIO

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, ImageContent, TextContent, TextResourceContents

from kernelmcp.commands.demo_cells import CELLS, Cell
from kernelmcp.mcp_server.structured import RESULT_KEY

# The first start on a machine may build the boot image.
DEADLINE_SECONDS = 300
INDENT = "    "


def main(output: Path, kernelspec: str | None) -> int:
    return anyio.run(_run, output, kernelspec)


async def _run(output: Path, kernelspec: str | None) -> int:
    # The server's own lines would stand between the steps.
    env = {"KERNELMCP_LOGGING__LEVEL": "warning", **os.environ}
    if kernelspec:
        env["KERNELMCP_KERNELS__KERNELSPEC"] = kernelspec
    server = StdioServerParameters(command=sys.executable, args=["-P", "-m", "kernelmcp"], env=env)
    screen = Screen(sys.stdout)
    failed = 0
    with anyio.fail_after(DEADLINE_SECONDS):
        screen.heading("Starting the server: kernelmcp, over stdio")
        async with Client(server) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            screen.line(f"MCP {client.protocol_version}, tools: {', '.join(tools)}")
            session_id = (await _call(client, "create_session", {}))["session_id"]
            for number, cell in enumerate(CELLS, 1):
                failed += not await _step(client, screen, number, cell, session_id)
            await _write_notebook(client, session_id, output)
            await _call(client, "destroy_session", {"session_id": session_id})
    screen.heading(f"{len(CELLS) - failed} of {len(CELLS)} steps did what they should. Wrote {output}")
    return 1 if failed else 0


async def _step(client: Client, screen: "Screen", number: int, cell: Cell, session_id: str) -> bool:
    screen.heading(f"{number}. {cell.title}")
    screen.code(cell.code)

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        screen.live(message or "")

    arguments: dict[str, Any] = {"code": cell.code, "session_id": session_id}
    if cell.timeout is not None:
        arguments["timeout"] = cell.timeout
    result = await client.call_tool("execute_code", arguments, progress_callback=on_progress)
    while (facts := _facts(result)).get("status") == "running":
        poll = {"execution_id": facts["execution_id"], "wait_seconds": 30}
        result = await client.call_tool("get_execution", poll, progress_callback=on_progress)
    screen.result(result)
    return _facts(result).get("status") == cell.expected_status


def _facts(result: CallToolResult) -> dict[str, Any]:
    return (result.meta or {}).get(RESULT_KEY, {})


async def _call(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        raise SystemExit("\n".join(block.text for block in result.content if isinstance(block, TextContent)))
    return _facts(result)


async def _write_notebook(client: Client, session_id: str, output: Path) -> None:
    read = await client.read_resource(f"kernelmcp://sessions/{session_id}/notebook")
    contents = read.contents[0]
    if isinstance(contents, TextResourceContents):
        await anyio.Path(output).write_text(contents.text, "utf-8")


class Screen:
    """Prints the steps, indented, with what streams marked as such."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        bold, dim, green, off = ("\033[1m", "\033[2m", "\033[32m", "\033[0m") if out.isatty() else ("", "", "", "")
        self._bold, self._dim, self._green, self._off = bold, dim, green, off

    def heading(self, text: str) -> None:
        self.line(f"\n{self._bold}{text}{self._off}", indent="")

    def code(self, code: str) -> None:
        lines = code.splitlines()
        for line in lines[:8]:
            self.line(f"{self._dim}{line}{self._off}", indent="  > ")
        if len(lines) > 8:
            self.line(f"{self._dim}({len(lines) - 8} more lines){self._off}", indent="  > ")

    def live(self, text: str) -> None:
        for line in text.splitlines():
            self.line(f"{self._green}~ {line}{self._off}")

    def result(self, result: CallToolResult) -> None:
        facts = _facts(result)
        for block in result.content:
            if isinstance(block, TextContent):
                for line in block.text.splitlines():
                    self.line(line)
            elif isinstance(block, ImageContent):
                self.line(f"[{block.mime_type}, {len(block.data) * 3 // 4:,} bytes]")
        if "status" in facts:
            self.line(f"{self._dim}-- {facts['status']}, {facts['execution_time_ms']:.0f} ms{self._off}")

    def line(self, text: str, indent: str = INDENT) -> None:
        self._out.write(f"{indent}{text}\n")
        self._out.flush()
