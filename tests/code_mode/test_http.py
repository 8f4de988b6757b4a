"""Several principals on one server: whose servers are whose, and what Prometheus sees."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError

from ..server.http_support import HttpServer, serving
from .support import Model, settings_of

pytestmark = pytest.mark.anyio
ALICE, BOB = "alice-" + "a" * 32, "bob-" + "b" * 32


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    config = tmp_path / "mcp.toml"
    servers = settings_of(crm='default = "allow"\nprincipals = ["token:alice"]', secret="")
    config.write_text(f'[auth.tokens]\nalice = "{ALICE}"\nbob = "{BOB}"\n{servers}')
    with serving(tmp_path, "--config", str(config)) as found:
        yield found


def model_of(client: Client) -> Model:
    return Model(client, Path(), Path())


async def test_a_server_is_its_principals_and_nobody_elses(server: HttpServer) -> None:
    async with server.client(ALICE) as alices, server.client(BOB) as bobs:
        alice, bob = model_of(alices), model_of(bobs)
        assert alices.instructions is not None
        assert "(crm)" in alices.instructions
        assert "servers.search" not in (bobs.instructions or "")
        assert "servers.search" not in (await bobs.list_tools()).model_dump_json()

        await alice.ready()
        ran = await alice.run("get_deal(id='deal_1')['id']")
        assert ran["result"] == "'deal_1'"
        for code in (
            "from servers.crm import get_deal",
            "import servers",
            "from kernelmcp_guest.servers.pending_calls import call\ncall('crm', 'get_deal', {'id': 'deal_1'})",
        ):
            assert (await bob.run(code))["status"] == "error", code
        # What nobody is named for is nobody's.
        fields = await alice.run(
            "from kernelmcp_guest.servers.pending_calls import call\ncall('secret', 'get_deal', {'id': '1'})"
        )
        assert "there is no MCP server" in fields["error"]["value"]

        assert [call["principal"] for call in await alice.calls(ran["execution_id"])] == ["token:alice"]
        with pytest.raises(MCPError):
            await bob.calls(ran["execution_id"])

        text = server.get("/metrics", ALICE).text
        assert 'kernelmcp_upstream_calls_total{outcome="ok",server="crm"} 1.0' in text
        assert 'kernelmcp_upstream_call_seconds_count{server="crm"} 1.0' in text
        assert re.search(r'kernelmcp_upstream_tokens_saved_total\{server="crm"\} [1-9]', text)
        assert "get_deal" not in text
        assert json.dumps(ALICE) not in text


@pytest.mark.parametrize("mode", ["legacy", "auto", "sse"])
async def test_a_cancelled_request_ends_its_cell_and_its_call(server: HttpServer, mode: str) -> None:
    """Over each transport, and in both eras."""
    async with server.client(ALICE, mode=mode) as client, server.client(ALICE, mode="auto") as other:
        alice, watching = model_of(client), model_of(other)
        await alice.ready()
        await alice.run("kept = 41")
        stats = "from servers.crm import stats\n[stats()[key] for key in ('cancelled', 'under_way')]"

        async def until(wanted: str) -> None:
            while (await watching.run(stats, "watching"))["result"] != wanted:
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alice.run, "from servers.crm import slow\nslow(seconds=600)")
            await until("[0, 1]")
            tasks.cancel_scope.cancel()
        await until("[1, 0]")
        assert (await alice.run("kept + 1"))["result"] == "42"
        while "kernelmcp_http_requests_active 0.0" not in server.get("/metrics", ALICE).text:
            pass  # an answer's stream ends a moment after the answer
