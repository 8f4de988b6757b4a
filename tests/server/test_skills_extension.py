"""Promoted skills as resources (SEP-2640): what a host checks of them, and whose they are."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client, MCPError
from mcp_types import Request, RequestParams, Result, TextContent, TextResourceContents
from pydantic import ConfigDict

from kernelmcp.upstreams.skills import PromotedSkills, Skill, parse

from .http_support import serving

pytestmark = pytest.mark.anyio
MODERN = "2026-07-28"
ADA, BOB = "ada-0123456789", "bob-0123456789"
ABOUT = 'Totals: "of" #deals\\, 100 % 🦀 - {module} --- yes'
SOURCE = f'"""{ABOUT}"""\n\ndef total(n):\n    return 2 * n\n\ndef test_total():\n    assert total(1) == 2\n'


class Params(RequestParams):
    uri: str | None = None


class Answer(Result):
    model_config = ConfigDict(extra="allow")


async def ask(client: Client, method: str, uri: str | None = None) -> dict[str, Any]:
    request: Any = Request[Params, str](method=method, params=Params(uri=uri))
    return (await client.session.send_request(request, Answer)).model_dump(by_alias=True, exclude_none=True)


async def read(client: Client, uri: str) -> TextResourceContents:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content


async def test_a_host_lists_verifies_and_reads_the_skills_of_its_principal(tmp_path: Path) -> None:
    promoted = PromotedSkills(tmp_path / "home")
    (tmp_path / "home").mkdir(mode=0o700)
    for name in ("Weekly__totals_", "plain"):
        promoted.add("token:ada", parse(name, SOURCE.encode()))
    promoted.add("token:bob", Skill("bobs", '"""Bob\'s."""\n', "Bob's.", ()))
    # Changed since a person has seen it: what is no longer readable is no skill.
    promoted.add("token:ada", Skill("hidden", '"""Hidden."""\nx = "\u202e"\n', "Hidden.", ()))
    with serving(tmp_path, AUTH__TOKENS__ADA=ADA, AUTH__TOKENS__BOB=BOB) as server:
        async with server.client(ADA, MODERN) as client:
            answer = await ask(client, "skills/list")
            assert (answer["resultType"], answer["cacheScope"]) == ("complete", "private")
            assert answer["ttlMs"] > 0
            assert [skill["frontmatter"]["name"] for skill in answer["skills"]] == ["weekly-totals", "plain"]
            for skill in answer["skills"]:
                uri, name = skill["uri"], skill["frontmatter"]["name"]
                assert uri == f"skill://{name}/SKILL.md"
                assert uri in [file["uri"] for file in skill["resources"]]
                for file in skill["resources"]:
                    data = (await read(client, file["uri"])).text.encode()
                    assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (file["digest"], file["size"])
                _, front, body = (await read(client, uri)).text.split("---\n", 2)
                assert yaml.safe_load(front) == skill["frontmatter"]
                assert skill["frontmatter"]["description"] == ABOUT
                assert ABOUT in body
                assert (await ask(client, "skills/get", uri))["skill"] == skill
            guide = await read(client, "skill://weekly-totals/SKILL.md")
            assert guide.mime_type == "text/markdown"
            assert "from skills import Weekly__totals_\n" in guide.text
            assert (await read(client, "skill://weekly-totals/Weekly__totals_.py")).text == SOURCE
            listed = [resource.uri for resource in (await client.list_resources()).resources]
            assert "skill://plain/SKILL.md" in listed
            # A client that shows its model no resources reads them too, and only its principal's.
            for uri, text in ((guide.uri, guide.text), ("skill://weekly-totals/Weekly__totals_.py", SOURCE)):
                shown = await client.call_tool("read_file", {"path": uri})
                assert (shown.is_error, shown.content[0]) == (False, TextContent(type="text", text=text))
            for uri in ("skill://bobs/SKILL.md", "skill://weekly-totals/../x"):
                shown = await client.call_tool("read_file", {"path": uri})
                assert shown.is_error
                assert "no skill is served at" in str(shown.content[0])
            for uri in ("skill://bobs/SKILL.md", "skill://hidden/SKILL.md", "skill://plain", "skill://plain/../x", ""):
                with pytest.raises(MCPError) as refused:
                    await ask(client, "skills/get", uri)
                assert refused.value.error.code == -32602
                with pytest.raises(MCPError):
                    await client.read_resource(uri or "skill://")
        async with server.client(BOB, MODERN) as client:
            assert [skill["uri"] for skill in (await ask(client, "skills/list"))["skills"]] == ["skill://bobs/SKILL.md"]
        async with server.client(ADA) as client:  # of the older era
            with pytest.raises(MCPError) as refused:
                await ask(client, "skills/list")
            assert refused.value.error.code == -32601
            assert (await read(client, "skill://plain/plain.py")).text == SOURCE
