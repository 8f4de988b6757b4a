"""Fourteen conversations of a model with the server, and how much text it reads in them.

    scripts/conversations [--show] [NAME ...]
    scripts/conversations --code-mode

Each is a list of calls as a model makes them, over stdio, under the name of a client that passes on the content only.
What is counted is the text of all results and the links beside them; pictures are counted by number. A token is taken
for four characters, unless TOKENIZER names a file of the package `tokenizers`, or an encoding of `tiktoken`. `--show`
prints them. `--code-mode` has the four tasks of tests/code_mode/tasks.py instead, in cells and with each tool of other
MCP servers called by itself.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
from conversations_held import CONVERSATIONS, Conversation
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, ImageContent, Implementation, TextContent

CHARS_PER_TOKEN = 4
ROOT = Path(__file__).resolve().parents[1]
CLIENT = Implementation(name="claude-code", version="1")


@dataclass
class Read:
    """What the model has read in one conversation."""

    chars: int = 0
    tokens: int = 0
    pictures: int = 0
    calls: int = 0


async def hold(conversation: Conversation, show: bool) -> Read:
    read = Read()
    with tempfile.TemporaryDirectory(prefix="kmc-") as home:
        env = {**os.environ, "KERNELMCP_HOME": home, "KERNELMCP_LOGGING__LEVEL": "error"}
        env |= {f"KERNELMCP_{name}": value for name, value in conversation.settings.items()}
        server = StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=env)
        async with Client(server, client_info=CLIENT) as client:
            last: dict[str, Any] = {}
            for call in conversation.calls:
                arguments = {name: _from_last(name, value, last) for name, value in call.items() if name != "tool"}
                result = await client.call_tool(call["tool"], {k: v for k, v in arguments.items() if v is not None})
                last = (result.meta or {}).get("kernelmcp/result", {})
                _count(result, read)
                if show:
                    _print(call, result)
    return read


def _from_last(name: str, value: Any, last: dict[str, Any]) -> Any:
    return last.get("cursor" if name == "since" else name) if value == "LAST" else value


def _count(result: CallToolResult, read: Read) -> None:
    read.calls += 1
    for block in result.content:
        if isinstance(block, ImageContent):
            read.pictures += 1
            continue
        text = block.text if isinstance(block, TextContent) else block.model_dump_json(by_alias=True, exclude_none=True)
        read.chars += len(text)
        read.tokens += tokens(text)


def tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN) if TOKENIZER is None else TOKENIZER(text)


def _print(call: dict[str, Any], result: CallToolResult) -> None:
    print(f"\n>>> {call}"[:300])
    for block in result.content:
        print(block.text if isinstance(block, TextContent) else f"({block.type})")


def _tokenizer() -> Callable[[str], int] | None:
    if not (name := os.environ.get("TOKENIZER")):
        return None
    if not Path(name).exists():
        encoding: Any = import_module("tiktoken").get_encoding(name)
        return lambda text: len(encoding.encode(text, disallowed_special=()))
    tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(name)
    return lambda text: len(tokenizer.encode(text).ids)


TOKENIZER = _tokenizer()


async def _code_mode() -> str:
    sys.path.insert(0, str(ROOT))
    from tests.code_mode import tasks

    with tempfile.TemporaryDirectory(prefix="kmc-") as home:
        env = {**os.environ, "KERNELMCP_HOME": home, "KERNELMCP_LOGGING__LEVEL": "error"}
        return tasks.table(
            await tasks.compare(
                tasks.TASKS,
                env | {"KERNELMCP_CONFIG_FILE": f"{home}/mcp.toml"},
                tasks.five_servers(Path(home, "servers")),
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="conversations; default: all")
    parser.add_argument("--show", action="store_true", help="print what the model reads")
    parser.add_argument("--code-mode", action="store_true", help="tasks with tools of other servers")
    options = parser.parse_args()
    if options.code_mode:
        print(anyio.run(_code_mode))
        return
    total = Read()
    print(f"{'conversation':36} {'calls':>5} {'chars':>7} {'tokens':>7} {'pictures':>8}")
    for name, conversation in CONVERSATIONS.items():
        if options.names and name not in options.names:
            continue
        read = anyio.run(hold, conversation, options.show)
        print(f"{name:36} {read.calls:5} {read.chars:7,} {read.tokens:7,} {read.pictures:8}", flush=True)
        for counted in ("calls", "chars", "tokens", "pictures"):
            setattr(total, counted, getattr(total, counted) + getattr(read, counted))
    print(f"{'sum':36} {total.calls:5} {total.chars:7,} {total.tokens:7,} {total.pictures:8}")


if __name__ == "__main__":
    main()
