"""Servers that people use, as upstreams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.upstreams import Upstreams

from . import real_servers
from .conftest import Opened, ready, until

pytestmark = pytest.mark.anyio


def entry(name: str, command: real_servers.Command, more: str = "") -> str:
    program, arguments = command
    return f"[upstreams.servers.{name}]\ncommand = '{program}'\nargs = {arguments}\n{more}\n"


async def value(upstreams: Upstreams, server: str, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await upstreams.tool_call(server, tool, arguments, timeout_seconds=120)
    if result.value is None:
        assert result.raw is not None
        return json.loads(result.raw)
    return result.value


async def test_everything(opened: Opened) -> None:
    async with opened(entry("everything", real_servers.everything())) as upstreams:
        await ready(upstreams, "everything")
        catalogue = upstreams.catalogue("everything")
        assert catalogue is not None
        assert {"echo", "get-sum", "get-tiny-image"} <= {tool.name for tool in catalogue.tools}
        assert (await value(upstreams, "everything", "echo", message="hé"))["content"][0]["text"] == "Echo: hé"
        assert "5" in (await value(upstreams, "everything", "get-sum", a=2, b=3))["content"][0]["text"]
        kinds = [block["type"] for block in (await value(upstreams, "everything", "get-tiny-image"))["content"]]
        assert "image" in kinds
        structured = await value(upstreams, "everything", "get-structured-content", location="Chicago")
        assert set(structured["structuredContent"]) == {"temperature", "conditions", "humidity"}
        wrong = await value(upstreams, "everything", "get-sum", a="x")
        assert wrong["isError"] is True


async def test_filesystem(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large.txt").write_text("line of text\n" * 100_000)
    async with opened(entry("files", real_servers.filesystem(tmp_path / "data"))) as upstreams:
        written = await value(upstreams, "files", "write_file", path=str(tmp_path / "data" / "a.txt"), content="héllo")
        assert not written.get("isError")
        assert (tmp_path / "data" / "a.txt").read_text() == "héllo"
        text = await value(upstreams, "files", "read_text_file", path=str(tmp_path / "data" / "large.txt"))
        assert text["content"][0]["text"] == "line of text\n" * 100_000
        outside = await value(upstreams, "files", "read_text_file", path=str(tmp_path / "mcp.toml"))
        assert outside["isError"] is True


async def test_memory(opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    more = f"env = {{ MEMORY_FILE_PATH = '{file}' }}"
    async with opened(entry("memory", real_servers.memory(), more)) as upstreams:
        entities = [{"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}]
        await value(upstreams, "memory", "create_entities", entities=entities)
        graph = await value(upstreams, "memory", "read_graph")
        assert graph["structuredContent"]["entities"] == entities
        assert "Ada" in file.read_text()


async def test_git(opened: Opened, tmp_path: Path) -> None:
    repository = real_servers.a_repository(tmp_path / "repository")
    async with opened(entry("git", real_servers.git(repository))) as upstreams:
        found = await value(upstreams, "git", "git_log", repo_path=str(repository))
        assert "The first" in found["content"][0]["text"]
        catalogue = upstreams.catalogue("git")
        assert catalogue is not None
        status = catalogue.tool("git_status")
        assert status is not None
        assert status.read_only is True
        with pytest.raises(UpstreamError):
            await upstreams.tool_call("none", "git_status", {}, timeout_seconds=5)
        await until(lambda: upstreams.status("git").state == "ready")
