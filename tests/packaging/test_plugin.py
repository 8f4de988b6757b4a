"""The plugin for coding agents: its server starts, and Claude Code accepts, installs and starts it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import ROOT
from .installed import documented, first_results, fresh_environment, npm_folder, run

pytestmark = pytest.mark.slow

PLUGIN = ROOT / "deploy" / "clients" / "plugin"
CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.197"


@pytest.fixture
def env(wheel: Path, tmp_path: Path, run_folder: Path) -> dict[str, str]:
    """A home in which the package index's kernelmcp is this tree's wheel."""
    override = tmp_path / "override.txt"
    override.write_text(f"kernelmcp @ {wheel.as_uri()}\n")
    return fresh_environment(tmp_path / "home", run_folder) | {"UV_OVERRIDE": str(override)}


def test_the_server_starts_as_the_manifest_says(env: dict[str, str]) -> None:
    [server] = json.loads((PLUGIN / "mcp.json").read_text("utf-8"))["mcpServers"].values()
    code = "open('/volumes/shared/made', 'w').write('by a cell'); 6 * 7"
    [text] = first_results([server["command"], *server["args"]], env, ("execute_code", {"code": code}))
    assert text.startswith("42\n")
    assert Path(env["HOME"], "kernelmcp", "made").read_text() == "by a cell"


def test_claude_code_accepts_installs_and_starts_it(env: dict[str, str], tmp_path: Path) -> None:
    [claude] = npm_folder(CLAUDE_CODE).glob("node_modules/@anthropic-ai/claude-code-*/claude")
    env |= {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    project = tmp_path / "project"
    project.mkdir()

    def plugin(*arguments: str | Path) -> str:
        return run([claude, "plugin", *arguments], env, cwd=project)

    for manifest in (ROOT, PLUGIN):
        assert "Validation passed" in plugin("validate", "--strict", manifest)
    shell = env | {"PATH": f"{claude.parent}:{env['PATH']}"}
    for command in ("marketplace", "install"):
        run(["/bin/sh", "-c", documented(f"claude plugin {command}")], shell, cwd=ROOT)
    assert re.search(r"Skills \(3\) +notebook, sandboxed-kernel, sessions$", plugin("details", "kernelmcp"), re.M)
    assert re.search(
        r"^plugin:kernelmcp:kernelmcp: .* Connected$", run([claude, "mcp", "list"], env, cwd=project), re.M
    )
