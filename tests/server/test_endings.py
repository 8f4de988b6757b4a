"""What a result says at an execution's end: whether it was complete, and what is left."""

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult

from .support import Connect

pytestmark = pytest.mark.anyio
CATCHES = """
import time
try:
    print("runs", flush=True)
    time.sleep({seconds})
except KeyboardInterrupt:
    print("caught")
"done"
"""


async def run(client: Client, code: str, **more: object) -> CallToolResult:
    return await client.call_tool("execute_code", {"code": code, "session_id": "s", **more})


async def test_a_complete_cell_is_ok_although_its_time_was_over(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "1")
        result = await run(client, CATCHES.format(seconds=60), timeout=5)
        found = result.structured_content
        assert (found["status"], found["success"], found["exit_code"], found["error"]) == ("ok", True, 0, None)
        assert (found["result"], found["stdout"]) == ("'done'", "runs\ncaught\n")
        assert "[The time limit passed as the cell ended" in result.content[0].text
        assert not result.is_error
        assert (await run(client, "import time; time.sleep(60)", timeout=1)).structured_content["status"] == "timeout"


@pytest.mark.parametrize(
    ("tool", "arguments", "kept"),
    [
        ("reset_workspace", {"scope": "all"}, False),
        ("reset_workspace", {"scope": "variables"}, True),
        ("stop_session", {}, True),
        ("destroy_session", {}, False),
    ],
)
async def test_a_cell_that_is_ended_says_whether_the_files_are_kept(
    connect: Connect, tool: str, arguments: dict[str, str], kept: bool
) -> None:
    async with connect() as client:
        await run(client, "open('f', 'w').write('x')")
        found: list[CallToolResult] = []
        begun = anyio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        async def endless() -> None:
            arguments = {"code": "print('begins')\nwhile True: pass", "session_id": "s"}
            found.append(await client.call_tool("execute_code", arguments, progress_callback=on_progress))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(endless)
            await begun.wait()
            await client.call_tool(tool, {"session_id": "s", **arguments})
        text = found[0].content[0].text
        assert found[0].structured_content["state_lost"]
        assert ("files are kept" in text, "and files of this session are gone" in text) == (kept, not kept)
