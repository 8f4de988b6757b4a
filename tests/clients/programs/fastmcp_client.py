"""fastmcp's client, as an application would use it."""

import asyncio
import json
import os
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main(command: str, *arguments: str) -> None:
    transport = StdioTransport(command=command, args=[*arguments], env=dict(os.environ))
    async with Client(transport) as client:
        tools = await client.list_tools()
        results: list[dict[str, Any]] = []
        for name, arguments in json.loads(os.environ["CALLS"]):
            try:
                found = await client.call_tool(name, arguments, raise_on_error=False)
            except Exception as exc:  # noqa: BLE001  # whatever the client makes of our answer
                results.append({"thrown": str(exc)})
                continue
            texts = [getattr(block, "text", block.type) for block in found.content]
            structured = found.structured_content
            results.append({"texts": texts, "isError": found.is_error, "structuredContent": structured})
    print(json.dumps({"tools": [tool.name for tool in tools], "results": results}))


asyncio.run(main(*sys.argv[1:]))
