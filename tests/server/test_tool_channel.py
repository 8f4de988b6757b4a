"""The server's end of tools: messages of a kernel as calls, and replies as messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kernelmcp.config.models import OWN_KERNELSPEC
from kernelmcp.kernel.connection import make_context
from kernelmcp.kernel.process import Kernel, Launch, run_kernel
from kernelmcp.kernel.tool_channel import Offer

from .test_tool_channel_unit import DEADLINE, Listener, until

pytestmark = pytest.mark.anyio
CALL = "from kernelmcp_guest.servers.pending_calls import call, call_async\nimport asyncio\n"


@asynccontextmanager
async def a_kernel(folder: Path) -> AsyncIterator[Kernel]:
    context = make_context()
    (folder / "offer").mkdir()
    (folder / "offer" / "index.json").write_text("{}")
    environment = {"KERNELMCP_SANDBOX_DIRECTORY": str(folder / "sandbox")}
    launch = Launch(OWN_KERNELSPEC, folder / "r", "k", Path("/"), environment, DEADLINE)
    try:
        async with anyio.create_task_group() as tasks:
            kernel: Kernel = await tasks.start(run_kernel, context, launch)
            yield kernel
            tasks.cancel_scope.cancel()
    finally:
        context.destroy(linger=0)


async def test_a_cell_calls_what_the_server_offers(tmp_path: Path) -> None:
    async with a_kernel(tmp_path) as kernel, asyncio.timeout(DEADLINE * 3):
        listener = Listener(kernel=kernel)
        kernel.offer_tools(Offer("x", tmp_path / "offer", ["crm"], 24), listener)
        outputs: list[str] = []

        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "stream":
                outputs.append(content["text"])

        code = f"""{CALL}
calls = [call_async('crm', tool, {{'a': 'x' * size}}) for tool in ('get', 'raw', 'fail') for size in (1, 600_000)]
for found in await asyncio.gather(*calls, return_exceptions=True):
    print(type(found).__name__, len(found.get('a', '')) if isinstance(found, dict) else found)
"""
        reply = await kernel.execute(code, on_output, msg_id="of-this-cell")
        assert reply["content"]["status"] == "ok", reply["content"]
        assert "".join(outputs).splitlines() == ["dict 1", "dict 600000"] * 2 + ["ToolDenied no"] * 2
        assert set(listener.parents) == {"of-this-cell"}
        assert {call.size for call in listener.calls} == {len(json.dumps({"a": "x" * size})) for size in (1, 600_000)}

        running = kernel.execute(f"{CALL}call('crm', 'silent', {{}})", None)
        await until(lambda: any(call.tool == "silent" for call in listener.calls))
        kernel.interrupt()
        assert (await running)["content"]["ename"] == "KeyboardInterrupt"
        await until(lambda: listener.ended == [listener.calls[-1].id])

        running = kernel.execute(f"{CALL}call('crm', 'silent', {{}})", None)
        await until(lambda: sum(call.tool == "silent" for call in listener.calls) == 2)
        kernel.kill()
        await kernel.ended.wait()
        assert listener.ended[-1] == listener.calls[-1].id
        assert running.exception() is not None
