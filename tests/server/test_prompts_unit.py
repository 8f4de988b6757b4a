"""The prompts: what becomes of arguments that a client leaves empty, misses or invents."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import MCPError
from mcp_types import GetPromptResult, TextContent

from kernelmcp.mcp_server import prompts
from kernelmcp.mcp_server.resources import ResourceServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> ResourceServer:
    made = ResourceServer("test")
    prompts.register(made)
    return made


async def text_of(server: ResourceServer, arguments: dict[str, Any]) -> str:
    found = await server.get_prompt("analyze_file", arguments)
    assert isinstance(found, GetPromptResult)
    content = found.messages[0].content
    assert isinstance(content, TextContent)
    return content.text


async def test_an_optional_argument_that_is_empty_is_as_if_omitted(server: ResourceServer) -> None:
    expected = await text_of(server, {"path": "a.csv"})
    assert prompts.QUESTION in expected
    assert [await text_of(server, {"path": "a.csv", "question": blank}) for blank in ("", " \n")] == [expected] * 2
    assert "this question: why?\n" in await text_of(server, {"path": "a.csv", "question": "why?"})


@pytest.mark.parametrize("arguments", [None, {}, {"path": "a.csv", "limit": "1"}, {"Path": "a.csv"}])
async def test_an_error_says_which_arguments_a_prompt_takes(server: ResourceServer, arguments: Any) -> None:
    with pytest.raises(MCPError) as refused:
        await server.get_prompt("analyze_file", arguments)
    assert refused.value.error.code == -32602
    assert refused.value.error.message == "Invalid arguments: the prompt analyze_file takes path, question (optional)."


async def test_an_error_says_which_prompts_there_are(server: ResourceServer) -> None:
    with pytest.raises(MCPError) as refused:
        await server.get_prompt("analyse_file", {})
    assert refused.value.error.code == -32602
    assert refused.value.error.message == "There is no prompt 'analyse_file': there are analyze_file, continue_session."
