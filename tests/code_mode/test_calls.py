"""Calls of an upstream's tools by cells of a real server: policy, limits, ends, and what is told and noted of them."""

import asyncio
import json
import os
import stat
import subprocess
import sys

import pytest

from ..starting import run_kernelmcp
from .conftest import Modelling
from .support import settings_of

pytestmark = pytest.mark.anyio

CAUGHT = """
def caught(call):
    try:
        return call()
    except Exception as exc:
        return [c.__name__ for c in type(exc).__mro__[:3]], str(exc)
"""


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cell_calls_tools_and_only_what_it_prints_costs_tokens(model: Modelling, mode: str) -> None:
    async with model(mode=mode) as one:
        fields = await one.run(
            "from servers.crm import list_deals\n"
            "pages = [list_deals(page_size=100, cursor=str(n)) for n in (0, 100)]\n"
            "print(sum(deal['amount'] for page in pages for deal in page['items']) > 0)"
        )
        assert (fields["status"], fields["stdout"]) == ("ok", "True\n")
        assert fields["tools_called"] == {"crm.list_deals": 2}
        assert fields["tokens_saved"] > 10_000
        assert fields["pending_approvals"] == []
        calls = await one.calls(fields["execution_id"])
        assert [(call["tool"], call["rule"], call["outcome"]) for call in calls] == [
            ("list_deals", "readOnlyHint", "ok")
        ] * 2
        none = await one.run("1")
        assert (none["tools_called"], none["tokens_saved"]) == ({}, 0)
        _, listed = await one.call("get_sessions")
        [session] = listed["sessions"]
        assert session["tools_called"] == {"crm.list_deals": 2}
        assert session["tokens_saved"] == fields["tokens_saved"]


async def test_the_audit_has_names_and_a_hash_and_no_values(model: Modelling) -> None:
    toml = settings_of(crm='tools = { "delete_*" = "deny" }')
    async with model(toml=toml) as one:
        fields = await one.run(
            CAUGHT + "from kernelmcp_guest.servers.pending_calls import call\nfrom servers.crm import get_deal\n"
            "get_deal(id='deal_7')\n"
            "print(caught(lambda: call('crm', 'delete_deal', {'id': 'deal_secret'})))"
        )
        assert "ToolDenied" in fields["stdout"], fields
        assert "[upstreams.servers.crm]" in fields["stdout"]
        ran, denied = await one.audit(2)
        assert (ran["principal"], ran["session"], ran["execution"]) == ("local", "s", fields["execution_id"])
        assert (ran["server"], ran["tool"], ran["decision"], ran["outcome"]) == ("crm", "get_deal", "allow", "ok")
        assert (ran["argument_names"], len(ran["arguments_sha256"])) == (["id"], 64)
        assert ran["size"] > 0
        assert (denied["decision"], denied["rule"], denied["outcome"]) == ("deny", "tools.delete_*", "denied")
        file = one.home / "audit.jsonl"
        assert "deal_7" not in file.read_text()
        assert "deal_secret" not in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        command = ("audit", "--since", "1d", "--config", str(one.home.parent / "mcp.toml"))
        env = {**os.environ, "KERNELMCP_HOME": str(one.home)}
        told = await asyncio.to_thread(run_kernelmcp, *command, env=env)
        assert (told.returncode, "crm.delete_deal: tools.delete_*" in told.stdout) == (0, True)
        as_json = await asyncio.to_thread(run_kernelmcp, *command, "--json", env=env)
        report = json.loads(as_json.stdout)
        assert report["tools"]["crm.get_deal"]["ok"] == 1
        assert report["changes"][0]["server"] == "crm"
        assert "get_deal" in report["changes"][0]["new"]


async def test_a_loop_comes_to_its_limit_and_can_go_on_in_the_next_cell(model: Modelling) -> None:
    async with model(SESSIONS__INLINE_WAIT_SECONDS="180") as one:
        fields = await one.run(
            "from servers import LimitExceeded\n"
            "from servers.crm import get_deal\n"
            "made, refused = 0, []\n"
            "for _ in range(1_500):\n"
            "    try:\n"
            "        get_deal(id='deal_1')\n"
            "        made += 1\n"
            "    except LimitExceeded as error:\n"
            "        refused.append(str(error))\n"
            "print(made, len(refused), set(refused))"
        )
        assert fields["stdout"].startswith("1000 500 {'one cell may make 1,000 tool calls"), fields
        assert (await one.run("get_deal(id='deal_2')['id']"))["result"] == "'deal_2'"


async def test_a_cell_that_is_cancelled_cancels_its_calls_at_the_upstream(model: Modelling) -> None:
    toml = settings_of(crm='tools = { slow = "allow" }')
    async with model(toml=toml, SESSIONS__INLINE_WAIT_SECONDS="1") as one:
        running = await one.run(
            "import asyncio\nfrom servers.crm import slow, stats\n"
            "await asyncio.gather(*[slow.aio(seconds=60) for _ in range(5)])"
        )
        assert running["status"] == "running"
        await one.are_under_way(5)
        await one.call("cancel_execution", session_id="s", execution_id=running["execution_id"])
        ended = await one.call("get_execution", execution_id=running["execution_id"], wait_seconds=30)
        assert ended[1]["status"] == "interrupted"
        await one.until("stats()['cancelled']", lambda fields: fields["result"] == "5")
        assert {call["outcome"] for call in await one.calls(running["execution_id"])} == {"cancelled"}


async def test_without_upstreams_nothing_is_there_and_nothing_costs(model: Modelling) -> None:
    async with model(toml="") as one:
        assert one.client.instructions is not None
        assert "servers" not in one.client.instructions
        listed = (await one.client.list_tools()).model_dump_json(by_alias=True)
        for word in ("servers.search", "tools_called", "pending_approvals", "PendingApproval", "tokens_saved"):
            assert word not in listed
        fields = await one.run("try:\n    import servers\nexcept ModuleNotFoundError as exc:\n    print(exc)")
        assert fields["stdout"] == "no MCP servers are offered to this kernel\n"
        assert not {"tools_called", "tokens_saved", "pending_approvals"} & set(fields)
        assert not (one.home / "audit.jsonl").exists()
        modules = "import sys; from kernelmcp.mcp_server import assemble; print('\\n'.join(sys.modules))"
        loaded = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", modules], capture_output=True, text=True, check=True
        )
        assert "kernelmcp.code_mode.broker" not in loaded.stdout


async def test_with_upstreams_the_model_is_told_in_few_words(model: Modelling) -> None:
    async with model() as one:
        assert one.client.instructions is not None
        assert "other MCP servers (crm)" in one.client.instructions
        tools = {tool.name: tool for tool in (await one.client.list_tools()).tools}
        assert "servers.search" in (tools["execute_code"].description or "")
        assert "tools_called" in json.dumps(tools["execute_code"].output_schema)


async def test_servers_come_change_and_go_while_the_server_runs(model: Modelling) -> None:
    async with model(toml="") as one:
        config = one.home.parent / "mcp.toml"
        assert (await one.run("x = 1"))["status"] == "ok"
        config.write_text(settings_of(crm=""))
        await one.ready()
        assert (await one.run("x + 1"))["result"] == "2"  # the same kernel
        config.write_text(settings_of(crm='tools = { get_deal = "deny" }'))
        await one.run("from servers.crm import get_account")
        code = "try:\n    get_deal(id='deal_1')\nexcept PermissionError as exc:\n    print('denied')"
        await one.until(code, lambda fields: fields["stdout"] == "denied\n")
        config.write_text("")
        await one.until("get_account(id='account_1')", lambda fields: fields["status"] == "error")
