"""The official Python client 1.x, as an application would use it."""

import asyncio
import json
import os
import sys
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(command: str, *arguments: str) -> None:
    server = StdioServerParameters(command=command, args=[*arguments], env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        results: list[dict[str, Any]] = []
        for name, arguments in json.loads(os.environ["CALLS"]):
            try:
                found = await session.call_tool(name, arguments)
            except Exception as exc:  # noqa: BLE001  # whatever the client makes of our answer
                results.append({"thrown": str(exc)})
                continue
            texts = [getattr(block, "text", block.type) for block in found.content]
            results.append({"texts": texts, "isError": found.isError, "structuredContent": found.structuredContent})
    print(json.dumps({"tools": [tool.name for tool in tools], "results": results}))


asyncio.run(main(*sys.argv[1:]))
