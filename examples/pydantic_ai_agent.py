# /// script
# requires-python = ">=3.11"
# dependencies = ["fastmcp>=3,<5", "pydantic-ai-slim[anthropic,mcp]>=2.68,<3"]
# ///
"""A Pydantic AI agent whose tools are a kernel: a typed answer, worked out in Python that persists between calls.

`MCPToolset` starts `kernelmcp` and offers its tools to the model. Three arguments matter here: the first start may take
a while on a slow machine; an exception in a cell is an ordinary result that the model should read, not a failed call
with one retry; and the server's instructions tell the model what the kernel can do.

Install kernelmcp so that `kernelmcp --version` works, then:

    export ANTHROPIC_API_KEY=...
    uv run examples/pydantic_ai_agent.py "How many primes are there below 10000, and what is the largest gap?"

Any other model of Pydantic AI works: `--model openai:gpt-5`, with the extra `openai` instead of `anthropic`.
"""

import argparse
import asyncio
import os

from fastmcp.client.transports import StdioTransport
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelRequest, ToolReturnPart

TASK = "How many primes are there below 10000, and how large is the largest gap between two of them? Plot the gaps."


class Figure(BaseModel):
    name: str
    value: float


class Answer(BaseModel):
    """What the program gets back: validated, whatever the model wrote."""

    summary: str
    figures: list[Figure]


async def no_log(message: object) -> None:
    """Without this, the client prints a line for each cell."""


def kernel() -> MCPToolset:
    settings = {name: value for name, value in os.environ.items() if name.startswith("KERNELMCP_")}
    return MCPToolset(
        StdioTransport(command="kernelmcp", args=["serve", "--log-level", "warning"], env=settings),
        init_timeout=60,
        tool_error_behavior="failed",
        include_instructions=True,
        log_handler=no_log,
    )


async def run(task: str, model: str) -> tuple[Answer, list[BinaryContent]]:
    agent = Agent(model, toolsets=[kernel()], output_type=Answer)
    async with agent:  # one server, and so one session, for all runs in here
        result = await agent.run(task)
        pictures = [
            content
            for message in result.all_messages()
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart)
            for content in (part.content if isinstance(part.content, list) else [part.content])
            if isinstance(content, BinaryContent)
        ]
        return result.output, pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model", default="anthropic:claude-sonnet-5-5")
    options = parser.parse_args()
    answer, pictures = asyncio.run(run(options.task, options.model))
    print(answer.summary)
    for figure in answer.figures:
        print(f"  {figure.name} = {figure.value:g}")
    print(f"({len(pictures)} pictures)")


if __name__ == "__main__":
    main()
