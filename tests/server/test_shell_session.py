"""The shell as a language of a session, as clients of the server see it."""

import json
from typing import Any

import pytest
from mcp import Client

from .support import Connect

pytestmark = pytest.mark.anyio


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    return (await client.call_tool(tool, arguments)).structured_content


async def test_the_shell_is_a_language_of_a_session(connect: Connect, kernelspec: str) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernelspec has its own language")
    async with connect() as client:
        assert (await call(client, "create_session", session_id="s", language="shell"))["language"] == "shell"

        async def run(code: str, **more: object) -> dict[str, Any]:
            return await call(client, "execute_code", code=code, session_id="s", **more)

        first = await run("n=41; mkdir d; cd d; printf 'b\\na\\n' | sort > made.txt; cat made.txt; echo err >&2")
        assert (first["status"], first["stdout"], first["stderr"]) == ("ok", "a\nb\n", "err\n")
        assert "d/made.txt" in [change["path"] for change in first["files_changed"]]
        assert (await run("open('d/made.txt').read()", language="python"))["result"] == "'a\\nb\\n'"

        failed = await client.call_tool("execute_code", {"code": "exit 3", "session_id": "s"})
        assert "CalledProcessError: exit status 3" in failed.content[0].text

        late = await run("while true; do :; done", timeout=1)
        assert (late["status"], late["state_lost"]) == ("timeout", False)
        assert (await run("echo $((n + 1)); pwd"))["stdout"] == "42\n/workspace/d\n"

        notebook = (await client.read_resource("kernelmcp://sessions/s/notebook")).contents[0].text
        cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"]]
        assert cells[2] == "%%bash\nexit 3"
        assert (await call(client, "reset_workspace", session_id="s", scope="variables"))["variables_cleared"]
        assert (await run("echo [$n]"))["stdout"] == "[]\n"
