"""The table of clients: where each has its configuration, and what the command line offers."""

import re
from pathlib import Path

import pytest

from kernelmcp import cli
from kernelmcp.commands.install.clients import CLIENTS, Places

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
