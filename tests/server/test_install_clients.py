"""`kernelmcp install` for each client: the entry that the client reads, and every other byte as it was."""

import json
import os
import subprocess
import sys
import tomllib
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from kernelmcp.commands.install import check, configure
from kernelmcp.commands.install.check import states
from kernelmcp.commands.install.clients import CLIENTS, Places
from kernelmcp.commands.install.entry import launcher
from kernelmcp.config.client_files import loads_with_comments

from ..starting import run_kernelmcp
from .support import DEADLINE

APPLICATIONS = "Library/Application Support" if sys.platform == "darwin" else ".config"
# Where each has its servers, below the user's home and below a project.
FILES = {
    "claude-desktop": (f"{APPLICATIONS}/Claude/claude_desktop_config.json", None),
    "claude-code": (".claude.json", ".mcp.json"),
    "cursor": (".cursor/mcp.json", ".cursor/mcp.json"),
    "vscode": (f"{APPLICATIONS}/Code/User/mcp.json", ".vscode/mcp.json"),
    "codex": (".codex/config.toml", ".codex/config.toml"),
    "gemini-cli": (".gemini/settings.json", ".gemini/settings.json"),
    "windsurf": (".codeium/windsurf/mcp_config.json", None),
    "zed": (".config/zed/settings.json", ".zed/settings.json"),
    "opencode": (".config/opencode/opencode.json", "opencode.json"),
}
KEYS = {"vscode": "servers", "codex": "mcp_servers", "zed": "context_servers", "opencode": "mcp"}
PLAIN = """{
    "theme" : "dark",
    "mcpServers": {
        "other": {"command": "x", "args": ["a{b", "//no comment"]}
    },
    "last": [1,
      2]
}"""
COMMENTED = """// Mine.\r
{\r
\t"theme": "dark", // as at night\r
\t"KEY": {\r
\t\t/* the other one */\r
\t\t"other": {"command": ["x"], "url": "http://x/*y*/"}, // keep\r
\t},\r
\t"last": 1e3,\r
}\r
"""
TOML = """# Mine.
model = "x"   # a comment
text = '''
[not.a.table]
'''

[mcp_servers.other]
command = "x"
args = [
  "a", # first
]

[profiles.a]
model = "y"
"""


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("KERNELMCP_", "XDG_"))},
            "HOME": str(folder),
            "KERNELMCP_HOME": str(folder / "data"),
        }
        for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
            self.env.pop(name, None)

    def install(
        self, client: str, *arguments: str, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return run_kernelmcp("install", client, *arguments, env=self.env | env, cwd=cwd or self.folder)

    def file(self, client: str) -> Path:
        return self.folder / FILES[client][0]

    def write(self, client: str, text: str) -> str:
        self.file(client).parent.mkdir(parents=True, exist_ok=True)
        self.file(client).write_bytes(text.encode())
        return text


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "user"
    folder.mkdir()
    return Home(folder)


def before(client: str) -> str:
    kind = CLIENTS[client].format
    return {"toml": TOML, "json": PLAIN, "jsonc": COMMENTED.replace("KEY", KEYS.get(client, "mcpServers"))}[kind]


def parsed(client: str, text: str) -> Any:
    return tomllib.loads(text) if client == "codex" else loads_with_comments(text)


def entry_of(client: str, text: str) -> Any:
    return parsed(client, text)[KEYS.get(client, "mcpServers")]["kernelmcp"]


def expected(client: str, home: Home) -> dict[str, Any]:
    command = [*launcher(), "--folder", str(home.folder / "shared")]
    variables = {"KERNELMCP_HOME": home.env["KERNELMCP_HOME"]}
    if client == "opencode":
        return {"type": "local", "enabled": True, "command": command, "environment": variables}
    typed = {"type": "stdio"} if client in ("claude-code", "cursor", "vscode") else {}
    return {**typed, "command": command[0], "args": command[1:], "env": variables}


@pytest.mark.parametrize("client", FILES)
def test_a_new_configuration_has_the_entry_and_nothing_else(home: Home, client: str) -> None:
    assert home.install(client, "--folder", str(home.folder / "shared"), "--dry-run").returncode == 0
    assert list(home.folder.iterdir()) == []
    done = home.install(client, "--folder", str(home.folder / "shared"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Restart {CLIENTS[client].title} to use it." in done.stdout
    assert (home.folder / "shared").is_dir()
    text = home.file(client).read_text()
    if client != "codex":
        json.loads(text)  # strictly
    entry = entry_of(client, text)
    sandbox = entry.pop("sandbox", None)
    assert entry == expected(client, home)
    assert Path(entry["command"][0] if client == "opencode" else entry["command"]).is_absolute()
    assert list(parsed(client, text)) == [KEYS.get(client, "mcpServers")]
    if client == "vscode":
        written = sandbox["filesystem"]["allowWrite"]
        assert {str(home.folder / "data"), str(home.folder / "shared")} < set(written)
        assert "sandboxEnabled" not in entry, "that it asks before it calls a tool is the user's to change"


@pytest.mark.parametrize("client", FILES)
def test_every_other_byte_stays_and_uninstall_restores_the_file(home: Home, client: str) -> None:
    old = home.write(client, before(client))
    done = home.install(client)
    assert (done.returncode, done.stderr) == (0, "")
    new = home.file(client).read_bytes().decode()
    assert entry_of(client, new)["command"]
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    assert {step for step, *_ in steps} == {"equal", "insert"}
    assert sum(step == "insert" for step, *_ in steps) <= 2, "the entry, and a comma before it"
    assert home.file(client).with_name(home.file(client).name + ".bak").read_bytes() == old.encode()
    assert "has the server already" in home.install(client).stdout
    assert home.file(client).read_bytes().decode() == new
    assert home.install(client, "--uninstall").returncode == 0
    assert home.file(client).read_bytes() == old.encode()
    assert "has no server of this name" in home.install(client, "--uninstall").stdout


@pytest.mark.parametrize("client", ["vscode", "codex", "opencode"])
def test_a_new_folder_changes_the_arguments_and_nothing_else(home: Home, client: str) -> None:
    home.write(client, before(client))
    home.install(client, "--folder", str(home.folder / "one"))
    text = home.file(client).read_text()
    text = text.replace("[mcp_servers.kernelmcp]", "[mcp_servers.kernelmcp] # mine\nenabled = true").replace(
        '"type": "stdio",', '"type": "stdio", // mine'
    )
    home.write(client, text)
    assert home.install(client, "--folder", str(home.folder / "two")).returncode == 0
    new = home.file(client).read_text()
    changed = [line for line in text.splitlines() if line not in new.splitlines()]
    assert changed
    assert [line for line in changed if str(home.folder / "one") not in line] == []
    assert str(home.folder / "one") not in new.replace("allowWrite", "") or client == "vscode"
    entry = entry_of(client, new)
    assert (entry.get("args") or entry["command"])[-1] == str(home.folder / "two")


@pytest.mark.parametrize("client", FILES)
def test_a_project_has_its_own_entry_where_the_client_reads_one(home: Home, client: str) -> None:
    done = home.install(client, "--scope", "project")
    file = FILES[client][1]
    if file is None:
        assert (done.returncode, "no configuration per project" in done.stderr) == (2, True)
        assert list(home.folder.iterdir()) == []
        return
    assert (done.returncode, "paths of this machine" in done.stdout) == (0, True)
    assert entry_of(client, (home.folder / file).read_text())["command"]
    assert home.install(client, "--scope", "project", "--uninstall").returncode == 0
    assert "kernelmcp" not in parsed(client, (home.folder / file).read_text()).get(KEYS.get(client, "mcpServers"), {})


def test_codex_keeps_a_table_of_variables(home: Home) -> None:
    old = home.write(
        "codex",
        '[mcp_servers.kernelmcp]\ncommand = "/old/kernelmcp"\n\n'
        '[mcp_servers.kernelmcp.env]\n# mine\nA = "1"  # one\n\n# b\n[b]\nc = 1\n',
    )
    assert home.install("codex").returncode == 0
    new = home.file("codex").read_text()
    assert entry_of("codex", new)["env"] == {"A": "1", "KERNELMCP_HOME": home.env["KERNELMCP_HOME"]}
    assert new.endswith(old[old.index("\n# b") :])
    assert "\n# mine\n" in new
    assert '\nA = "1"  # one\n' in new
    assert home.install("codex", "--uninstall").returncode == 0
    assert home.file("codex").read_text() == "\n# b\n[b]\nc = 1\n"


@pytest.mark.parametrize("text", ['mcp_servers = { other = { command = "x" } }\n', "[mcp_servers\n"])
def test_a_form_that_cannot_be_changed_safely_is_left_alone(home: Home, text: str) -> None:
    home.write("codex", text)
    done = home.install("codex")
    assert (done.returncode, "was not changed" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
    assert home.file("codex").read_text() == text


@pytest.mark.parametrize(
    ("mcp", "path"),
    [
        ({"servers": {"other": {"type": "local"}}}, ["mcp", "servers"]),
        ({"servers": {"type": "local"}}, ["mcp"]),
        ({}, ["mcp"]),
    ],
    ids=["version 2", "a server of this name", "version 1"],
)
def test_opencode_has_two_forms(home: Home, mcp: Any, path: list[str]) -> None:
    home.write("opencode", json.dumps({"mcp": mcp}))
    assert home.install("opencode").returncode == 0
    found = json.loads(home.file("opencode").read_text())
    for key in path:
        found = found[key]
    assert found.pop("kernelmcp")["type"] == "local"
    assert found == (mcp["servers"] if len(path) == 2 else mcp)


def test_opencode_prefers_the_file_with_comments_if_there_is_one(home: Home) -> None:
    file = home.file("opencode").with_suffix(".jsonc")
    file.parent.mkdir(parents=True)
    file.write_text("{} // mine\n")
    assert home.install("opencode").returncode == 0
    assert entry_of("opencode", file.read_text())["command"]
    assert file.read_text().endswith("} // mine\n")


def test_a_mark_of_the_encoding_stays(home: Home) -> None:
    home.write("cursor", "\ufeff{}")
    assert home.install("cursor").returncode == 0
    assert home.file("cursor").read_bytes().startswith(b"\xef\xbb\xbf{\n")


@pytest.mark.parametrize("client", ["claude-desktop", "cursor", "vscode", "windsurf", "zed"])
def test_inside_wsl_a_desktop_client_is_the_one_on_windows(home: Home, client: str) -> None:
    windows = {"APPDATA": str(home.folder / "Roaming"), "USERPROFILE": str(home.folder / "Win"), "WSL_DISTRO_NAME": "U"}
    for name in ("Roaming", "Win"):
        (home.folder / name).mkdir()
    done = home.install(client, **windows)
    assert (done.returncode, done.stderr) == (0, "")
    [file] = [path for path in home.folder.rglob("*.json") if path.is_file()]
    assert file.relative_to(home.folder).parts[0] in ("Roaming", "Win")
    entry = entry_of(client, file.read_text())
    assert entry["command"] == "wsl.exe"
    assert f"KERNELMCP_HOME={home.env['KERNELMCP_HOME']}" in entry["args"]
    assert "env" not in entry


async def tools_of(entry: dict[str, Any]) -> set[str]:
    """As a client starts the server: from the entry alone."""
    command = [entry["command"], *entry["args"]] if isinstance(entry["command"], str) else entry["command"]
    server = StdioServerParameters(
        command=command[0], args=command[1:], env=entry.get("env") or entry.get("environment")
    )
    with anyio.fail_after(DEADLINE):
        async with Client(stdio_client(server)) as client:
            return {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("client", ["codex", "opencode"])
def test_the_entry_starts_the_server(home: Home, client: str) -> None:
    assert home.install(client, "--folder", str(home.folder / "my files")).returncode == 0
    assert "execute_code" in anyio.run(tools_of, entry_of(client, home.file(client).read_text()))


def test_doctor_starts_each_entry_and_says_what_is_wrong(home: Home) -> None:
    for client in ("codex", "zed", "gemini-cli"):
        assert home.install(client).returncode == 0
    project = home.folder / "project"
    project.mkdir()
    assert home.install("cursor", "--scope", "project", cwd=project).returncode == 0
    home.write("zed", home.file("zed").read_text().replace(json.dumps(launcher()[0]), '"/nothing/kernelmcp"'))
    home.write("gemini-cli", home.file("gemini-cli").read_text().replace('"args": [', '"args": ["--nonsense", '))
    home.write("windsurf", "{}")
    home.write("cursor", "{}")  # its entry is the project's
    home.write("vscode", '{"servers": {"kernelmcp": {"command": "sh", "sandboxEnabled": true}}}')
    home.write("claude-desktop", "{")
    home.write("claude-code", '{"mcpServers": {"kernelmcp": {"command": "sh", "args": ["--folder", "/nothing"]}}}')
    found = anyio.run(states, Places(home.env | {"PATH": ""}, folder=project))
    said = {
        "Claude Desktop": "cannot be used: ",
        "Claude Code": "does not start: the folder /nothing does not exist",
        "Cursor, .cursor/mcp.json": "works: starts and lists ",
        "VS Code": "starts no kernels: sandboxEnabled",
        "Codex": "works: starts and lists ",
        "Gemini CLI": "does not start: ",
        "Windsurf": "not set up in ",
        "Zed": "does not start: /nothing/kernelmcp does not exist",
    }
    assert list(found) == list(said)
    assert {title: text for title, text in found.items() if said[title] not in text} == {}


HOSTILE = '{"mcpServers": {"kernelmcp": %s}}'


@pytest.mark.parametrize(
    "change",
    [
        {"command": "/bin/sh", "args": ["-c", "touch ran"]},
        {"env": {"PYTHONSTARTUP": "ran.py"}},
        {"args": ["--config", "mcp.toml"]},
    ],
)
def test_doctor_starts_nothing_else_that_a_project_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    async def trial(command: list[str], variables: dict[str, str]) -> str:
        pytest.fail(f"{command} was started with {variables}")

    monkeypatch.setattr(check, "_trial", trial)
    command, *arguments = launcher()
    entry = {"command": command, "args": arguments} | change
    (tmp_path / ".mcp.json").write_text(HOSTILE % json.dumps(entry))
    found = anyio.run(states, Places({"HOME": str(tmp_path / "home"), "PATH": ""}, folder=tmp_path))
    assert found.keys() == {"Claude Code, .mcp.json"}
    assert "not tried: a project may name any program" in found["Claude Code, .mcp.json"]


@pytest.mark.parametrize("folder", [[], ["--folder", "/tmp/"], ["--folder=/tmp"]])
def test_doctor_starts_what_install_writes_into_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: list[str]
) -> None:
    async def trial(command: list[str], variables: dict[str, str]) -> str:
        return f"works: {command == [*launcher(), *folder]}"

    monkeypatch.setattr(check, "_trial", trial)
    command, *arguments = launcher()
    (tmp_path / ".mcp.json").write_text(HOSTILE % json.dumps({"command": command, "args": [*arguments, *folder]}))
    [found] = anyio.run(states, Places({"HOME": str(tmp_path / "home"), "PATH": ""}, folder=tmp_path)).values()
    assert found.startswith("works: True")


def test_wrong_settings_cost_doctor_no_other_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp.toml").write_text("[sessions]\nno_such_setting = 1\n")
    monkeypatch.setenv("KERNELMCP_CONFIG_FILE", str(tmp_path / "mcp.toml"))
    (tmp_path / ".vscode").mkdir()
    command, *arguments = launcher()
    entry = {"command": command, "args": arguments}
    (tmp_path / ".vscode/mcp.json").write_text(json.dumps({"servers": {"kernelmcp": entry}}))
    [found] = anyio.run(states, Places({"HOME": str(tmp_path / "home"), "PATH": ""}, folder=tmp_path)).values()
    assert "cannot be used" in found
    assert "no_such_setting" in found


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"type": "http", "url": "https://h/\x1b[2J"}, "connects to https://h/"),
        ({"command": "\x1b[2Jx"}, "does not exist"),
        ({"command": sys.executable, "args": ["\0"]}, "cannot be used"),
        ({"command": sys.executable, "env": {"A=B\0": "1"}}, "cannot be used"),
        ({"command": sys.executable, "args": ["--folder", "~nobody-of-this-name/x"]}, "cannot be used"),
    ],
)
def test_an_odd_entry_costs_doctor_nothing_but_its_own_line(tmp_path: Path, entry: dict[str, Any], told: str) -> None:
    (tmp_path / ".claude.json").write_text(HOSTILE % json.dumps(entry))
    [found] = anyio.run(states, Places({"HOME": str(tmp_path), "PATH": ""}, folder=tmp_path)).values()
    assert told in found
    assert found.isprintable()


@pytest.mark.parametrize(
    ("client", "entry", "why"),
    [
        ("claude-code", {"type": "http", "url": "https://h"}, "connects to an address"),
        ("opencode", {"type": "remote", "url": "https://h"}, "connects to an address"),
        ("cursor", {"command": "ssh", "args": ["box", "-p", "22", "/opt/kernelmcp-wrapper"]}, "another program, ssh"),
        ("cursor", {"command": "sh", "args": ["-c", "exec kernelmcp --folder ~/x"]}, "another program, sh"),
    ],
)
def test_an_entry_that_is_no_server_of_ours_is_not_made_half_of_one(
    client: str, entry: dict[str, Any], why: str
) -> None:
    text = json.dumps({CLIENTS[client].keys[0]: {"kernelmcp": entry}})
    with pytest.raises(ValueError, match=why):
        configure.merged(CLIENTS[client], text)


def test_doctor_reports_no_client_where_there_is_none(tmp_path: Path) -> None:
    assert anyio.run(states, Places({"HOME": str(tmp_path), "PATH": ""}, folder=tmp_path)) == {}
