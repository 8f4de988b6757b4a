"""A language that the kernelspec offers, as clients of the server see it."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from ..added_language import ROW, add_tally
from .support import Connect

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    return (await client.call_tool(tool, arguments)).structured_content


async def test_a_language_of_the_kernelspec_is_offered_and_runs(
    connect: Connect, tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has its own language")
    environment = {"JUPYTER_PATH": str(add_tally(tmp_path))}
    async with connect(environment=environment) as client:
        runtimes = {runtime["name"]: runtime for runtime in (await call(client, "list_runtimes"))["runtimes"]}
        assert [name for name, runtime in runtimes.items() if runtime["available"]] == ["python", "tally"]
        assert runtimes["tally"]["version"] == ROW["version"]
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert tools["execute_code"]["properties"]["language"]["enum"] == ["python", "tally", None]

        await call(client, "execute_code", code="n = 41")
        await call(client, "execute_code", code="n = 7", language="tally")
        assert (await call(client, "execute_code", code="n", language="tally"))["stdout"] == "7\n"
        assert (await call(client, "execute_code", code="n + 1"))["result"] == "42"

        made = await call(client, "create_session", session_id="counting", language="tally")
        assert made["language"] == "tally"
        assert (await call(client, "execute_code", code="n = 1\nn", session_id="counting"))["stdout"] == "1\n"
        python = {"code": "1 + 1", "session_id": "counting", "language": "python"}
        assert (await call(client, "execute_code", **python))["result"] == "2"

        refused = (await call(client, "execute_code", code="n", language="tally", event={}))["error"]
        assert refused["context"] == {"argument": "event"}
        refused = (await call(client, "execute_code", code="n", language="javascript"))["error"]
        assert refused["recovery_suggestions"] == ['Use language "python" or "tally".']
        notebook = (await client.read_resource("kernelmcp://sessions/counting/notebook")).contents[0].text
        cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]]
        assert cells == ["%%tally\nn = 1\nn", "1 + 1"]
