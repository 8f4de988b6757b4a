"""The table of clients, what the command line offers, and what commands say of what stands in their way."""

import errno
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import structlog
from mcp_types import CallToolResult, TextResourceContents

from kernelmcp import cli
from kernelmcp.commands import demo, doctor, own_server, setup
from kernelmcp.commands.demo_screen import Screen
from kernelmcp.commands.install.clients import CLIENTS, Places
from kernelmcp.commands.own_server import RESULT_KEY
from kernelmcp.config.models import Values
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError, KernelStartFailed
from kernelmcp_kernel.prepare.__main__ import UNPREPARED

ROOT = Path(__file__).resolve().parents[2]
MAC, LINUX = {"HOME": "/Users/a"}, {"HOME": "/home/a"}
SUPPORT = "/Users/a/Library/Application Support"


@pytest.mark.parametrize(
    ("client", "platform", "environ", "path"),
    [
        ("claude-desktop", "darwin", MAC, f"{SUPPORT}/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", LINUX, "/home/a/.config/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {**LINUX, "XDG_CONFIG_HOME": "/c"}, "/c/Claude/claude_desktop_config.json"),
        ("claude-code", "darwin", MAC, "/Users/a/.claude.json"),
        ("claude-code", "linux", {**LINUX, "CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("cursor", "linux", LINUX, "/home/a/.cursor/mcp.json"),
        ("vscode", "darwin", MAC, f"{SUPPORT}/Code/User/mcp.json"),
        ("vscode", "linux", LINUX, "/home/a/.config/Code/User/mcp.json"),
        ("codex", "linux", LINUX, "/home/a/.codex/config.toml"),
        ("codex", "linux", {**LINUX, "CODEX_HOME": "/c"}, "/c/config.toml"),
        ("gemini-cli", "darwin", MAC, "/Users/a/.gemini/settings.json"),
        ("windsurf", "linux", LINUX, "/home/a/.codeium/windsurf/mcp_config.json"),
        ("zed", "darwin", MAC, "/Users/a/.config/zed/settings.json"),
        ("opencode", "linux", LINUX, "/home/a/.config/opencode/opencode.json"),
    ],
)
def test_each_client_has_its_place(client: str, platform: str, environ: dict[str, str], path: str) -> None:
    assert CLIENTS[client].file("user", Places(environ, platform)) == Path(path)


def test_the_command_line_and_the_readme_name_every_client() -> None:
    assert tuple(CLIENTS) == cli.INSTALL_CLIENTS
    rows = re.findall(
        r"^\| (.+?) \| `kernelmcp install (\S+) --folder ~/kernelmcp` \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert rows == [(client.title, name) for name, client in CLIENTS.items()]


def test_a_client_may_be_written_as_the_other_commands_write_it() -> None:
    for written in ("claude-desktop", "claude_desktop"):
        assert cli._parser().parse_args(["install", written]).client == "claude-desktop"


class DemoServer:
    """As the client of a server whose tools all succeed."""

    protocol_version = "1"

    async def list_tools(self) -> Any:
        return SimpleNamespace(tools=[])

    async def call_tool(self, tool: str, arguments: dict[str, Any], **_: Any) -> CallToolResult:
        return CallToolResult(content=[], _meta={RESULT_KEY: {"session_id": "s", "status": "ok"}})

    async def read_resource(self, uri: str) -> Any:
        return SimpleNamespace(contents=[TextResourceContents(uri=uri, text="{}")])


@pytest.mark.anyio
@pytest.mark.parametrize("worked", [True, False])
async def test_a_demo_that_failed_leads_to_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked: bool
) -> None:
    @asynccontextmanager
    async def client_of(*_: Any) -> AsyncIterator[DemoServer]:
        yield DemoServer()

    async def step(*_: Any) -> bool:
        return worked

    monkeypatch.setattr(demo.own_server, "client_of", client_of)
    monkeypatch.setattr(demo.Demo, "_step", step)
    out = io.StringIO()
    with demo._targets() as targets:
        shown = demo.Demo(Screen(out, tmp_path / "demo.png"), targets, tmp_path / "demo.ipynb", "kernelmcp")
        assert await shown.run() == (not worked)
    told = out.getvalue().partition("\nNext: ")[2]
    assert told.startswith("give it to a client") == worked
    assert told.startswith("`kernelmcp doctor`") == (not worked)


@pytest.mark.parametrize("more", ["science", "--offline=x", "--export=x"])
def test_a_removal_of_some_packages_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path))
    (file := tmp_path / setup.SETUP_FILE).touch()
    assert cli.main(["setup", "--remove", more]) == cli.EXIT_CONFIGURATION
    assert "--remove removes all prepared packages" in capsys.readouterr().err
    assert file.exists()


@pytest.mark.parametrize("command", ["skills list", "demo", "replay x.ipynb"])
def test_who_reads_no_more_of_the_output_gets_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    @asynccontextmanager
    async def client_of(*_: Any) -> AsyncIterator[DemoServer]:
        async with anyio.create_task_group():
            yield DemoServer()

    monkeypatch.setattr(own_server, "client_of", client_of)
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    cell = {"cell_type": "code", "source": "1"}
    Path("x.ipynb").write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:  # closing it raises if anything is left to write
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(command.split()) == cli.EXIT_REFUSED
    assert capfd.readouterr().err == ""


def test_a_closed_stdout_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["skills", "list"]) == 0
    sys.stdout.close()
    assert capfd.readouterr().err == ""


def test_only_warnings_of_a_commands_log_are_shown_and_not_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def logs(_: Any) -> int:
        log = structlog.get_logger("kernelmcp.test")
        log.info("of no interest")
        log.warning("told")
        return 0

    monkeypatch.setattr(cli, "_skills", logs)
    assert cli.main(["skills", "list"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "told" in shown.err


def test_skills_of_a_home_that_one_may_not_read_are_refused_in_words(
    users_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (users_folder / "sessions").mkdir(mode=0)
    monkeypatch.setenv("KERNELMCP_HOME", str(users_folder))
    assert cli.main(["skills", "list"]) == cli.EXIT_REFUSED
    assert "Permission denied" in capsys.readouterr().err


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Values.model_validate({"config": {"server": {"home": tmp_path / "home"}}}))


@pytest.mark.parametrize("target", ["missing/x.zip", "."])
def test_an_export_that_cannot_be_written_is_said_before_anything_is_fetched(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(setup, "_prepare")
    with pytest.raises(ConfigurationError) as refused:
        setup.main(settings, ["numpy"], None, Path(target), remove=False, yes=True)
    assert refused.value.message.startswith(f"{target} cannot be written: ")


@pytest.mark.parametrize(("status", "told"), [(0, False), (1, True), (UNPREPARED, False), (-9, True)])
def test_only_after_a_fetch_that_failed_the_same_command_continues(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    told: bool,
) -> None:
    @contextmanager
    def prepare(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(stdout=(), wait=lambda: status)

    monkeypatch.setattr(setup, "_prepare", prepare)
    assert setup.main(settings, ["numpy"], None, tmp_path / "x.zip", remove=False, yes=True) == (status != 0)
    assert ("the same command continues" in capsys.readouterr().out) == told


@pytest.mark.parametrize(("number", "advice"), [(errno.ENOSPC, "Free disk space"), (errno.EACCES, doctor.HOME_ADVICE)])
def test_doctor_tells_what_the_disk_lacks(number: int, advice: str) -> None:
    report = doctor.Report()
    inner = ExceptionGroup("inner", [OSError(number, os.strerror(number))])
    doctor._report_failed_start(report, ExceptionGroup("outer", [inner]), Path("/home/a"))
    assert report.problems == [doctor.Problem(f"no kernel can be started here: /home/a: {os.strerror(number)}", advice)]
    both = ExceptionGroup("both", [KernelStartFailed("it ended", "Try again."), OSError(number, "x", "/home/a/b")])
    doctor._report_failed_start(report, both, Path("/home/a"))
    assert report.problems[1].what == "it ended."
    with pytest.raises(ExceptionGroup):
        doctor._report_failed_start(report, ExceptionGroup("bug", [ValueError("x")]), Path("/home/a"))
