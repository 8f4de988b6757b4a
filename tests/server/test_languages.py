"""A language that the kernelspec offers, as clients of the server see it."""

import json
import sys
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
        assert tools["execute_code"]["properties"]["language"]["enum"] == ["python", "tally"]

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
        mistaken = (await call(client, "execute_code", code="%%tally\nn", event={}))["error"]
        assert mistaken["context"] == {"argument": "event"}
        twice = await call(client, "execute_code", code="%%tl\nn", language="tally")
        assert twice["stdout"] == "7\n"

        ended = await client.call_tool("execute_code", {"code": "crash", "language": "tally"})
        assert "What earlier cells in tally defined is gone; the rest is kept." in ended.content[0].text
        assert (await call(client, "execute_code", code="n + 1"))["result"] == "42"
        after = await client.call_tool("execute_code", {"code": "m = 2", "language": "tally"})
        assert "[The guest was restarted before this cell. What earlier cells in tally" in after.content[0].text

        notebook = (await client.read_resource("kernelmcp://sessions/counting/notebook")).contents[0].text
        cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]]
        assert cells == ["%%tally\nn = 1\nn", "1 + 1"]


@pytest.mark.parametrize("languages", [["python"], [], {}, [{"name": "x y"}], [{"name": "python", "magics": 3}], 7])
async def test_a_kernelspec_of_somebody_elses_is_python_whatever_it_says(
    connect: Connect, tmp_path: Path, languages: object
) -> None:
    folder = tmp_path / "share" / "kernels" / "theirs"
    folder.mkdir(parents=True)
    metadata = {"kernelmcp": {"languages": languages}}
    spec = {"argv": [sys.executable], "display_name": "Theirs", "language": "x", "metadata": metadata}
    (folder / "kernel.json").write_text(json.dumps(spec))
    environment = {"JUPYTER_PATH": str(tmp_path / "share"), "KERNELMCP_KERNELS__KERNELSPEC": "theirs"}
    async with connect(environment=environment, SESSIONS__WARM_POOL_SIZE="0") as client:
        offered = [each for each in (await call(client, "list_runtimes"))["runtimes"] if each["available"]]
        assert [(each["name"], each["description"]) for each in offered] == [("python", "Theirs")]
