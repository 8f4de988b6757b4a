"""What four tasks cost a model, in cells and with each tool called by itself; and that others pay nothing."""

from pathlib import Path

import pytest
from mcp import Client

from kernelmcp.mcp_server.told import LINE, sentence

from .tasks import TASKS, a_model, compare, five_servers

pytestmark = pytest.mark.anyio

# Another fifteen times the 48 tools of the CRM.
MANY_REGIONS = 15
MAX_TOKENS = 2_000
GUIDE = (Path(__file__).parents[2] / "docs" / "code-mode.md").read_text("utf-8")
# Lines of results that are different in each run: where the files are, and links.
VARIES = ("[The files of this session", '{"name":"output')
MANY_TOKENS = 150_000


@pytest.fixture
def model_env(server_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """As most clients are: the model reads the content of results, and no structured copy of it."""
    shown = {"KERNELMCP_TOOLS__STRUCTURED_CONTENT": "auto", "KERNELMCP_CONFIG_FILE": str(tmp_path / "mcp.toml")}
    return {**server_env, **shown}


@pytest.mark.slow
async def test_four_tasks_cost_few_tokens(model_env: dict[str, str], tmp_path: Path) -> None:
    found = await compare(TASKS, model_env, five_servers(tmp_path))
    for name, task in found.items():
        assert task.ours.total <= MAX_TOKENS, name
        if name != "C":  # one call is one call: nothing but definitions is spared
            assert task.saved >= 94, name
            assert task.saved_without_definitions >= 90, name
    for text in (*TASKS["A"].cells, *found["A"].shown):
        lines = [line.rstrip() for line in text.splitlines() if not line.startswith(VARIES)]
        assert "\n".join(lines) in GUIDE, "docs/code-mode.md shows this session as it is"


@pytest.mark.slow
async def test_with_many_definitions_nearly_all_is_saved(model_env: dict[str, str], tmp_path: Path) -> None:
    found = (await compare(["B"], model_env, five_servers(tmp_path, MANY_REGIONS)))["B"]
    assert found.classic.definitions >= MANY_TOKENS
    assert found.ours.total <= MAX_TOKENS
    assert found.saved >= 98.7


@pytest.mark.parametrize("structured", ["auto", "always"])
async def test_who_has_no_other_servers_is_told_the_same_as_ever(
    model_env: dict[str, str], structured: str, tmp_path: Path
) -> None:
    upstreams = five_servers(tmp_path)
    env = {**model_env, "KERNELMCP_TOOLS__STRUCTURED_CONTENT": structured}

    async def told(client: Client) -> tuple[str, list[dict[str, object]]]:
        tools = (await client.list_tools()).tools
        return client.instructions or "", [tool.model_dump(by_alias=True, exclude={"output_schema"}) for tool in tools]

    async with a_model(env, {}) as client:
        instructions, tools = await told(client)
    async with a_model(env, upstreams) as client:
        more_instructions, more_tools = await told(client)
    assert more_instructions == instructions + sentence(list(upstreams))
    for tool in more_tools:
        if tool["name"] == "execute_code":
            assert str(tool["description"]).endswith(LINE)
            tool["description"] = str(tool["description"]).removesuffix(LINE)
    assert more_tools == tools
