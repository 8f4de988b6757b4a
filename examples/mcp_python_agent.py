# /// script
# requires-python = ">=3.11"
# dependencies = ["anthropic>=2.14,<3", "mcp>=2.3,<3"]
# ///
"""An agent in plain Python: a model, the official MCP SDK, and the loop between them.

The agent starts `kernelmcp`, hands its tools to the model, and does what the model asks for until the model answers
in words. Variables stay between the calls, so a later step goes on with what an earlier one has loaded. Pictures go
back to the model, which sees its own plots; they are also saved beside you.

Install kernelmcp so that `kernelmcp --version` works, then:

    export ANTHROPIC_API_KEY=...
    uv run examples/mcp_python_agent.py "Simulate 1000 throws of two dice and plot the sums."
"""

import argparse
import asyncio
import base64
import itertools
import os
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic, omit
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, ImageContent, TextContent

TASK = "Work out the first 20 Fibonacci numbers in Python, then plot them."
MAX_STEPS = 20


def server() -> StdioServerParameters:
    """The SDK passes on PATH, HOME and the like. Your settings go with them; the key of your model does not."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("KERNELMCP_")}
    return StdioServerParameters(command="kernelmcp", args=["serve", "--log-level", "warning"], env=settings)


def for_model(result: CallToolResult) -> list[dict[str, Any]]:
    """A tool's result as the model reads it. Links are for programs: the text names each file already."""
    blocks: list[dict[str, Any]] = []
    for block in result.content:
        if isinstance(block, TextContent) and block.text.strip():  # the API refuses blank text, as of an empty file
            blocks.append({"type": "text", "text": block.text})
        elif isinstance(block, ImageContent):
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            blocks.append({"type": "image", "source": source})
    return blocks


def save_pictures(result: CallToolResult, folder: Path) -> None:
    """Write the pictures as they are: code that a model wrote made them, so nothing here decodes them."""
    for block in result.content:
        if isinstance(block, ImageContent):
            kind = "png" if block.mime_type == "image/png" else "jpg"
            names = (folder / f"picture-{number}.{kind}" for number in itertools.count(1))
            file = next(file for file in names if not file.exists())
            file.write_bytes(base64.b64decode(block.data))
            print(f"[saved {file}]")


async def run(task: str, model: str, folder: Path) -> str:
    async with Client(server()) as kernel, AsyncAnthropic() as anthropic:
        tools = [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in (await kernel.list_tools()).tools
        ]
        messages: list[Any] = [{"role": "user", "content": task}]
        for _ in range(MAX_STEPS):
            answer = await anthropic.messages.create(
                model=model,
                max_tokens=8192,
                system=kernel.instructions or omit,  # what the server says about its tools
                messages=messages,
                tools=tools,
            )
            messages.append({"role": "assistant", "content": answer.content})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            results = []
            for call in calls:
                print(f"> {call.name}: {call.input}")
                # Code that raises is a result too: is_error is set, and the text has the traceback.
                result = await kernel.call_tool(call.name, call.input)
                save_pictures(result, folder)
                results.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": for_model(result),
                        "is_error": result.is_error,
                    }
                )
            messages.append({"role": "user", "content": results})
        return f"[stopped after {MAX_STEPS} steps]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model", default="claude-sonnet-5-5")
    parser.add_argument("--folder", type=Path, default=Path(), help="where pictures are saved")
    options = parser.parse_args()
    print(asyncio.run(run(options.task, options.model, options.folder)))


if __name__ == "__main__":
    main()
