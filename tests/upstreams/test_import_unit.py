"""What `kernelmcp upstreams import` writes of another program's servers: no secret, and everything else as it was."""

import errno
import json
import os
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.commands.upstreams import import_client
from kernelmcp.commands.upstreams.import_client import Wanted, _append, _table
from kernelmcp.config.expansion import expanded
from kernelmcp.config.load import load
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError

ADDRESS = "https://a.example/a-name-of-2-long-words-and-1-more/@b/c?d=/e"
PLAIN = ["-v", "/a:/b", "--root=/data", "KEY_FILE=/k", "host:80", ADDRESS]
SECRET, OTHER, PADDED = "abc123def456", "ghp_0123456789", "dGhpc2lzYXNlY3JldDEyMzQ1Njc4OTA=="
RANDOM, UUID = "NmQ0YjEyMzQtYWJjZC00ZjM0LWE1YjY", "550e8400-e29b-41d4-a716-446655440000"


def imported(wanted: Wanted, name: str, **server: Any) -> dict[str, Any]:
    text = _table(name, UpstreamSettings.model_validate(server), wanted)
    assert SECRET not in text
    assert OTHER not in text
    assert PADDED not in text
    assert RANDOM not in text
    return tomllib.loads(text)["upstreams"]["servers"][name]


@pytest.mark.parametrize(
    ("arguments", "written", "variables"),
    [
        (["@acme/mcp", f"--api-key={SECRET}", "stdio"], ["@acme/mcp", "--api-key=${X_API_KEY}", "stdio"], 1),
        (["--api-key", SECRET, "stdio"], ["--api-key", "${X_API_KEY}", "stdio"], 1),
        (["--api-key", f"name={SECRET}"], ["--api-key", "${X_API_KEY}"], 1),
        (["run", f"--env=GITHUB_TOKEN={OTHER}", "img"], ["run", "--env=GITHUB_TOKEN=${X_GITHUB_TOKEN}", "img"], 1),
        (
            ["-e", f"GITHUB_TOKEN={OTHER}", "-e", f"JIRA_TOKEN={SECRET}", "-e", "MODE=fast"],
            ["-e", "GITHUB_TOKEN=${X_GITHUB_TOKEN}", "-e", "JIRA_TOKEN=${X_JIRA_TOKEN}", "-e", "MODE=fast"],
            2,
        ),
        (
            ["https://a.example/mcp", "--header", f"Authorization: Bearer {SECRET}", "-H", f"X-Api-Key:{OTHER}"],
            ["https://a.example/mcp", "--header", "Authorization: Bearer ${X_TOKEN}", "-H", "X-Api-Key:${X_X_API_KEY}"],
            2,
        ),
        (["--token", SECRET, "--token", OTHER], ["--token", "${X_TOKEN}", "--token", "${X_TOKEN_2}"], 2),
        ([OTHER], ["${X_SECRET}"], 1),
        ([PADDED, f"{OTHER}:x-oauth-basic"], ["${X_SECRET}", "${X_SECRET_2}"], 2),
        (["--foo", PADDED, f"--bar={PADDED}"], ["--foo", "${X_FOO}", "--bar=${X_BAR}"], 2),
        (["--config", json.dumps({"a": [{"apiKey": SECRET}]})], ["--config", "${X_CONFIG}"], 1),
        (
            ["-y", f"https://a.example/s/{RANDOM}/mcp", f"https://{OTHER}0123@a.example/{UUID}"],
            ["-y", "https://a.example/s/${X_KEY}/mcp", "https://${X_KEY_2}@a.example/${X_KEY_3}"],
            3,
        ),
        ([f"mongodb://me:p@{SECRET}@db/x?a=b@c"], ["mongodb://me:${X_PASSWORD}@db/x?a=b@c"], 1),
        (
            ["-c", f"GITHUB_TOKEN={OTHER} B_KEY='b {SECRET}' mcp --key \"$KEY\" -H \"X-Key: {SECRET}\""],
            ["-c", "GITHUB_TOKEN=${X_GITHUB_TOKEN} B_KEY='${X_B_KEY}' mcp --key \"$KEY\" -H \"X-Key: ${X_X_KEY}\""],
            3,
        ),
        (["-lc", f'mcp --config "{{\\"token\\": \\"{SECRET}\\"}}"'], ["-lc", "mcp --config '${X_CONFIG}'"], 1),
        (
            ["-c", f"run --token \\\n {SECRET} --key \\\r\n {OTHER} B_KEY=a\\ {SECRET} C_KEY='{SECRET}\\' mcp"],
            ["-c", "run --token \\\n ${X_TOKEN} --key \\\r\n ${X_KEY} B_KEY='${X_B_KEY}' C_KEY='${X_C_KEY}' mcp"],
            4,
        ),
        ([f"smtp://me@x.example:{SECRET}@h"], ["smtp://me@x.example:${X_PASSWORD}@h"], 1),
        ([f"https://a.example/bot123456:{SECRET}/x"], ["https://a.example/${X_KEY}/x"], 1),
        (PLAIN, PLAIN, 0),
    ],
)  # fmt: skip
def test_of_arguments_only_secrets_are_replaced(arguments: list[str], written: list[str], variables: int) -> None:
    wanted = Wanted()
    assert imported(wanted, "x", command="npx", args=arguments)["args"] == written
    assert len(wanted.variables) == variables


def test_json_with_a_secret_is_replaced_as_a_whole() -> None:
    wanted = Wanted()
    headers, plain = {"Authorization": f"Bearer {SECRET}", "Version": "1"}, json.dumps({"mode": "fast", "keys": []})
    found = imported(wanted, "x", command="npx", env={"HEADERS": json.dumps(headers), "PLAIN": plain})
    assert found["env"] == {"HEADERS": "${HEADERS}", "PLAIN": plain}
    assert list(wanted.variables) == ["HEADERS"]


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ({"tokens": {"github": "hunter2"}}, True),
        ({"password": [123456]}, True),
        ({"pat": {"of": "me"}}, True),
        ({"use_auth": True, "token": None, "port": 80, "path": "x"}, False),
    ],
)
def test_a_name_in_json_tells_of_all_that_it_contains(value: dict[str, Any], secret: bool) -> None:
    text = json.dumps(value)
    assert imported(Wanted(), "x", command="npx", env={"A": text})["env"]["A"] == ("${A}" if secret else text)


@pytest.mark.parametrize(
    "script",
    [
        f"A_KEY=a\\ {SECRET} mcp --key={SECRET}",
        f'A_KEY="{SECRET}\\"b" mcp',
        f'A_KEY="{SECRET}\'s" mcp',
        f"A_KEY=a' '{SECRET} mcp",
        f'mcp {OTHER}"a b"',
        f'mcp "https://a.example/x y"?token="{SECRET} z"',
        f'mcp --config "{{\\"token\\": \\"{SECRET}\\"}}"',
    ],
)
def test_with_the_secrets_put_in_a_script_is_as_it_was(script: str) -> None:
    wanted = Wanted()
    written = imported(wanted, "x", command="sh", args=["-c", script])["args"][1]
    assert shlex.split(expanded(written, wanted._values)) == shlex.split(script)
    assert wanted.kept == []


def test_beside_variables_of_a_shell_secrets_are_replaced() -> None:
    wanted = Wanted()
    script = f'mcp "postgres://me:{SECRET}@db/$DB" https://a.example/?token={OTHER}&x=$X `date`'
    assert imported(wanted, "x", command="sh", args=["-c", script])["args"][1] == (
        'mcp "postgres://me:${X_PASSWORD}@db/$DB" https://a.example/?token=${X_TOKEN}&x=$X `date`'
    )
    assert wanted.kept == []


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("mcp --token ghp_012$X", ["--token of x"]),
        ("TOKEN=ghp_012`date` mcp", ["TOKEN of x"]),
        ("TOKEN=it\\'s mcp", ["TOKEN of x"]),
        ('mcp --config "{\\"token\\": \\"012\\", \\"home\\": \\"$HOME\\"}"', ["--config of x"]),
        ('TOKEN=$(cat a) mcp --key "$KEY" --token-file $HOME/token -H "Authorization: Bearer $TOKEN"', []),
    ],
)
def test_what_may_be_a_secret_and_stays_in_a_script_is_named(script: str, kept: list[str]) -> None:
    wanted = Wanted()
    assert imported(wanted, "x", command="sh", args=["-c", script])["args"] == ["-c", script]
    assert (wanted.kept, wanted.variables) == (kept, {})


def test_a_word_with_many_backslashes_takes_no_more_time_than_others() -> None:
    script = 'run "' + "\\\\" * 1000 + '"mcp'
    assert imported(Wanted(), "x", command="sh", args=["-c", script])["args"] == ["-c", script]


def test_two_secrets_have_two_variables_and_one_has_one() -> None:
    wanted = Wanted()
    for name, value in (("a", SECRET), ("b", OTHER), ("c", SECRET)):
        imported(wanted, name, command="npx", env={"API_KEY": value})
    assert set(wanted.variables) == {"API_KEY", "API_KEY_2"}
    found = imported(wanted, "d", url=f"https://me:{SECRET}@b.example/mcp?token={OTHER}", headers={"X-Mode": "1"})
    assert found["url"] == "https://me:${D_PASSWORD}@b.example/mcp?token=${D_TOKEN}"


def test_a_link_to_the_settings_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    kept, link = tmp_path / "dotfiles/mcp.toml", tmp_path / "mcp.toml"
    kept.write_text("# mine\n")
    link.symlink_to(kept)
    _append(link, "[upstreams.servers.x]\ncommand = 'npx'\n")
    assert link.is_symlink()
    assert kept.read_text() == "# mine\n[upstreams.servers.x]\ncommand = 'npx'\n"


def test_settings_with_a_byte_order_mark_are_read_and_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "mcp.toml"
    file.write_text("[sessions]\nmax_sessions = 3\n", "utf-8-sig")
    _append(file, "[upstreams.servers.x]\ncommand = 'npx'\n")
    assert list(load(file, environ={}).config.upstreams.servers) == ["x"]
    file.write_text(file.read_text("utf-8-sig"), "utf-8-sig")
    assert load(file, environ={}).config.sessions.max_sessions == 3


def test_a_client_is_a_name_as_install_writes_it_or_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/.config"))
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    (here / "mcp.toml").touch()
    settings = load(here / "mcp.toml", environ={})
    for folder in (here, tmp_path / "home/.cursor"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {folder.name.strip("."): {"command": "npx"}}}))
    for client, name in (("mcp.json", "here"), ("./mcp.json", "here"), ("~/.cursor/mcp.json", "cursor")):
        assert import_client.main(settings, client, dry_run=True) == 0
        assert f"[upstreams.servers.{name}]" in capsys.readouterr().out
    missing = str(import_client.path_of("claude_desktop"))
    for client in ("claude-desktop", "claude_desktop"):
        assert import_client.main(settings, client, dry_run=True) == 1
        assert capsys.readouterr().err == f"kernelmcp: {missing} is not there\n"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free disk space."),
        (errno.EROFS, "Name another file: --config FILE."),
        (errno.EACCES, "Check its permissions."),
    ],
)
def test_who_cannot_write_the_settings_is_told_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(import_client, "replace_text", fails)
    with pytest.raises(ConfigurationError) as refused:
        _append(tmp_path / "mcp.toml", "[upstreams.servers.x]\ncommand = 'npx'\n")
    assert refused.value.message.endswith(f"cannot be written: {os.strerror(number)}")
    assert refused.value.suggestions == [advice]
