"""`kernelmcp upstreams`: what it prints, what it writes, and its status."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from kernelmcp.config.load import load

from ..starting import run_kernelmcp
from .conftest import on_stdio

TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.fixture
def run(tmp_path: Path) -> object:
    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "KERNELMCP_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), **environ}
        return run_kernelmcp("upstreams", *arguments, env=env)

    (tmp_path / "home").mkdir()
    return run


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "home" / "mcp.toml"
    file.write_text(text)
    return file


def test_list_says_what_there_is_and_what_is_wrong(run, tmp_path: Path) -> None:
    assert run("list").stdout.startswith("No MCP servers are configured. `kernelmcp upstreams import")
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"mcpServers": {"theirs": {"url": "https://x/sse"}, "bad": {}}}))
    text = f"[upstreams]\nfiles = ['{other}']\n" + on_stdio("crm", "crm_server.py", more="default = 'allow'")
    write(tmp_path, text + "[upstreams.servers.off]\ncommand = 'x'\nenv = { A = '${NOT_SET}' }\n")
    done = run("list")
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["NAME", "TRANSPORT", "DEFAULT", "TOOLS", "FROM"]
    assert rows[1] == ["crm", "stdio", "allow", "-", "mcp.toml"]
    assert " ".join(rows[2]) == "off stdio ask - mcp.toml the environment variable NOT_SET is not set"
    assert rows[3] == ["theirs", "sse", "ask", "-", str(other)]
    assert done.stdout.splitlines()[4] == f"! {other}: 'bad' is left out: give it either a command or a url"


def test_try_shows_what_becomes_of_calls(run, tmp_path: Path) -> None:
    write(tmp_path, on_stdio("crm", "crm_server.py", more="tools = { 'delete_*' = 'deny' }"))
    done = run("try", "crm")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert rows["crm"].startswith("1.0: 60 tools, connected in ")
    assert rows["get_deal"] == "allowed readOnlyHint reads"
    assert rows["delete_deal"] == "denied tools.delete_* destroys"
    assert rows["create_deal"] == "asked about default -"


def test_try_says_what_is_not_as_it_was_accepted_and_accepts_it(run, tmp_path: Path) -> None:
    write(tmp_path, on_stdio("crm", "crm_server.py", more="pin = true"))
    assert "accept" not in run("try", "crm").stdout, "nothing was accepted yet: the first contact does"
    assert run("try", "crm", "--accept").stdout.endswith("Accepted the present form of 60 tools.\n")
    pins = tmp_path / "home" / "upstreams" / "pins" / "crm.json"
    accepted = json.loads(pins.read_text())
    pins.write_text(json.dumps({**accepted, "get_deal": "other"}))
    said = "get_deal has changed since the tools were accepted\n"
    assert run("try", "crm").stdout.endswith(said + "`kernelmcp upstreams try crm --accept` accepts them.\n")
    assert said in run("try", "crm", "--accept").stdout
    assert json.loads(pins.read_text()) == accepted
    pins.unlink()
    pins.parent.rmdir()
    pins.parent.touch()
    done = run("try", "crm", "--accept")
    assert (done.returncode, "Accepted" in done.stdout) == (1, False)
    assert done.stderr.endswith(f"kernelmcp: nothing was accepted: {pins.parents[1]} cannot be written\n")


def test_try_says_why_not_with_the_end_of_stderr(run, tmp_path: Path) -> None:
    write(
        tmp_path,
        on_stdio("bad", "hostile_server.py", "exit-at-once") + "[upstreams.servers.gone]\ncommand = '/no/such'\n",
    )
    done = run("try", "bad")
    assert (done.returncode, done.stdout) == (1, "")
    assert "bad is not available: it ended with status 1: there is no database\n  stderr: there is" in done.stderr
    done = run("try", "gone")
    assert (done.returncode, done.stderr) == (
        1,
        "kernelmcp: gone is not available: /no/such cannot be started: No such file or directory\n",
    )
    done = run("try", "nobody")
    assert (done.returncode, done.stderr) == (
        2,
        "kernelmcp: CONFIGURATION_ERROR: there is no MCP server 'nobody'\n- There are bad, gone.\n",
    )


def test_login_is_for_servers_that_have_one(run, tmp_path: Path) -> None:
    text = "[upstreams.servers.a]\nurl = 'https://x'\nheaders = { Authorization = 'x' }\n"
    write(tmp_path, on_stdio("crm", "crm_server.py") + text)
    for name, words in (("crm", "is started by a command"), ("a", "has an Authorization header")):
        done = run("login", name)
        assert (done.returncode, words in done.stderr) == (2, True)


def test_import_copies_servers_and_no_secrets(run, tmp_path: Path) -> None:
    servers = {
        "kernelmcp": {"command": "kernelmcp"},
        "files": {"command": "npx", "args": ["-y", "server-filesystem", "/home/me/a file", 'quote " \\ \u00e9']},
        "git hub": {
            "command": "docker",
            "args": ["run", "-e", "GITHUB_TOKEN", "--api-key", "abc", f"--token={TOKEN}", "--name=${ALREADY}"],
            "env": {"GITHUB_TOKEN": TOKEN, "LOG_LEVEL": "info", "GITHUB_API_KEY_FILE": "/home/me/key"},
        },
        "remote": {
            "url": "https://me:hunter2@example.org/mcp?key=hunter2&page=1",
            "headers": {"Authorization": "Bearer hunter2", "X-Team": "blue"},
        },
        "shell": {"command": "sh", "args": ["-c", "mcp --token 012$X"]},
        "there": {"command": "other"},
    }
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    old = "# mine\n[sessions]\nmax_sessions = 3\n\n[upstreams.servers.there]\ncommand = 'mine'"
    file = write(tmp_path, old)

    dry = run("import", "cursor", "--dry-run")
    assert (dry.returncode, file.read_text()) == (0, old)
    done = run("import", "cursor")
    assert done.returncode == 0
    assert f"there is in {file} already and stays unchanged." in done.stdout
    text = file.read_text()
    assert text.startswith(old)
    assert "hunter2" not in text + done.stdout + dry.stdout
    assert TOKEN not in text + done.stdout + dry.stdout

    found = tomllib.loads(text)["upstreams"]["servers"]
    assert list(found) == ["there", "files", "git-hub", "remote", "shell"]
    assert found["there"] == {"command": "mine"}
    assert found["files"] == servers["files"]
    assert found["git-hub"]["args"] == [
        *("run", "-e", "GITHUB_TOKEN", "--api-key", "${GIT_HUB_API_KEY}", "--token=${GIT_HUB_TOKEN}"),
        "--name=${ALREADY}",
    ]
    assert found["git-hub"]["env"] == {**servers["git hub"]["env"], "GITHUB_TOKEN": "${GITHUB_TOKEN}"}
    assert found["remote"]["url"] == "https://me:${REMOTE_PASSWORD}@example.org/mcp?key=${REMOTE_KEY}&page=1"
    assert found["remote"]["headers"] == {"Authorization": "Bearer ${REMOTE_TOKEN}", "X-Team": "blue"}
    assert load(file, environ={}).config.sessions.max_sessions == 3
    named = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert named == {
        "GIT_HUB_API_KEY",
        "GIT_HUB_TOKEN",
        "GITHUB_TOKEN",
        "REMOTE_PASSWORD",
        "REMOTE_KEY",
        "REMOTE_TOKEN",
        "--token",
    }
    assert done.stdout.endswith("because of how their scripts write them:\n  --token of shell\n")

    again = run("import", "cursor")
    assert (again.returncode, file.read_text()) == (0, text)


def test_import_leaves_what_it_cannot_add_to(run, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"mcpServers": {"a": {"command": "x"}}}))
    text = "upstreams = { servers = { b = { command = 'y' } } }\n"
    file = write(tmp_path, text)
    done = run("import", str(tmp_path / "other.json"))
    assert (done.returncode, file.read_text()) == (2, text)
    assert "the servers cannot be appended" in done.stderr
    done = run("import", str(tmp_path / "none.json"))
    assert (done.returncode, "is not there" in done.stderr) == (1, True)
