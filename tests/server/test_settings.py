"""Where settings come from, and what is said about wrong ones."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kernelmcp.config.load import load

from ..starting import run_kernelmcp


def kernelmcp(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp(*arguments, env=os.environ | env)


def test_the_server_does_not_start_with_wrong_settings(tmp_path: Path) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text("[sesions]")
    done = kernelmcp("serve", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "CONFIGURATION_ERROR" in done.stderr


@pytest.mark.parametrize(("text", "level"), [("DEBUG", "debug"), ("Info", "info"), ("WARN", "warning")])
def test_the_level_of_the_log_may_be_written_in_any_case(tmp_path: Path, text: str, level: str) -> None:
    environ = {"KERNELMCP_HOME": str(tmp_path), "KERNELMCP_LOGGING__LEVEL": text}
    assert load(environ=environ).config.logging.level == level
    done = kernelmcp("serve", "--log-level", text, "--config", str(tmp_path / "missing.toml"))
    assert "missing.toml: cannot be read" in done.stderr, "the level itself is fine"
    done = kernelmcp("serve", "--log-level", "loud")
    assert (done.returncode, "choose from" in done.stderr) == (2, True)


def test_a_server_does_not_start_without_the_layer_that_a_misspelt_variable_requires() -> None:
    done = kernelmcp(KERNELMCP_POLICY_REQUIRED_LAYERS="landlock")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean KERNELMCP_POLICY__REQUIRED_LAYERS?" in done.stderr


def test_doctor_says_which_files_were_read_and_what_is_wrong(tmp_path: Path, server_env: dict[str, str]) -> None:
    config, policy = tmp_path / "mcp.toml", tmp_path / "policy.toml"
    config.write_text("[sessions]\nwarm_pool_size = 3")
    policy.write_text("memory_mb = 1")
    done = kernelmcp("doctor", "--json", "--config", str(config), "--policy", str(policy), **server_env)
    report = json.loads(done.stdout)
    assert (done.returncode, report["files"]["config_files"]) == (1, [str(config), str(policy)])
    wrong = [problem["what"] for problem in report["problems"] if "settings" in problem["what"]]
    assert wrong == [f"the settings are wrong: {policy}: memory_mb: Input should be greater than or equal to 64"]
