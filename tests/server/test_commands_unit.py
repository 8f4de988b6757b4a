"""The table of clients: where each has its configuration, and what the command line offers."""

import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import CallToolResult, TextResourceContents

from kernelmcp import cli
from kernelmcp.commands import demo
from kernelmcp.commands.demo_screen import Screen
from kernelmcp.commands.install.clients import CLIENTS, Places
from kernelmcp.commands.own_server import RESULT_KEY

ROOT = Path(__file__).resolve().parents[2]
MAC, LINUX = {"HOME": "/Users/a"}, {"HOME": "/home/a"}
SUPPORT = "/Users/a/Library/Application Support"


@pytest.mark.parametrize(
    ("client", "platform", "environ", "path"),
    [
        ("claude-desktop", "darwin", MAC, f"{SUPPORT}/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", LINUX, "/home/a/.config/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {**LINUX, "XDG_CONFIG_HOME": "/c"}, "/c/Claude/claude_desktop_config.json"),
        ("claude-code", "darwin", MAC, "/Users/a/.claude.json"),
        ("claude-code", "linux", {**LINUX, "CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("cursor", "linux", LINUX, "/home/a/.cursor/mcp.json"),
        ("vscode", "darwin", MAC, f"{SUPPORT}/Code/User/mcp.json"),
        ("vscode", "linux", LINUX, "/home/a/.config/Code/User/mcp.json"),
        ("codex", "linux", LINUX, "/home/a/.codex/config.toml"),
        ("codex", "linux", {**LINUX, "CODEX_HOME": "/c"}, "/c/config.toml"),
        ("gemini-cli", "darwin", MAC, "/Users/a/.gemini/settings.json"),
        ("windsurf", "linux", LINUX, "/home/a/.codeium/windsurf/mcp_config.json"),
        ("zed", "darwin", MAC, "/Users/a/.config/zed/settings.json"),
        ("opencode", "linux", LINUX, "/home/a/.config/opencode/opencode.json"),
    ],
)
def test_each_client_has_its_place(client: str, platform: str, environ: dict[str, str], path: str) -> None:
    assert CLIENTS[client].file("user", Places(environ, platform)) == Path(path)


def test_the_command_line_and_the_readme_name_every_client() -> None:
    assert tuple(CLIENTS) == cli.INSTALL_CLIENTS
    rows = re.findall(
        r"^\| (.+?) \| `kernelmcp install (\S+) --folder ~/kernelmcp` \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert rows == [(client.title, name) for name, client in CLIENTS.items()]


def test_a_client_may_be_written_as_the_other_commands_write_it() -> None:
    for written in ("claude-desktop", "claude_desktop"):
        assert cli._parser().parse_args(["install", written]).client == "claude-desktop"


class DemoServer:
    """As the client of a server whose tools all succeed."""

    protocol_version = "1"

    async def list_tools(self) -> Any:
        return SimpleNamespace(tools=[])

    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        return CallToolResult(content=[], _meta={RESULT_KEY: {"session_id": "s"}})

    async def read_resource(self, uri: str) -> Any:
        return SimpleNamespace(contents=[TextResourceContents(uri=uri, text="{}")])


@pytest.mark.anyio
@pytest.mark.parametrize("worked", [True, False])
async def test_a_demo_that_failed_leads_to_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked: bool
) -> None:
    @asynccontextmanager
    async def client_of(*_: Any) -> AsyncIterator[DemoServer]:
        yield DemoServer()

    async def step(*_: Any) -> bool:
        return worked

    monkeypatch.setattr(demo.own_server, "client_of", client_of)
    monkeypatch.setattr(demo.Demo, "_step", step)
    out = io.StringIO()
    with demo._targets() as targets:
        shown = demo.Demo(Screen(out, tmp_path / "demo.png"), targets, tmp_path / "demo.ipynb", "kernelmcp")
        assert await shown.run() == (not worked)
    told = out.getvalue().partition("\nNext: ")[2]
    assert told.startswith("give it to a client") == worked
    assert told.startswith("`kernelmcp doctor`") == (not worked)
