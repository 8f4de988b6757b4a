"""What the documentation says is what there is."""

import os
import re
from pathlib import Path

import anyio
from mcp import Client
from mcp_types import Tool

from kernelmcp.config.tool_names import TOOL_NAMES

from ..starting import over_stdio, run_kernelmcp
from .test_docs_unit import README, TOOLS

DEADLINE_SECONDS = 60


def test_every_tool_of_the_real_server_is_documented_with_its_arguments(tmp_path: Path) -> None:
    async def listed() -> list[Tool]:
        env = {**os.environ, "KERNELMCP_HOME": str(tmp_path)}
        with anyio.fail_after(DEADLINE_SECONDS):
            async with Client(over_stdio(env=env)) as client:
                return (await client.list_tools()).tools

    first_table = TOOLS.partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", first_table, re.MULTILINE)
    tools = anyio.run(listed)
    found = {tool.name: set(tool.input_schema.get("properties", {})) for tool in tools}
    assert {name: set(re.findall(r"`(\w+)`", arguments)) for name, arguments in rows} == found
    assert set(TOOL_NAMES) == set(found)
    assert {name for name, _ in rows} == set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))


def test_every_command_is_documented() -> None:
    done = run_kernelmcp("--help", env=os.environ)
    commands = re.findall(r"^    ([a-z][a-z-]*)(?: |$)", done.stdout, re.MULTILINE)
    assert set(commands) >= {"serve", "build-wheel"}, "a name that fills its column has its help on the next line"
    assert [name for name in commands if not re.search(rf"\bkernelmcp {name}\b", README)] == []
