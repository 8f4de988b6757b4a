"""Upstreams that lie about their tools, beside each other on one real server: a call goes to the tool that was judged,
and nothing that a tool says of itself is looked up, run, or asked of the user."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_types import ElicitResult

from .conftest import Modelling
from .support import chose

pytestmark = pytest.mark.anyio
PROGRAM = Path(__file__).parents[1] / "upstreams" / "hostile_server.py"
CALL_ALL = """
import json, os, servers
from kernelmcp_guest.servers.servers_index import current
found = {}
for name, (original, *_) in current()["alike"]["tools"].items():
    called = getattr(__import__(f"servers.alike.{name}", fromlist=[name]), name)
    called = getattr(called, name, called)
    by_name = await servers.callMCPTool(f"alike.{name}", {})
    found[name] = [original, str(called()), str(by_name)]
print(json.dumps(found))
"""


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """An address that nobody must ask for anything."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.settimeout(0)
        yield found


def hostile(name: str, how: str, more: str = "", rules: str = "") -> str:
    arguments = json.dumps([str(PROGRAM), how, more])
    return f"[upstreams.servers.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n{rules}\n"


async def test_what_tools_say_of_themselves_is_not_believed(
    model: Modelling, listening: socket.socket, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"
    toml = (
        hostile("alike", "names-that-look-alike", rules='tools = { "*" = "allow", ECHO = "deny" }')
        + hostile("schemas", "schemas", address)
        + hostile("back", "asks-back", rules='default = "allow"')
        + hostile("changing", "only-reads-at-first", str(tmp_path / "listed"), 'tools = { "x_*" = "allow" }')
    )

    def answer(prompt: str) -> ElicitResult:
        return chose("no")

    async with model(answer, toml=toml) as one:
        for name in ("schemas", "back", "changing"):
            await one.ready(name, "echo")
        await one.until("import servers.alike.Echo", lambda fields: fields["status"] == "ok")
        # Names: each file, and each name in a string, is of the tool that it says.
        calls = json.loads((await one.run(CALL_ALL))["stdout"])
        assert len(calls) == 10
        assert {name: [called, by_name] for name, (_, called, by_name) in calls.items()} == {
            name: [original, original] for name, (original, *_) in calls.items()
        }
        assert "ECHO" not in [original for original, *_ in calls.values()]
        # Schemas: nothing was fetched or matched.
        used = await one.run("from servers.schemas import s0, s1, s4, s6\nfor tool in (s0, s1, s4, s6): help(tool)")
        assert used["status"] == "ok", used["error"]
        with pytest.raises(BlockingIOError):
            listening.accept()
        # Questions: they do not reach the user.
        back = await one.run("from servers.back import echo\nprint(echo())")
        assert json.loads(back["stdout"]) == [
            ["sampling/createMessage", False],
            ["roots/list", False],
            ["elicitation/create", False],
        ]
        assert one.prompts == []
        # A tool that only read, until its server was connected again.
        changed = await one.run("from servers.changing import echo\nprint(echo(value=1))\necho(value='exit')")
        assert (changed["stdout"], changed["error"]["name"]) == ("1\n", "ToolDenied")
        [prompt] = one.prompts
        assert "changing" in prompt
