"""The command line, the settings and the client's configuration."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

from kernelmcp import __version__, install
from kernelmcp.config import Config, Policy, load
from kernelmcp.errors import ConfigurationError

CONFIG = Path(__file__).parents[2] / "config"


def kernelmcp(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernelmcp", *arguments],
        env=os.environ | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_version_is_printed() -> None:
    assert kernelmcp("--version").stdout == f"kernelmcp {__version__}\n"


def test_help_names_every_command() -> None:
    text = kernelmcp("--help").stdout
    assert all(command in text for command in ("serve", "demo", "doctor", "install"))


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_transport_of_a_later_version_is_refused_clearly(transport: str) -> None:
    done = kernelmcp("serve", "--transport", transport)
    assert done.returncode == 2
    assert "later version" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sessions]\nwarm_pol_size = 1", "there is no such setting (did you mean warm_pool_size"),
        ("[sesions]", "sesions: there is no such setting (did you mean sessions"),
        ("[sessions]\nmax_sessions = 0", "sessions.max_sessions: Input should be greater than or equal to 1"),
        ("[sessions", "is not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_file_key_and_what_would_do(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert str(file) in caught.value.message
    assert words in caught.value.message
    done = kernelmcp("serve", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "CONFIGURATION_ERROR" in done.stderr


def test_a_file_that_changes_one_flavor_leaves_the_others() -> None:
    policy = Policy.model_validate({"flavors": {"small": {"memory_mb": 300}}})
    assert {name: limits.memory_mb for name, limits in policy.flavors.items()} == {
        "small": 300,
        "medium": 1024,
        "large": 4096,
    }


def test_the_environment_goes_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text("[sessions]\nwarm_pool_size = 3\nmax_sessions = 9\n[logging]\nlevel = 'error'")
    environ = {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "2", "KERNELMCP_POLICY__MAX_OUTPUTS": "7", "KERNELMCP_HOME": "/x"}
    settings = load(file, environ=environ, overrides={"logging": {"level": "debug"}})
    assert (settings.config.sessions.warm_pool_size, settings.config.sessions.max_sessions) == (2, 9)
    assert (settings.config.logging.level, settings.policy.max_outputs) == ("debug", 7)


def test_the_files_in_config_are_the_defaults_and_name_every_setting() -> None:
    settings = load(CONFIG / "mcp.toml", CONFIG / "policy.toml", environ={})
    assert settings.config == Config()
    assert settings.policy == Policy()
    text = (CONFIG / "mcp.toml").read_text("utf-8")
    sections = tomllib.loads(text)
    assert set(sections) == set(Config.model_fields)
    for section in sections:
        model = type(getattr(settings.config, section))
        assert [key for key in model.model_fields if f"{key} =" not in text] == []
    policy = (CONFIG / "policy.toml").read_text("utf-8")
    assert [key for key in Policy.model_fields if key != "flavors" and f"{key} =" not in policy] == []


def test_install_keeps_what_is_there_and_is_idempotent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir()
    old = {
        "theme": "dark",
        "mcpServers": {"other": {"command": "x"}, "kernelmcp": {"command": "old", "env": {"A": "1"}}},
    }
    file.write_text(json.dumps(old))
    assert install.main("claude-desktop", dry_run=True, file=file) == 0
    assert json.loads(file.read_text()) == old
    assert "kernelmcp" in capsys.readouterr().out
    assert install.main("claude-desktop", dry_run=False, file=file) == 0
    new = json.loads(file.read_text())
    assert (new["theme"], new["mcpServers"]["other"]) == ("dark", {"command": "x"})
    assert new["mcpServers"]["kernelmcp"] == {"env": {"A": "1"}, **install.entry()}
    assert json.loads(file.with_name(file.name + ".bak").read_text()) == old
    assert install.main("claude-desktop", dry_run=False, file=file) == 0
    assert json.loads(file.read_text()) == new


@pytest.mark.parametrize("text", ["{not json", "[]", '{"mcpServers": []}'])
def test_install_leaves_a_malformed_configuration_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "claude_desktop_config.json"
    file.write_text(text)
    assert install.main("claude-desktop", dry_run=False, file=file) == 1
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("platform", "environ", "path"),
    [
        ("darwin", {"HOME": "/Users/a"}, "/Users/a/Library/Application Support/Claude/claude_desktop_config.json"),
        ("linux", {"HOME": "/home/a"}, "/home/a/.config/Claude/claude_desktop_config.json"),
        ("linux", {"HOME": "/home/a", "XDG_CONFIG_HOME": "/c"}, "/c/Claude/claude_desktop_config.json"),
        ("win32", {"APPDATA": "/r"}, "/r/Claude/claude_desktop_config.json"),
    ],
)
def test_each_platform_has_its_place(platform: str, environ: dict[str, str], path: str) -> None:
    assert install.config_file(platform, environ) == Path(path)


def test_the_demo_runs_and_writes_a_valid_notebook(server_env: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "demo.ipynb"
    done = subprocess.run(
        [sys.executable, "-m", "kernelmcp", "demo", "--output", str(output)],
        env=server_env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 steps" in done.stdout
    notebook = nbformat.read(output, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) == 7
    assert "image/png" in json.dumps(notebook.cells[3].outputs)
