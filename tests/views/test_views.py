"""What a client with views gets from a server, and what stays as it was for all others."""

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from kernelmcp.mcp_server.views.pages import MAX_PAGE_BYTES, mark

from ..server.http_support import serving
from ..server.support import Connect
from .rig import DOCUMENT, UI, dumped

pytestmark = pytest.mark.anyio
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
MAX_MORE_BYTES = 150


async def read(client: Client, uri: str) -> Any:
    content = dumped(await client.read_resource(uri))["contents"][0]
    return json.loads(content["text"])


def id_of(result: Any) -> str:
    return result.meta["kernelmcp/result"]["execution_id"]


async def page_of(client: Client, result: Any, more: str = "") -> Any:
    return await read(client, f"kernelmcp://executions/{id_of(result)}/view?wait=0{more}")


async def run(client: Client, code: str, **more: object) -> Any:
    return await client.call_tool("execute_code", {"code": code, **more})


def without(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name != "_meta"}


@MODES
async def test_a_client_without_the_extension_gets_what_it_got(connect: Connect, mode: str) -> None:
    found: list[tuple[Any, Any, Any]] = []
    for views in ("auto", "never"):
        async with connect(mode=mode, TOOLS__VIEWS=views) as client:
            tools = (await client.list_tools()).model_dump_json(by_alias=True, exclude_none=True)
            capabilities = client.server_capabilities
            templates = (await client.list_resource_templates()).model_dump_json(by_alias=True)
            found.append((tools, capabilities and capabilities.extensions, templates))
    assert found[0] == found[1]
    assert "ui://" not in found[0][0]
    # None of views: what else there is, is there for everybody.
    assert set(found[0][1] or ()) <= {"io.modelcontextprotocol/tasks", "io.modelcontextprotocol/skills"}


@MODES
async def test_a_client_with_the_extension_gets_one_address_more(connect: Connect, mode: str) -> None:
    async with connect(mode=mode) as client:
        plain = dumped(await client.list_tools())["tools"]
    async with connect(mode=mode, extensions=UI) as client:
        viewed = dumped(await client.list_tools())["tools"]
        assert "io.modelcontextprotocol/ui" in (client.server_capabilities.extensions or {})
        document = (await client.read_resource(DOCUMENT)).contents[0]
    assert [without(tool) for tool in viewed] == [without(tool) for tool in plain]
    assert len(json.dumps(viewed)) - len(json.dumps(plain)) <= MAX_MORE_BYTES
    assert [tool["name"] for tool in viewed if "ui" in tool.get("_meta", {})] == ["execute_code"]
    assert document.mime_type == "text/html;profile=mcp-app"


async def test_the_settings_say_who_has_views_and_of_which_tools(connect: Connect) -> None:
    async with connect(TOOLS__VIEWS="always", TOOLS__VIEWED='["execute_command"]') as client:
        tools = dumped(await client.list_tools())["tools"]
        assert [tool["name"] for tool in tools if "ui" in tool.get("_meta", {})] == ["execute_command"]
    async with connect(extensions=UI, TOOLS__VIEWS="never") as client:
        assert "ui://" not in (await client.list_tools()).model_dump_json(by_alias=True)


async def test_a_result_is_not_longer(connect: Connect) -> None:
    code = "from IPython.display import HTML, display\nprint('x'); display(HTML('<b>y</b>')); 42"
    found: list[str] = []
    for name, extensions in (("s", None), ("t", UI)):
        async with connect(extensions=extensions, TOOLS__STRUCTURED_CONTENT="never") as client:
            result = dumped(await run(client, code, session_id=name))
            meta = result["_meta"]["kernelmcp/result"]
            meta["execution_time_ms"] = meta["queued_ms"] = meta["session_id"] = 0
            text = re.sub(r"The files of this session are in [^ ]*", "", json.dumps(result))
            found.append(text.replace(meta["execution_id"], "ID"))
    assert found[0] == found[1]


async def test_a_page_has_all_outputs_in_their_order(connect: Connect) -> None:
    code = """
import sys
from IPython.display import HTML, display
print("one")
display(HTML("<b>two</b>"))
print("three", file=sys.stderr)
open("out.txt", "w").write("x")
1 / 0
"""
    async with connect(extensions=UI) as client:
        result = await run(client, code)
        page = await page_of(client, result)
    assert [part.get("stream", part.get("best")) for part in page["parts"]] == ["stdout", "text/html", "stderr"]
    assert page["parts"][1]["data"]["text/html"] == "<b>two</b>"
    assert page["status"] == "error"
    assert page["error"]["name"] == "ZeroDivisionError"
    assert [file["path"] for file in page["files"]] == ["out.txt"]
    assert page["since"] == ""


CHANGES = """
import time
from IPython.display import clear_output, display
shown = display("first", display_id=True)
print("a")
time.sleep(4)
print("b")
shown.update("second")
time.sleep(4)
clear_output()
print("c")
"""


async def test_a_cursor_gives_what_is_new_and_what_has_changed(connect: Connect) -> None:
    async with connect(extensions=UI, SESSIONS__INLINE_WAIT_SECONDS="0.2") as client:
        result = await run(client, CHANGES)
        pages = [await page_of(client, result)]
        while pages[-1]["status"] == "running":
            address = f"kernelmcp://executions/{id_of(result)}/view?wait=15&since={pages[-1]['cursor']}"
            pages.append(await read(client, address))
    cleared = max(number for number, page in enumerate(pages) if not page["since"])  # it begins anew
    assert cleared > 0
    new = [page for page in pages[:cleared] if page["since"]]
    assert [part["text"] for page in new for part in page["parts"] if "stream" in part] in (["b\n"], ["a\n", "b\n"])
    changed = [part for page in new for part in page["parts"] if part.get("display") == 0]
    assert changed[-1]["data"]["text/plain"] == "'second'"
    assert [part["text"] for page in pages[cleared:] for part in page["parts"]] == ["c\n"]


async def test_the_running_execution_is_found_by_its_code(connect: Connect) -> None:
    code = "```python\nimport time\nprint('begun')\ntime.sleep(2)\n```"
    address = f"kernelmcp://views/latest?code={mark(code)}"
    async with connect(extensions=UI) as client:
        with pytest.raises(MCPError):
            await read(client, f"{address}&wait=0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client, code)
            page = await read(client, f"{address}&live=1&wait=15")
            assert page["status"] == "running"
        with pytest.raises(MCPError):  # it has ended
            await read(client, f"{address}&live=1&wait=0")
        assert (await read(client, f"{address}&wait=0"))["execution_id"] == page["execution_id"]


async def test_a_read_that_waits_does_not_keep_others_waiting(connect: Connect) -> None:
    async with connect(extensions=UI, SESSIONS__INLINE_WAIT_SECONDS="0.2") as client:
        result = await run(client, "import time; time.sleep(30)")
        address = (
            f"kernelmcp://executions/{id_of(result)}/view?wait=15&since={(await page_of(client, result))['cursor']}"
        )
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(client.read_resource, address)
            await anyio.sleep(0.5)
            with anyio.fail_after(4):  # less than what a large read is waited for
                await client.call_tool("get_sessions", {})
                await client.read_resource("kernelmcp://sessions")
            await client.call_tool("cancel_execution", {"execution_id": id_of(result)})


@pytest.mark.parametrize(
    "address",
    [
        "kernelmcp://executions/ID/view?since=x&wait=-1&wait=1e9",
        "kernelmcp://executions/ID/view?since=999999999-0-0-0&wait=nan",
        f"kernelmcp://executions/ID/view?{'a=1&' * 70}",
    ],
)
async def test_a_forged_address_gives_the_page_or_is_not_found(connect: Connect, address: str) -> None:
    async with connect(extensions=UI) as client:
        result = await run(client, "print('x')")
        try:
            page = await read(client, address.replace("ID", id_of(result)))
        except MCPError:
            pass
        else:
            assert [part["text"] for part in page["parts"]] == ["x\n"]
        assert (await run(client, "1 + 1")).content[0].text == "2"


async def test_a_value_that_is_too_large_for_a_page_is_read_alone(connect: Connect) -> None:
    code = """
from IPython.display import display
display({"text/html": "<p>" + "ab" * 400_000, "text/plain": "large"}, raw=True)
print("\\0" * 300_000)
for number in range(300):
    display(number)
"""
    async with connect(extensions=UI) as client:
        result = await run(client, code)
        content = dumped(await client.read_resource(f"kernelmcp://executions/{id_of(result)}/view?wait=0"))
        text = content["contents"][0]["text"]
        page = json.loads(text)
        assert len(text.encode()) <= MAX_PAGE_BYTES
        large = page["parts"][0]
        assert large["best"] == "text/html"
        assert "text/html" not in large["data"]
        assert page["displays"] - len([part for part in page["parts"] if "display" in part]) == 101
        whole = await read(client, f"kernelmcp://executions/{id_of(result)}/raw?n=0&type=text/html")
        assert whole == "<p>" + "ab" * 400_000
        for missing in ("n=0&type=image/png", "n=5000&type=text/html", "n=x"):
            with pytest.raises(MCPError):
                await read(client, f"kernelmcp://executions/{id_of(result)}/raw?{missing}")


async def test_another_principal_finds_nothing(tmp_path: Path) -> None:
    alice, bob = "alice-0123456789", "bob-0123456789"
    code = "print('secret')"
    with serving(tmp_path, AUTH__TOKENS__ALICE=alice, AUTH__TOKENS__BOB=bob) as server:
        async with server.client(alice, extensions=UI) as hers, server.client(bob, extensions=UI) as his:
            result = await run(hers, code)
            assert (await page_of(hers, result))["parts"][0]["text"] == "secret\n"
            assert (await read(hers, f"kernelmcp://views/latest?code={mark(code)}"))["execution_id"] == id_of(result)
            for address in (
                "executions/ID/view?wait=0",
                "executions/ID/raw?n=0&type=text/plain",
                f"views/latest?code={mark(code)}",
            ):
                with pytest.raises(MCPError):
                    await read(his, f"kernelmcp://{address.replace('ID', id_of(result))}")


async def test_a_view_of_a_destroyed_session_is_gone(connect: Connect) -> None:
    async with connect(extensions=UI) as client:
        result = await run(client, "print('x')", session_id="s")
        await client.call_tool("destroy_session", {"session_id": "s"})
        with pytest.raises(MCPError):
            await page_of(client, result)


async def test_a_view_is_there_after_a_restart(connect: Connect) -> None:
    async with connect(extensions=UI) as client:
        result = await run(client, "print('kept'); 42", session_id="s")
    async with connect(extensions=UI) as client:
        page = await page_of(client, result)
        assert page["parts"][0]["text"] == "kept\n"
        assert page["status"] == "ok"
