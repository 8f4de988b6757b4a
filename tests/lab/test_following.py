"""Lab with a server and without a browser: what the model executes is in the notebook that Lab saves."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from ..starting import over_stdio
from .support import DEADLINE_SECONDS, Running, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """A client with a session, and a Lab."""

    def __init__(self, client: Client, lab: Running, environment: dict[str, str]) -> None:
        self.client = client
        self.lab = lab
        self.environment = environment

    def kill_server(self) -> None:
        [file] = Path(self.environment["KERNELMCP_SERVER__RUNTIME"]).glob("*/sessions/*.json")
        os.kill(json.loads(file.read_text())["server"]["pid"], signal.SIGKILL)

    async def execute(self, code: str) -> dict[str, Any]:
        result = await self.client.call_tool("execute_code", {"session_id": "alpha", "code": code})
        assert result.structured_content is not None, result.content
        return result.structured_content

    def cells(self) -> list[dict[str, Any]]:
        status, body, _ = self.lab.get("/api/contents/alpha.ipynb")
        return json.loads(body)["content"]["cells"] if status == 200 else []

    async def until(self, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Sources and outputs of the saved notebook, when they are so."""
        shown: dict[str, str] = {}
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not condition(shown):
                    await asyncio.sleep(0.1)  # another process has no event for it
                    cells = await asyncio.to_thread(self.cells)
                    shown = {one["source"]: "".join(map(text_of, one.get("outputs", []))) for one in cells}
        except TimeoutError:
            pytest.fail(f"the notebook has {shown}")
        return shown


def text_of(output: dict[str, Any]) -> str:
    return output.get("text", "") + output.get("data", {}).get("text/plain", "") + output.get("ename", "")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    environment = {
        **os.environ,
        "KERNELMCP_HOME": str(tmp_path / "home"),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmf-{os.getpid()}",
        "KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always",
    }
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(over_stdio(env=environment)))
        await client.call_tool("create_session", {"session_id": "alpha"})
        await client.call_tool("execute_code", {"session_id": "alpha", "code": "print('before')"})
        lab = await asyncio.to_thread(stack.enter_context, running(environment, tmp_path))
        yield Desk(client, lab, environment)
    shutil.rmtree(environment["KERNELMCP_SERVER__RUNTIME"], ignore_errors=True)


LONG = "import time\nprint('first')\ntime.sleep(300)"
TASK = """
import asyncio
async def later():
    while not __import__('os').path.exists('go'): await asyncio.sleep(0.05)
    print('late')
task = asyncio.ensure_future(later())
print('at once')
"""


async def test_the_notebook_has_what_the_model_executes_while_it_runs_and_later(desk: Desk) -> None:
    await desk.until(lambda shown: shown.get("print('before')") == "before\n")
    await desk.execute("shown = display('old', display_id='x')")
    await desk.execute("from IPython.display import update_display\nupdate_display('new', display_id='x')")
    await desk.until(lambda shown: "'new'" in shown.values() and "'old'" not in shown.values())
    running = asyncio.ensure_future(desk.execute(LONG))
    await desk.until(lambda shown: shown.get(LONG) == "first\n")
    [facts] = [facts for cell in desk.cells() if (facts := cell["metadata"].get("kernelmcp", {})).get("running")]
    await desk.client.call_tool("cancel_execution", {"execution_id": facts["execution_id"]})
    await running
    await desk.until(lambda shown: shown.get(LONG) == "first\nKeyboardInterrupt")
    await desk.execute(TASK)
    await desk.execute("open('go', 'w').close()")
    await desk.execute("await asyncio.sleep(0.5)")
    shown = await desk.until(lambda shown: shown.get(TASK) == "at once\nlate\n")
    assert not any(cell["metadata"].get("kernelmcp", {}).get("running") for cell in desk.cells())
    assert len(shown) == len(desk.cells())


async def test_a_cell_that_ran_when_its_server_was_killed_is_as_the_next_server_ends_it(desk: Desk) -> None:
    running = asyncio.ensure_future(desk.execute(LONG))
    await desk.until(lambda shown: shown.get(LONG) == "first\n")
    desk.kill_server()
    with suppress(Exception):
        await running
    shown = await desk.until(lambda shown: any("server of this session ended" in source for source in shown))
    assert shown[LONG] == "first\n"
    async with Client(over_stdio(env=desk.environment)) as desk.client:
        await desk.client.call_tool("create_session", {"session_id": "alpha"})
        await desk.execute("print('after')")
        shown = await desk.until(lambda shown: shown.get("print('after')") == "after\n")
        assert [source for source in shown if "print" in source] == ["print('before')", LONG, "print('after')"]
        assert not any(cell["metadata"].get("kernelmcp", {}).get("running") for cell in desk.cells())
        assert len(shown) == len(desk.cells())
