"""The command line and the client's configuration."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmcp import __version__

from ..starting import run_kernelmcp, start_server
from .support import DEADLINE

pytestmark = pytest.mark.cold


def kernelmcp(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp(*arguments, env=os.environ | env)


def test_version_is_printed() -> None:
    assert kernelmcp("--version").stdout == f"kernelmcp {__version__}\n"


def test_help_names_every_command() -> None:
    text = kernelmcp("--help").stdout
    assert all(command in text for command in ("serve", "demo", "doctor", "install"))


def at_a_terminal(env: dict[str, str], *arguments: str) -> tuple[int, subprocess.Popen[str]]:
    """The command with a terminal as its stdin; the terminal's other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelmcp", *arguments],
        env=env, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(theirs)
    return ours, process


def test_at_a_terminal_it_says_what_it_waits_for_and_one_control_d_ends_it(server_env: dict[str, str]) -> None:
    terminal, process = at_a_terminal(server_env)
    try:
        assert process.stderr
        assert process.stdout
        assert "waiting for an MCP client" in process.stderr.readline()
        assert "Ctrl-D ends it" in process.stderr.readline()
        os.write(terminal, b"\x04")
        assert process.wait(DEADLINE) == 0
        assert process.stdout.read() == "", "stdout is MCP's"
    finally:
        process.kill()
        os.close(terminal)


def test_a_client_is_told_nothing_of_terminals(server_env: dict[str, str]) -> None:
    assert "waiting for" not in kernelmcp(**server_env).stderr


def test_a_port_means_http(server_env: dict[str, str]) -> None:
    process = start_server(
        *("serve", "--port", "0"),
        env=server_env | {"KERNELMCP_LOGGING__FORMAT": "json"},
        stdin=subprocess.DEVNULL, stdout=None, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr
        assert any(json.loads(line).get("event") == "listening" for line in process.stderr if line.startswith("{"))
    finally:
        process.terminate()
        process.wait(DEADLINE)
    done = kernelmcp("serve", "--transport", "stdio", "--port", "0", **server_env)
    assert (done.returncode, "--port is for HTTP" in done.stderr) == (2, True)


def test_serve_takes_a_folder(server_env: dict[str, str], tmp_path: Path) -> None:
    done = kernelmcp("serve", "--folder", str(tmp_path), **server_env)
    assert (done.returncode, "volumes.default_volume: " in done.stderr) == (2, True), "it holds the server's home"
    (tmp_path / "mine").mkdir()
    assert kernelmcp("serve", "--folder", str(tmp_path / "mine"), **server_env).returncode == 0
