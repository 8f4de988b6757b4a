"""What goes wrong with tools of other servers, through a real server: a catchable exception, and nothing else breaks.

Tested elsewhere: a loop of more calls than a cell may make (test_calls.py), replies and frames of wrong shapes and
`tool_reply` as a call (tests/kernel/test_tools_attacks.py), upstreams that speak no MCP (tests/upstreams).
"""

import json
import shlex
import sys
from pathlib import Path

import psutil
import pytest

from ..processes import command_line
from ..server.support import server_of_test
from ..starting import python_command
from .conftest import Modelling
from .support import CRM, Model, settings_of

pytestmark = pytest.mark.anyio

WHAT = """
import asyncio
from kernelmcp_guest.servers.pending_calls import call

def caught(wanted, *arguments, **named):
    try:
        return ["came back", str(wanted(*arguments, **named))[:200]]
    except Exception as exc:
        return [type(exc).__name__, str(exc)]
"""
ALLOW = 'default = "allow"\n'
HOSTILE = ["__proto__", "constructor", "", "../crm", "crm.get_deal", "a" * 500, "\\x1b[2J"]


async def printed(one: Model, code: str) -> str:
    fields = await one.run(WHAT + code)
    assert fields["status"] == "ok", fields
    return str(fields["stdout"])


async def other_is_well(one: Model, pid: str) -> None:
    """The other upstream is the same process, and the session has its variables."""
    assert (await printed(one, "from servers.other import stats\nprint(stats()['pid'], kept)")) == f"{pid} 41\n"


async def begin(one: Model) -> str:
    await one.ready("other")
    return (await printed(one, "from servers.other import stats\nkept = 41\nprint(stats()['pid'])")).strip()


async def test_each_failure_is_an_exception_of_its_class(model: Modelling) -> None:
    crm = ALLOW + 'timeout_seconds = 15\ntools = { delete_deal = "deny" }'
    async with model(toml=settings_of(crm=crm, other=ALLOW)) as one:
        pid = await begin(one)
        found = await printed(one, "from servers.crm import die\nprint(caught(die))")
        assert "ServerUnavailable" in found
        # The next call waits for the connection.
        assert "came back" in await printed(
            one, "from servers.crm import get_deal\nprint(caught(get_deal, id='deal_1'))"
        )
        found = await printed(
            one, "from servers.crm import slow, stats\nprint(caught(slow, seconds=60))\nprint(stats())"
        )
        assert "ToolTimeout" in found
        assert "'cancelled': 1" in found
        rows = {
            "from servers.crm import fail\nprint(caught(fail))": ("ToolError", "locked by user_3"),
            "print(caught(call, 'crm', 'get_deel', {}))": ("ToolError", "get_deal"),
            "print(caught(call, 'crm', 'delete_deal', {}))": ("ToolDenied", "delete_deal"),
            "print(caught(get_deal, number=1))": ("TypeError", "get_deal(id: str)"),
            "print(caught(get_deal, id={1}))": ("TypeError", "JSON"),
            "print(caught(get_deal, id='none'))": ("ToolError", "there is no deal"),
            "from servers.crm import ask_user\nprint(caught(ask_user))": ("ToolError", "elicitation"),
            "from servers.crm import ask_model\nprint(caught(ask_model))": ("ToolError", "sampling"),
        }
        for code, (kind, text) in rows.items():
            found = await printed(one, code)
            assert found.startswith(f"['{kind}'"), (code, found)
            assert text in found, (code, found)
        for name in HOSTILE:
            for code in (f"call, {name!r}, 'get_deal'", f"call, 'crm', {name!r}"):
                assert (await printed(one, f"print(caught({code}, {{}}))")).startswith("['ToolError'"), name
        await other_is_well(one, pid)


async def test_tools_may_change_in_the_middle_of_a_cell(model: Modelling) -> None:
    async with model(toml=settings_of(crm=ALLOW)) as one:
        found = await printed(
            one,
            "import os\nfrom servers.crm import add_tool, get_deal\nbefore = set(os.listdir('/servers/crm'))\n"
            "add_tool()\n"
            "for _ in range(600):\n    if new := set(os.listdir('/servers/crm')) - before: break\n"
            "    await asyncio.sleep(0.1)\n"
            "print(sorted(name for name in new if name.startswith('added')), get_deal(id='deal_3')['id'])\n"
            "from servers.crm import added_60\nprint(caught(added_60))",
        )
        assert found.startswith("['added_60.py'] deal_3\n['TypeError'"), found


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("slow(seconds=600)", 1),
        ("await slow.aio(seconds=600)", 1),
        ("await asyncio.gather(*[slow.aio(seconds=600) for _ in range(10)])", 10),
    ],
    ids=["plain", "await", "gather"],
)
async def test_an_interrupt_and_a_death_reach_the_upstream(model: Modelling, code: str, calls: int) -> None:
    async with model(toml=settings_of(crm=ALLOW, other=ALLOW), SESSIONS__INLINE_WAIT_SECONDS="1") as one:
        pid = await begin(one)
        slow = f"import asyncio\nfrom servers.crm import slow\n{code}"
        running = await one.run(slow)
        assert running["status"] == "running"
        await one.are_under_way(calls)
        await one.call("cancel_execution", session_id="s", execution_id=running["execution_id"])
        _, ended = await one.call("get_execution", execution_id=running["execution_id"], wait_seconds=60)
        assert (ended["status"], ended["error"]["name"]) == ("interrupted", "KeyboardInterrupt")
        watched = "from servers.crm import stats\n[stats()[key] for key in ('cancelled', 'under_way')]"
        await one.until(watched, lambda fields: fields["result"] == f"[{calls}, 0]")
        await other_is_well(one, pid)
        running = await one.run(slow)
        await one.are_under_way(calls)
        for process in guests():
            process.kill()
        _, ended = await one.call("get_execution", execution_id=running["execution_id"], wait_seconds=60)
        assert (ended["status"], ended["state_lost"]) == ("dead", True)
        # The fresh guest has the offer, too.
        await one.until(watched, lambda fields: fields["result"] == f"[{2 * calls}, 0]")


def guests() -> list[psutil.Process]:
    """Of this test's server."""
    return [each for each in server_of_test().children(recursive=True) if "--permission" in command_line(each)]


async def test_floods_are_refused_and_the_rest_is_answered(model: Modelling) -> None:
    async with model(toml=settings_of(crm=ALLOW, other=ALLOW)) as one:
        pid = await begin(one)
        found = await printed(
            one,
            "from collections import Counter\nfrom servers.crm import echo\n"
            "got = await asyncio.gather(*[echo.aio(value=n) for n in range(5000)], return_exceptions=True)\n"
            "print(sorted(Counter(type(each).__name__ for each in got).items()))",
        )
        assert found == "[('LimitExceeded', 4000), ('Text', 1000)]\n"
        for megabytes in (9, 60):
            found = await printed(one, f"print(caught(echo, value='x' * {megabytes}_000_000))")
            assert found.startswith("['LimitExceeded'"), found
        assert await printed(one, "from servers.crm import stats\nprint(stats()['max_under_way'] <= 24)") == "True\n"
        await other_is_well(one, pid)


async def test_an_upstream_that_comes_late_is_found(model: Modelling, tmp_path: Path) -> None:
    """Nobody can call a server that has never answered, so it is tried again by itself."""
    seen = tmp_path / "seen"
    script = f"test -e {seen} || {{ touch {seen}; exit 1; }}; exec {shlex.join(python_command(CRM))}"
    async with model(toml=f"[upstreams.servers.late]\ncommand = '/bin/sh'\nargs = ['-c', {json.dumps(script)}]") as one:
        await one.ready("late")


async def test_an_upstream_that_always_dies_ends_nothing_else(model: Modelling) -> None:
    dying = f'[upstreams.servers.dying]\ncommand = "{sys.executable}"\nargs = ["-c", "raise SystemExit(3)"]\n'
    mute = f'[upstreams.servers.mute]\ncommand = "{sys.executable}"\nargs = ["-c", "input()"]\ntimeout_seconds = 2\n'
    async with model(toml=settings_of(other=ALLOW) + dying + mute) as one:
        pid = await begin(one)
        for server in ("dying", "mute", "dying"):
            assert "['ServerUnavailable'" in await printed(one, f"print(caught(call, {server!r}, 'x', {{}}))"), server
        await other_is_well(one, pid)
