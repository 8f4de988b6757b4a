"""What tasks put out after their cell has ended comes with the session's next result, marked and in bounds."""

from typing import Any

import pytest
from mcp import Client
from mcp_types import TextContent

from .support import Connect, server_of_test

pytestmark = pytest.mark.anyio
MAX_CONTENT_CHARS = 8_500
LEAVE = """
import asyncio
done = asyncio.Event()
async def later():
    await asyncio.sleep(0.1)
    {body}
    done.set()
task = asyncio.ensure_future(later())
"""
# Awaits in small steps, so that the output of `later` is there before this cell's own.
WAIT = "await done.wait()\nprint('own')"


async def run(client: Client, code: str, session_id: str = "s") -> tuple[str, dict[str, Any]]:
    result = await client.call_tool("execute_code", {"code": code, "session_id": session_id})
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    return text, result.structured_content or {}


async def test_the_next_result_has_it_once_and_marked(connect: Connect) -> None:
    async with connect() as client:
        body = "print('a tick'); display({'text/plain': 'a table'}, raw=True); print('a \\x1b[31mred\\x1b[0m tock')"
        first, _ = await run(client, LEAVE.format(body=body))
        assert "tick" not in first
        text, fields = await run(client, WAIT)
        assert fields["background"] == "a tick\na table\na red tock"
        assert fields["stdout"] == "own\n"
        assert text.startswith("own\n[From tasks of earlier cells: a tick\na table\na red tock]")
        text, fields = await run(client, "1")
        assert (text, fields["background"]) == ("1", None)


async def test_it_comes_with_an_error_and_with_nobody_elses_result(connect: Connect) -> None:
    async with connect() as client:
        await run(client, LEAVE.format(body="print('a tick')"))
        assert (await run(client, "2", "other"))[1]["background"] is None
        text, fields = await run(client, "await done.wait()\n1 / 0")
        assert (fields["status"], fields["background"]) == ("error", "a tick")
        assert "[From tasks of earlier cells: a tick]" in text


async def test_a_flood_takes_no_memory_of_the_server_and_little_of_the_result(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "1")
        server = server_of_test()
        before = server.memory_info().rss
        body = (
            "for i in range(100):\n        print('x' * 999_999)\n        await asyncio.sleep(0)\n    print('the end')"
        )
        await run(client, LEAVE.format(body=body))
        text, fields = await run(client, WAIT + "\nprint('y' * 100_000)")
        assert len(fields["background"]) < 1_100
        assert len(text) < MAX_CONTENT_CHARS
        assert fields["background"].endswith("x\nthe end")
        assert "characters left out" in fields["background"]
        assert server.memory_info().rss - before < 60 * 2**20
