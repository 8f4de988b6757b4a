"""`[upstreams]`, the files of other programs, and `${NAME}`: what is refused, left out, and never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from kernelmcp.commands.install.clients import CLIENTS, Places
from kernelmcp.config.client_files import (
    _STRING_OR_COMMENT,
    configured,
    loads_with_comments,
    path_of,
    read_file,
    withheld_variables,
)
from kernelmcp.config.expansion import variables
from kernelmcp.config.load import load
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError
from kernelmcp.upstreams.catalogue import ToolCallResult
from kernelmcp.upstreams.target import error_without_secrets, identity_of, remover, target_of

SECRET = "correct-horse-battery-staple"


def settings(tmp_path: Path, text: str, **environ: str) -> Settings:
    (tmp_path / "mcp.toml").write_text(text)
    return load(tmp_path / "mcp.toml", environ=environ)


A, REMOTE = "[upstreams.servers.a]\n", "[upstreams.servers.a]\nurl = 'https://x'\n"
LOCAL = "[upstreams.servers.a]\ncommand = 'x'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[upstreams]\ndefalt = 'ask'", "upstreams.defalt: there is no such setting (did you mean default?)"),
        ("[upstreams]\ndefault = 'perhaps'", "upstreams.default: Input should be 'allow', 'ask' or 'deny'"),
        ("[upstreams]\nfiles = ['zed']", "neither one of claude_desktop, claude_code, cursor, vscode nor a path"),
        (A, "upstreams.servers.a: give it either a command or a url"),
        (f"{LOCAL}url = 'https://x'", "give it either a command or a url"),
        (f"{A}comand = 'x'", "comand: there is no such setting (did you mean command?)"),
        (f"{A}url = 'ftp://x'", "upstreams.servers.a.url: it must begin with http:// or https://"),
        (f"{REMOTE}type = 'stdio'", "type stdio is for a command"),
        (f"{LOCAL}type = 'sse'", "type stdio is for a command"),
        (f"{REMOTE}args = ['y']", "args is for a command"),
        (f"{LOCAL}headers = {{ a = 'b' }}", "headers is for a url"),
        (f"{REMOTE}headers = {{ 'a b' = 'c' }}", "'a b' is not the name of a header"),
        (f"{LOCAL}tools = {{ 'a*' = 'maybe' }}", "Input should be 'allow', 'ask' or 'deny'"),
        (f"{LOCAL}timeout_seconds = 0", "timeout_seconds: Input should be greater than 0"),
        (f"{LOCAL}tokenize = ['name']", "Input should be 'email', 'phone' or 'card'"),
        *(
            (f"[upstreams.servers.'{name}']\ncommand = 'x'", "is not a valid server name")
            for name in ("a.b", "", "../x", "é", "x" * 65)
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'mcp.toml'}: upstreams")
    assert words in caught.value.message


def test_no_error_and_no_dump_has_a_value(tmp_path: Path) -> None:
    for line in (
        f"url = '{SECRET}'",
        f"headers = {{ 'a b' = '{SECRET}' }}",
        f"env = '{SECRET}'",
        f"default = '{SECRET}'",
    ):
        with pytest.raises(ConfigurationError) as caught:
            settings(tmp_path, f"[upstreams.servers.a]\n{line}")
        assert SECRET not in caught.value.to_text()
    other = LOCAL.replace(".a]", ".b]")
    text = f"{REMOTE}headers = {{ A = '{SECRET}' }}\n{other}env = {{ A = '{SECRET}' }}"
    found = settings(tmp_path, text).config.upstreams
    assert SECRET not in repr(found)
    assert SECRET not in str(found.model_dump_json())


def test_variables_are_expanded_for_a_connection_only() -> None:
    server = UpstreamSettings.model_validate(
        {"command": "${HOME}/bin/x", "args": ["--key=${KEY}", "${NONE:-8}"], "env": {"A": "${KEY}", "B": "${EMPTY:-b}"}}
    )
    target = target_of(server, {"HOME": "/h", "KEY": SECRET, "EMPTY": ""})
    assert (target.command, target.args) == ("/h/bin/x", [f"--key={SECRET}", "8"])
    assert target.env == {"A": SECRET, "B": "b"}
    assert SECRET not in repr(target)
    assert variables([server]) == {"KEY", "NONE", "EMPTY"}
    for environ, words in (({}, "the environment variable HOME is not set"), ({"HOME": "/h"}, "KEY is not set")):
        with pytest.raises(ValueError, match=words):
            target_of(server, environ)
    header = UpstreamSettings.model_validate({"url": "https://x", "headers": {"Authorization": "Bearer ${KEY}"}})
    assert target_of(header, {"KEY": f"{SECRET}\n"}).headers == {"Authorization": f"Bearer {SECRET}"}
    with pytest.raises(ValueError, match="Authorization has characters") as caught:
        target_of(header, {"KEY": f"{SECRET}\r\nX: y"})
    assert SECRET not in str(caught.value)
    with pytest.raises(ValueError, match="which only an editor can resolve"):
        target_of(UpstreamSettings(command="x", args=["${input:token}"]), {})


@pytest.mark.parametrize("large", [False, True])
def test_a_value_is_not_in_an_error_result_however_its_json_is_written(large: bool) -> None:
    secret = 'pass/"wörd"'
    server = UpstreamSettings(command="x", env={"KEY": SecretStr("${CRM_KEY}")})
    written = [json.dumps(secret), json.dumps(secret, ensure_ascii=False), json.dumps(secret).replace("/", "\\/")]
    raw = f'{{"a": [{", ".join(written)}], "b": ["{"a" * 8}\\n", 123456], "isError": true}}'.encode()
    value = None if large else json.loads(raw)
    result = ToolCallResult(value, raw if large else None, is_error=True, size=len(raw))
    found = error_without_secrets(result, remover(server, {"CRM_KEY": secret}, ["123456", "a" * 8]))
    said = json.loads(found.raw) if found.raw is not None else found.value
    assert said == {"a": 3 * ["(CRM_KEY)"], "b": ["(login)\n", 123456], "isError": True}
    assert found.raw is None or len(found.raw) == found.size


def test_another_address_is_another_server_and_a_rule_is_not() -> None:
    one = UpstreamSettings(command="x", args=["a"])
    assert identity_of(one) == identity_of(one.model_copy(update={"pin": True, "timeout_seconds": 3.0}))
    assert identity_of(one) != identity_of(one.model_copy(update={"args": ["b"]}))


@pytest.mark.parametrize(
    ("file", "place", "content"),
    [
        ("claude_desktop", ".config/Claude/claude_desktop_config.json", {"mcpServers": {"one": {"command": "x"}}}),
        ("claude_code", ".claude.json", {"mcpServers": {"one": {"command": "x", "type": "stdio"}}, "numStartups": 3}),
        ("cursor", ".cursor/mcp.json", {"mcpServers": {"one": {"url": "https://x/sse"}}}),
        ("vscode", ".config/Code/User/mcp.json", {"servers": {"one": {"type": "http", "url": "https://x"}}}),
        (
            "~/some/file.json",
            "some/file.json",
            {"mcpServers": {"one": {"url": "https://x", "type": "streamable-http"}}},
        ),
    ],
)
def test_the_files_of_other_programs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, place: str, content: object
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(f"// mine\n{json.dumps(content)}")
    section = settings(tmp_path, f"[upstreams]\nfiles = ['{file}']\ndefault = 'deny'").config.upstreams
    found = configured(section, {"HOME": str(tmp_path)})
    assert (list(found.servers), found.origins, found.problems) == (["one"], {"one": file}, [])
    assert (found.servers["one"].default, found.servers["one"].trust_annotations) == ("deny", True)


def test_claude_code_has_its_file_in_the_folder_that_its_variable_names(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "other")}
    assert path_of("claude_code", environ) == CLIENTS["claude-code"].file("user", Places(environ))


@pytest.mark.parametrize("file", ["claude_desktop", "claude_code", "cursor", "vscode"])
def test_inside_wsl_a_desktop_clients_file_is_to_be_named(tmp_path: Path, file: str) -> None:
    problems: list[str] = []
    assert list(read_file(file, problems, {"HOME": str(tmp_path), "WSL_DISTRO_NAME": "U"})) == []
    assert ("inside WSL, name the path" in problems[0]) == (file != "claude_code")


def test_what_cannot_be_used_is_left_out_with_a_sentence_and_the_rest_is_used(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {
        "good": {"command": "x", "args": [], "headers": {}, "alwaysAllow": ["*"], "env": {"PORT": 8}},
        "my server": {"command": "y"},
        "my.server": {"command": "another"},
        "": {"command": "z"},
        "neither": {"args": [SECRET]},
        "pigeon": {"command": "x", "type": "pigeon"},
        "list": {"command": "x", "args": SECRET},
        "no": SECRET,
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    problems: list[str] = []
    found = dict(read_file(str(file), problems))
    assert list(found) == ["good", "my-server"]
    assert found["good"].env["PORT"].get_secret_value() == "8"
    assert found["good"].tools == {}  # what another program allows is not allowed here
    assert found["my-server"].command == "y"
    assert f"{file}: 'my.server' is left out: its name would be my-server, the same as that of 'my server'" in problems
    assert f"{file}: 'no' is left out: it is not a table of settings" in problems
    assert len(problems) == 6
    assert SECRET not in str(problems)
    for text in ("{", "[" * 100_000, "3", '{"mcpServers": 3}'):
        file.write_text(text)
        assert list(read_file(str(file), problems)) == []
    assert list(read_file(str(tmp_path / "none.json"), problems)) == []
    assert problems[-1] == f"{tmp_path / 'none.json'} is not there"


@pytest.mark.parametrize("text", ['"' + '\\"' * 100, "/* " * 100, "/* \n" * 100])
def test_a_text_that_does_not_end_is_read_once(text: str) -> None:
    """And not once from each of its quotation marks, which would take hours for a large file."""
    assert [found[0] for found in _STRING_OR_COMMENT.finditer(text)] == [text]
    with pytest.raises(ValueError, match=r"char"):
        loads_with_comments("{} " + text)


def test_comments_and_last_commas_are_left_out_and_texts_stay() -> None:
    text = '{"a": "x,} // \\"", /* , */ "b": [1, /* 2 */ ], // }\n "c": "/* " , }'
    assert loads_with_comments(text) == {"a": 'x,} // "', "b": [1], "c": "/* "}


OURS = [
    {"command": "kernelmcp"},
    {"command": "/home/me/.venv/bin/kernelmcp", "args": ["--folder", "/x"]},
    {"command": "C:\\venv\\Scripts\\kernelmcp.exe"},
    {"command": "uvx", "args": ["kernelmcp"]},
    {"command": "uvx", "args": ["--from", "git+https://example.org/kernelmcp@v1", "kernelmcp"]},
    {"command": "uvx", "args": ["kernelmcp[otel]==0.1"]},
    {"command": "uv", "args": ["tool", "run", "kernelmcp@latest"]},
    {"command": "python3", "args": ["-P", "-m", "kernelmcp", "serve"]},
    {"command": "wsl.exe", "args": ["--exec", "/home/me/bin/kernelmcp"]},
    {"command": "docker", "args": ["run", "-i", "ghcr.io/someone/kernelmcp:1"]},
    {"command": "sh", "args": ["-c", "cd /x && kernelmcp serve"]},
]
NOT_OURS = [
    {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/kernelmcp"]},
    {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "~/kernelmcp"]},
    {"command": "python", "args": ["/home/me/kernelmcp/server.py"]},
    {"command": "my-kernelmcp-helper"},
]


@pytest.mark.parametrize(("entry", "ours"), [*((one, True) for one in OURS), *((one, False) for one in NOT_OURS)])
def test_it_leaves_itself_out_however_it_is_started(tmp_path: Path, entry: dict[str, object], ours: bool) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"some": entry, "kernelmcp": {"command": "anything"}}}))
    problems: list[str] = []
    assert [name for name, _ in read_file(str(file), problems)] == ([] if ours else ["some"])
    assert problems == []


def test_the_settings_go_before_files_and_a_nested_server_has_none(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "theirs"}, "b": {"command": "b"}}}))
    text = f"[upstreams]\nfiles = ['{file}']\n[upstreams.servers.a]\ncommand = 'ours'"
    section = settings(tmp_path, text).config.upstreams
    found = configured(section, {})
    assert [(name, one.command) for name, one in found.servers.items()] == [("a", "ours"), ("b", "b")]
    assert found.origins == {"a": "mcp.toml", "b": str(file)}
    assert configured(section, {"KERNELMCP_NESTED": "1"}).servers == {}


def test_what_upstreams_use_is_withheld_unless_the_network_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"mcpServers": {"b": {"command": "${BIN}", "env": {"T": "${env:THEIRS}"}}}}))
    text = f"""
        [network]
        headers = {{ "example.org" = {{ Authorization = "Bearer ${{BOTH}}" }} }}
        [upstreams]
        files = ['{file}']
        [upstreams.servers.a]
        url = "https://${{HOST}}/mcp"
        headers = {{ Authorization = "Bearer ${{TOKEN}}", Other = "${{BOTH}}" }}
    """
    monkeypatch.setenv("BOTH", "x")  # [network] wants it to be there
    assert withheld_variables(settings(tmp_path, text).config) == {"BIN", "THEIRS", "HOST", "TOKEN"}
    assert withheld_variables(settings(tmp_path, "").config) == frozenset()
