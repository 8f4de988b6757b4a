"""The command line and the client's configuration."""

import json
from pathlib import Path

import pytest

from kernelmcp.commands import client_config


def test_install_keeps_what_is_there_and_is_idempotent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir()
    old = {
        "theme": "dark",
        "mcpServers": {"other": {"command": "x"}, "kernelmcp": {"command": "old", "env": {"A": "1"}}},
    }
    file.write_text(json.dumps(old))
    assert client_config.main("claude-desktop", dry_run=True, file=file) == 0
    assert json.loads(file.read_text()) == old
    assert "kernelmcp" in capsys.readouterr().out
    assert client_config.main("claude-desktop", dry_run=False, file=file) == 0
    new = json.loads(file.read_text())
    assert (new["theme"], new["mcpServers"]["other"]) == ("dark", {"command": "x"})
    assert new["mcpServers"]["kernelmcp"] == {"env": {"A": "1"}, **client_config.entry()}
    assert json.loads(file.with_name(file.name + ".bak").read_text()) == old
    assert client_config.main("claude-desktop", dry_run=False, file=file) == 0
    assert json.loads(file.read_text()) == new


@pytest.mark.parametrize(
    ("platform", "environ", "path"),
    [
        ("darwin", {"HOME": "/Users/a"}, "/Users/a/Library/Application Support/Claude/claude_desktop_config.json"),
        ("linux", {"HOME": "/home/a"}, "/home/a/.config/Claude/claude_desktop_config.json"),
        ("linux", {"HOME": "/home/a", "XDG_CONFIG_HOME": "/c"}, "/c/Claude/claude_desktop_config.json"),
    ],
)
def test_each_platform_has_its_place(platform: str, environ: dict[str, str], path: str) -> None:
    assert client_config.config_file(platform, environ) == Path(path)
