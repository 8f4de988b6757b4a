"""`kernelmcp install`: what it writes into a client's configuration, what it keeps, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelmcp import atomic
from kernelmcp.cli import _parser
from kernelmcp.commands.install import configure
from kernelmcp.commands.install.clients import CLIENTS
from kernelmcp.commands.install.configure import merged
from kernelmcp.commands.install.entry import _FIRST, launcher, updated
from kernelmcp.errors import ConfigurationError

# -- entries of other launchers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "arguments", "kept"),
    [
        ("uvx", ["--from", "kernelmcp[otel]", "--with", "foo", "kernelmcp"], []),
        ("uvx", ["--from", "git+https://h/kernelmcp", "--python", "3.13", "kernelmcp", "serve"], ["serve"]),
        ("uv", ["run", "--project", "/home/u/kernelmcp", "--frozen", "kernelmcp", "serve"], ["serve"]),
        ("docker", ["run", "-w", "/home/kernelmcp", "-i", "kernelmcp", "--config=/c"], ["--config=/c"]),
        ("uvx", ["kernelmcp@latest", "--log", "info"], ["--log", "info"]),
        ("uvx", ["kernelmcp", "--fold=/f"], ["--fold=/f"]),
        ("/opt/kernelmcp", ["--folder=/f"], ["--folder=/f"]),
    ],
)
def test_of_the_arguments_the_servers_stay_and_not_its_launchers(
    command: str, arguments: list[str], kept: list[str]
) -> None:
    old = {"command": command, "args": arguments}
    assert updated(old, CLIENTS["gemini-cli"], ["k"], None, {}) == {"command": "k", "args": kept}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"command": "npx", "args": ["--yes", "some-server"]}, "starts another program, npx"),
        ({"command": "npx", "args": []}, "starts another program, npx"),
        ({"command": "/opt/wrap.sh", "args": ["--foo"]}, "starts another program, /opt/wrap.sh"),
        ({"command": "/opt/wrap.sh", "args": ["--folder=/f"]}, "starts another program, /opt/wrap.sh"),
        ({"command": "/opt/other", "args": ["--config", "a"]}, "starts another program, /opt/other"),
        ({"command": "uvx", "args": ["kernelmcp", "--p", "a"]}, "starts another program, uvx"),
        ({"command": 5}, "starts another program, 5"),
        ({"command": None}, "starts another program, None"),
        ({"command": {"path": "kernelmcp", "args": ["serve"], "env": {"A": "1"}}}, "has an object as its command"),
    ],
)
def test_an_entry_that_would_lose_something_is_left_alone(entry: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        updated(entry, CLIENTS["zed"], ["k"], None, {})


def test_the_servers_arguments_are_told_by_its_own_options() -> None:
    told = next(action for action in _parser()._actions if action.choices is not None)
    options = told.choices["serve"]._option_string_actions
    assert {"serve", *(name for name in options if name not in ("-h", "--help"))} == _FIRST


def test_a_table_within_a_text_is_a_form_that_cannot_be_changed_safely() -> None:
    text = "x = '''\n[mcp_servers.kernelmcp.env]\n'''\n[mcp_servers.kernelmcp]\ncommand = 'kernelmcp'\n"
    with pytest.raises(ValueError, match="cannot be changed safely"):
        merged(CLIENTS["codex"], text, environ={"KERNELMCP_HOME": "/h", "PATH": ""})


@pytest.mark.parametrize("times", [1, 3])
def test_what_the_client_writes_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], times: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    (file := tmp_path / ".claude.json").write_text('{"n": 0}')
    written = [0]

    def replace_text(target: Path, text: str, **options: int) -> None:
        if target != file and written[0] < times:
            written[0] += 1
            file.write_text(f'{{"n": {written[0]}}}')
        atomic.replace_text(target, text, **options)

    monkeypatch.setattr(configure, "replace_text", replace_text)
    assert configure.main("claude-code", dry_run=False) == (times == 3)
    found = json.loads(file.read_text())
    assert found.pop("n") == times
    assert bool(found) == (times == 1)
    assert ("another program is writing it" in capsys.readouterr().err) == (times == 3)


def test_a_file_that_cannot_be_written_is_named_and_not_its_draft(tmp_path: Path) -> None:
    for file in (tmp_path / "folder", tmp_path / "missing" / "file"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(OSError) as refused:  # noqa: PT011  # its fields are compared
            atomic.replace_text(file, "")
        assert (refused.value.filename, refused.value.filename2) == (str(file), None)


# -- uvx, WSL and Windows -------------------------------------------------------------------------------------------


def test_a_path_in_uvs_cache_is_not_written(tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.with_name("uvx").write_text("")
    for folder in ("archive-v0/Xy12", "environments-v2/kernelmcp-0a"):
        command = launcher({"UV": str(uv)}, f"/home/a/.cache/uv/{folder}")
        assert (command[0], command[-1]) == (str(tmp_path / "bin" / "uvx"), "kernelmcp")
    assert launcher({"PATH": ""}, "/c/uv/archive-v0/x")[0] == "uvx"
    assert "uvx" not in launcher({"UV": str(uv)}, "/home/a/tools/kernelmcp")[0]


@pytest.mark.parametrize("folder", [".cache/pipx", "Library/Caches/pipx", ".local/pipx/.cache"])
def test_a_path_that_pipx_run_deletes_later_is_refused(folder: str) -> None:
    with pytest.raises(ConfigurationError, match="deleted after two weeks"):
        launcher({}, f"/home/a/{folder}/3f0c9d1b2a4e5f6")
    assert launcher({}, "/home/a/.local/pipx/venvs/kernelmcp")


def test_on_windows_itself_one_sentence_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernelmcp import cli

    monkeypatch.setattr(sys, "platform", "win32")
    for arguments in (["install", "claude-desktop"], ["demo"], []):
        assert cli.main(arguments) != 0
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines()), "WSL" in said.err) == ("", 1, True)
