"""`kernelmcp install`: what it writes into a client's configuration, what it keeps, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.commands.install.entry import launcher

from ..starting import run_kernelmcp
from .support import DEADLINE

APPLICATIONS = "Library/Application Support" if sys.platform == "darwin" else ".config"


def install(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp("install", "claude-desktop", *arguments, env=os.environ | env)


class User:
    """A user's home, with Claude Desktop in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / APPLICATIONS / "Claude" / "claude_desktop_config.json"
        self.env = {"HOME": str(home), "XDG_CONFIG_HOME": "", "KERNELMCP_HOME": str(home / "kernelmcp-data")}
        self.kept = {"KERNELMCP_HOME": self.env["KERNELMCP_HOME"]}

    def write(self, config: Any) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(config if isinstance(config, str) else json.dumps(config))

    def install(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return install(*arguments, **{**self.env, **env})

    @property
    def config(self) -> Any:
        return json.loads(self.file.read_text())

    @property
    def entry(self) -> Any:
        return self.config["mcpServers"]["kernelmcp"]


@pytest.fixture
def user(tmp_path: Path) -> User:
    home = tmp_path / "user"
    home.mkdir()
    return User(home)


def ours(user: User, *arguments: str, **variables: str) -> dict[str, Any]:
    command = launcher()
    return {"command": command[0], "args": [*command[1:], *arguments], "env": variables | user.kept}


def test_a_folder_is_made_mounted_and_kept(user: User) -> None:
    folder = user.home / "kernelmcp"
    done = user.install("--folder", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert str(folder) in done.stdout
    assert "/volumes/shared" in done.stdout
    assert folder.is_dir()
    assert user.entry == ours(user, "--folder", str(folder))
    user.install()
    assert user.entry["args"][-2:] == ["--folder", str(folder)], "without the option it stays"
    assert user.install("--folder", str(user.home / "other")).returncode == 0
    assert user.entry == ours(user, "--folder", str(user.home / "other"))


def test_the_server_that_it_writes_has_the_folder(user: User) -> None:
    folder = user.home / "my files"
    assert user.install("--folder", str(folder)).returncode == 0
    command = [user.entry["command"], *user.entry["args"], "--log-level", "debug"]
    ended = {"env": os.environ | user.env, "stdin": subprocess.DEVNULL, "capture_output": True, "timeout": DEADLINE}
    assert subprocess.run(command, **ended).returncode == 0
    folder.rmdir()
    assert subprocess.run(command, **ended).returncode == 0
    assert folder.is_dir(), "so it was this folder, which a start makes"


def test_a_dry_run_makes_nothing(user: User) -> None:
    done = user.install("--dry-run", "--folder", str(user.home / "kernelmcp"))
    assert done.returncode == 0
    assert json.loads(done.stdout.partition("\n")[2])["mcpServers"]["kernelmcp"]["args"][-2] == "--folder"
    assert list(user.home.iterdir()) == []


@pytest.mark.parametrize(
    "folder",
    [
        "~",
        "/",
        "~/.ssh",
        f"~/{APPLICATIONS}/Claude",
        "~/.new/x",
        "~/file",
        "~/file/x",
        "~/loop",
        "~/a*b",
        "~nobody-x/y",
    ],
)
def test_a_folder_that_guests_must_not_have_changes_nothing(user: User, folder: str) -> None:
    (user.home / "file").write_text("")
    (user.home / "loop").symlink_to("loop")
    before = sorted(user.home.rglob("*"))
    done = user.install("--folder", folder)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert done.stderr.startswith("kernelmcp: ")
    assert "Traceback" not in done.stderr
    assert sorted(user.home.rglob("*")) == before


@pytest.mark.parametrize("name", ["-rf", "--config", "ü ; $(touch x)", 'quo"te', "new\nline", "back\\slash"])
def test_the_name_of_a_folder_is_only_a_name(user: User, name: str) -> None:
    folder = user.home / name
    assert user.install(f"--folder={folder}").returncode == 0
    assert folder.is_dir()
    assert user.entry["args"][-2:] == ["--folder", str(folder)]


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        ({"command": "kernelmcp", "args": ["serve", "--log-level", "debug"]}, ["serve", "--log-level", "debug"]),
        ({"command": "/old/bin/kernelmcp", "args": ["--policy", "/p.toml"]}, ["--policy", "/p.toml"]),
        ({"command": "C:\\old\\kernelmcp.exe", "args": ["--policy", "/p.toml"]}, ["--policy", "/p.toml"]),
        ({"command": "/old/python", "args": ["-P", "-m", "kernelmcp", "--policy", "/p"]}, ["--policy", "/p"]),
        ({"command": "uvx", "args": ["kernelmcp@latest", "serve"]}, ["serve"]),
        ({"command": "uvx", "args": ["--from", "kernelmcp", "kernelmcp", "--folder", "/u/kernelmcp"]},
         ["--folder", "/u/kernelmcp"]),
        ({"command": "uv", "args": ["--directory", "/src/kernelmcp", "run", "kernelmcp", "serve"]}, ["serve"]),
        ({"command": "wsl.exe", "args": ["--exec", "/home/a/kernelmcp", "--folder", "/f"]}, ["--folder", "/f"]),
        ({"command": "kernelmcp"}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_the_users_arguments_and_variables_stay(user: User, old: dict[str, Any], kept: list[str]) -> None:
    user.write({"theme": "dark", "mcpServers": {"kernelmcp": {**old, "env": {"A": "1"}}}})
    assert user.install().returncode == 0
    assert user.entry == ours(user, *kept, A="1")
    assert user.config["theme"] == "dark"
    assert "has the server already" in user.install().stdout


def test_uninstall_takes_out_the_server_and_nothing_else(user: User) -> None:
    old = {"theme": "dark", "mcpServers": {"other": {"command": "x"}}}
    user.write(old)
    folder = user.home / "kernelmcp"
    user.install("--folder", str(folder))
    assert "would write" in user.install("--uninstall", "--dry-run").stdout
    assert "kernelmcp" in user.config["mcpServers"]
    done = user.install("--uninstall")
    assert (done.returncode, user.config) == (0, old)
    assert f"Your folder {folder} is unchanged" in done.stdout
    assert folder.is_dir()
    again = user.install("--uninstall")
    assert (again.returncode, "has no server of this name" in again.stdout) == (0, True)


def test_uninstall_without_a_configuration_makes_none(user: User) -> None:
    assert user.install("--uninstall").returncode == 0
    assert list(user.home.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "{not json", "[]", "3", '{"mcpServers": []}', '{"mcpServers": {"kernelmcp": []}}', "[" * 100_000,
        '{"mcpServers": {"kernelmcp": {"args": "serve"}}}', '{"mcpServers": {"kernelmcp": {"args": [1]}}}', "\udcff",
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["--dry-run", "--uninstall", "--folder=~/kernelmcp"])
def test_what_is_no_configuration_is_left_alone(user: User, text: str, option: str) -> None:
    user.file.parent.mkdir(parents=True)
    user.file.write_bytes(text.encode(errors="surrogateescape"))
    done = user.install(option)
    if option == "--uninstall" and '"kernelmcp"' in text:
        assert user.config == {"mcpServers": {}}, "whatever the entry is, it can go"
        return
    assert user.file.read_bytes() == text.encode(errors="surrogateescape")
    assert (done.returncode, "was not changed" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
    assert not (user.home / "kernelmcp").exists()


def test_a_configuration_that_is_a_link_stays_one(user: User) -> None:
    target = user.home / "dotfiles" / "claude.json"
    target.parent.mkdir()
    target.write_text("{}")
    user.file.parent.mkdir(parents=True)
    user.file.symlink_to(target)
    victim = user.home / "victim"
    victim.write_text("safe")
    target.with_name("claude.json.bak").symlink_to(victim)
    assert user.install().returncode == 0
    assert user.file.is_symlink()
    assert "kernelmcp" in json.loads(target.read_text())["mcpServers"]
    assert victim.read_text() == "safe", "the copy of the old one is written beside, not through a link"


@pytest.mark.parametrize("kind", ["loop", "pipe", "folder"])
def test_a_configuration_that_is_no_file_is_refused(user: User, kind: str) -> None:
    user.file.parent.mkdir(parents=True)
    if kind == "loop":
        user.file.symlink_to(user.file.name)
    elif kind == "pipe":
        os.mkfifo(user.file)
    else:
        user.file.mkdir()
    done = user.install()
    assert (done.returncode, "cannot be read" in done.stderr, "Traceback" in done.stderr) == (1, True, False)


def test_what_cannot_be_written_is_a_sentence(user: User) -> None:
    (user.home / APPLICATIONS).parent.mkdir(exist_ok=True)
    (user.home / APPLICATIONS).write_text("a file where a folder belongs")
    done = user.install()
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "Traceback" not in done.stderr


@pytest.fixture
def windows(user: User, tmp_path: Path) -> dict[str, str]:
    """The variables of a shell inside WSL, with stand-ins for the two programs that ask Windows."""
    settings = tmp_path / "mnt" / "c" / "Users" / "Jürgen M" / "AppData" / "Roaming"
    settings.mkdir(parents=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    named = "C:\\Users\\Jürgen M\\AppData\\Roaming"
    answers = {
        "cmd.exe": f"import sys; sys.stdout.buffer.write({named + chr(13) + chr(10)!r}.encode('utf-16-le'))",
        "wslpath": f"import sys; assert sys.argv[1:] == ['-u', {named!r}]; print({str(settings)!r})",
    }
    for name, code in answers.items():
        (programs / name).write_text(f"#!{sys.executable}\n{code}\n")
        (programs / name).chmod(0o755)
    user.file = settings / "Claude" / "claude_desktop_config.json"
    return {"WSL_DISTRO_NAME": "Ubuntu 24", "PATH": str(programs), "APPDATA": "", "PYTHONUTF8": "1"}


def test_inside_wsl_the_client_on_windows_is_given_wsl(user: User, windows: dict[str, str]) -> None:
    folder = user.home / "kernelmcp"
    done = user.install("--folder", str(folder), **windows)
    assert (done.returncode, done.stderr) == (0, "")
    variable = f"KERNELMCP_HOME={user.kept['KERNELMCP_HOME']}"
    command = ["--distribution", "Ubuntu 24", "--exec", "/usr/bin/env", variable, *launcher()]
    assert user.entry == {"command": "wsl.exe", "args": [*command, "--folder", str(folder)]}
    user.install(**windows)
    assert user.entry["args"][-2:] == ["--folder", str(folder)]
    assert user.install("--uninstall", **windows).returncode == 0
    assert user.config == {"mcpServers": {}}


def test_inside_wsl_a_silent_windows_is_a_sentence_and_appdata_says_it(user: User, windows: dict[str, str]) -> None:
    settings = str(user.file.parent.parent)
    Path(windows["PATH"], "cmd.exe").unlink()
    done = user.install(**windows)
    assert (done.returncode, "APPDATA=" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert user.install(**{**windows, "APPDATA": settings}).returncode == 0
    assert user.entry["command"] == "wsl.exe"


def test_a_terminal_without_the_characters_gets_escapes(user: User) -> None:
    done = user.install("--dry-run", "--folder", str(user.home / "dätä"), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "d\\xe4t\\xe4" in done.stdout
