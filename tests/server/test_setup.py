"""`kernelmcp setup`: what it says and leaves, and that sessions of a running server have what it prepared."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urljoin

import psutil
import pytest

from kernelmcp.commands import setup as setup_command
from kernelmcp_kernel.packages import resolver
from kernelmcp_kernel.packages.package_errors import PackageInvalid
from tests.kernel.driver import wait_until
from tests.kernel.wheels import DEAD_INDEX, Index, make_wheel, serve_index

from ..processes import is_alive
from ..starting import run_kernelmcp
from .support import Connect

pytestmark = pytest.mark.anyio
NOBODY = "Nothing was fetched, because there is no terminal to ask on: --yes fetches them."


def setup(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp("setup", *arguments, env=environment)


def at_a_terminal(environment: dict[str, str], typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    try:
        return run_kernelmcp("setup", *arguments, env=environment, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)


@contextmanager
def served(folder: Path) -> Iterator[tuple[Index, dict[str, str]]]:
    """An index with two packages, and the settings of a server that asks it."""
    with serve_index(folder / "index") as index:
        index.add("pure", requires=("helper",))
        index.add("helper")
        home = str(folder / "setup-home")
        yield index, {"SERVER__HOME": home, "PACKAGES__INDEX_URL": index.url, "PACKAGES__PYODIDE_URL": str(folder)}


@pytest.mark.slow
async def test_sessions_of_a_running_server_have_what_was_prepared(
    connect: Connect, server_env: dict[str, str], tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has packages of its own")
    with served(tmp_path) as (index, settings):
        async with connect(**settings) as client:

            async def run(code: str, **arguments: str) -> str:
                result = await client.call_tool("execute_code", {"code": code, **arguments})
                return "\n".join(block.text for block in result.content if block.type == "text")

            assert "ModuleNotFoundError" in await run("import helper")
            environment = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()}
            done = setup(environment, "--yes", "pure", "absent")
            assert done.returncode == 1
            assert "[1/2] pure" in done.stdout
            assert "2 packages are prepared" in done.stdout
            assert "the same command continues" in done.stdout
            assert done.stderr.startswith("kernelmcp: absent: ")
            assert "Traceback" not in done.stderr
            assert setup(environment, "--yes", "pure").returncode == 0
            asked = len(index.requests)
            assert "Successfully installed helper-1.0" in await run("import helper; helper.version")
            assert "'1.0'" in await run("import pure; pure.version", session_id="another")
            assert index.requests[asked:] == []
            archive = tmp_path / "set.zip"
            assert setup(environment, "--export", str(archive)).returncode == 0
            offline = setup(environment | {"KERNELMCP_SERVER__HOME": str(tmp_path / "far")}, "--offline", str(archive))
            assert (offline.returncode, "2 packages are prepared" in offline.stdout) == (0, True)
            assert setup(environment, "--remove").stdout == "Removed.\n"
            assert setup(environment, "--remove").stdout == "There was nothing to remove.\n"
            assert "ModuleNotFoundError" in await run("import helper", session_id="third")


def test_a_terminal_gets_no_control_characters_of_an_index(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = {"name": "a\x1b[2J", "version": "1\n\x0b", "source": "index", "size": None, "built": False}
    plan = [
        {"asked": "a", "files": [file] * 102, "meant": "\x07b", "error": None},
        {"asked": "c", "files": [], "meant": None, "error": "\x1b]52;c;\x07\u2028"},
    ]
    said = SimpleNamespace(communicate=lambda: (json.dumps(plan), None), returncode=0)
    monkeypatch.setattr(setup_command, "_prepare", lambda *_: nullcontext(said))
    monkeypatch.setattr(sys, "stdin", None)
    assert setup_command._ask(cast("Any", None), ["a", "c"]) == (False, {"c"})
    told = capsys.readouterr()
    lines = told.out.split("\n") + told.err.split("\n")
    assert all(line.isprintable() for line in lines)
    assert (len(lines), "  and 2 more" in lines) == (1 + 100 + 1 + 1 + 1 + 2, True)


@pytest.mark.parametrize(
    ("said", "size"), [("9" * 15, 10**15 - 1), ("9" * 16, None), ("-1", None), ("1e9", None), ("٣", None), ("", None)]
)
def test_a_size_that_is_no_number_is_not_known(tmp_path: Path, said: str, size: int | None) -> None:
    (tmp_path / "a-1.0-py3-none-any.whl").write_text(said, "utf-8")
    assert resolver._planned(tmp_path / "a-1.0-py3-none-any.whl", set(), set()).size == size


def test_a_file_that_is_no_packages_is_an_error_of_packages(tmp_path: Path) -> None:
    for name in ("x.tar.gz", "numpy 2: from Pyodide's distribution-1.0.tar.gz"):
        (tmp_path / name).touch()
        with pytest.raises(PackageInvalid):
            resolver._planned(tmp_path / name, set(), set())


def test_a_host_that_does_not_answer_is_waited_for_and_named_once(server_env: dict[str, str], tmp_path: Path) -> None:
    with served(tmp_path) as (_, settings):
        settings["PACKAGES__PYODIDE_URL"] = urljoin(DEAD_INDEX, "/")
        environment = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()}
        done = setup(environment, "numpy", "pandas", "scipy")
    assert done.returncode == 1
    assert re.findall(r"^\[.*", done.stdout, re.M) == ["[1/3] numpy"]
    assert done.stdout.endswith("see above. What was fetched is kept; the same command continues.\n")
    silent, rest = done.stderr.splitlines()
    assert silent.startswith("kernelmcp: numpy: it comes from Pyodide's distribution, and 127.0.0.1:9 does not answer.")
    assert rest == "kernelmcp: not tried, because they come from there, too: pandas, scipy"


@pytest.mark.slow
def test_a_package_of_an_index_is_shown_and_asked_for(server_env: dict[str, str], tmp_path: Path) -> None:
    with served(tmp_path) as (index, settings):
        index.add("pandsa", requires=("helper",))
        index.add_source("sourced")
        environment = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()}
        shown = setup(environment, "pure", "pandsa", "sourced", "absent")
        assert (shown.returncode, shown.stderr[:19]) == (1, "kernelmcp: absent: ")
        lines = re.sub(r"\d+ kB", "N kB", shown.stdout).splitlines()
        helper = "  helper 1.0: from the package index, N kB"
        assert lines == [
            "pure is not in Pyodide's distribution.",
            helper,
            "  pure 1.0: from the package index, N kB",
            "pandsa is not in Pyodide's distribution. Did you mean pandas?",
            helper,
            "  pandsa 1.0: from the package index, N kB",
            "sourced is not in Pyodide's distribution.",
            (
                "  sourced 1.0: from the package index, N kB, built from its source; its dependencies are known only "
                "after that"
            ),
            NOBODY,
        ]
        assert list((tmp_path / "setup-home" / "packages" / "wheels").rglob("*.whl")) == []
        assert not (tmp_path / "setup-home" / "setup.json").exists()
        pinned = setup(environment, f"pure --hash=sha256:{'0' * 64}")
        assert (pinned.returncode, pinned.stdout.splitlines()[-1]) == (1, NOBODY)
        for elsewhere in ("file:///etc/hosts", "file:///etc", "\xff"):
            index.heads_to = elsewhere
            shown = setup(environment, "helper")
            assert (shown.returncode, shown.stderr) == (1, "")
            assert shown.stdout.splitlines()[1:] == ["  helper 1.0: from the package index", NOBODY]
        index.heads_to = ""
        index.add("flaky")
        index.statuses["/simple/flaky/"] = 503  # a plan that fails is not a question that nobody has to be asked
        assert (setup(environment, "flaky").returncode, setup(environment, "cffi-example").returncode) == (1, 1)
        for answer, status in (("\x04", 1), ("\n", 1), ("n\n", 1), ("y\n", 0)):
            asked = at_a_terminal(environment, answer, "pure")
            assert (asked.returncode, "Fetch them? [y/N]" in asked.stdout) == (status, True)
            assert ("Nothing was fetched.\n" in asked.stdout) == bool(status)
        assert setup(environment, "pure").returncode == 0, "it is there: nobody is asked"
        make_wheel(index.folder("matplotlib-fontja"), "matplotlib_fontja")
        assert setup(environment, "fonts").returncode == 0, "nor about a set"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--offline", "missing.zip"], 1, "missing.zip"),
        (["--offline", "x.zip", "numpy"], 2, "Omit the names"),
        (["../evil"], 1, "paths and version control addresses are not taken"),
        (["--", "--index-url=http://x"], 1, "--index-url"),
    ],
)
def test_what_it_cannot_do_it_says_in_a_sentence(
    server_env: dict[str, str], tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    done = setup(server_env | {"KERNELMCP_HOME": str(tmp_path / "home")}, *arguments)
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (status, True, False), done


@pytest.mark.parametrize("arguments", [["stalled"], ["--yes", "stalled"]], ids=["as it looks", "as it fetches"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_when_it_is_killed_nothing_of_it_goes_on(
    server_env: dict[str, str], tmp_path: Path, how: signal.Signals, arguments: list[str]
) -> None:
    with serve_index(tmp_path / "index") as index, index.stalled():
        named = {"SERVER__HOME": str(tmp_path / "home"), "PACKAGES__INDEX_URL": index.url}
        environment = server_env | {f"KERNELMCP_{name}": value for name, value in named.items()}
        command = [sys.executable, "-m", "kernelmcp", "setup", *arguments]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
            assert wait_until(lambda: any("stalled" in path for path in index.requests))
            below = psutil.Process(running.pid).children(recursive=True)
            assert len(below) >= 2, "what prepares, and pip"
            running.send_signal(how)
            running.wait()
            assert wait_until(lambda: not any(map(is_alive, below)))


@pytest.mark.slow
async def test_the_workspace_info_lists_what_came_with_the_boot_image(
    connect: Connect, server_env: dict[str, str], tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("another kernel has packages of its own")
    with served(tmp_path) as (index, settings):
        index.add("late")
        settings["PACKAGES__PREINSTALLED"] = '["pure"]'
        done = setup(server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()}, "--yes", "pure")
        assert done.returncode == 0, done.stderr
        async with connect(**settings) as client:

            async def packages() -> list[tuple[str, str]]:
                found = await client.call_tool("get_workspace_info", {})
                return [(each["name"], each["version"]) for each in (found.structured_content or {})["packages"]]

            assert await packages() == []
            await client.call_tool("execute_code", {"code": "import pure"})
            image = [("helper", "1.0"), ("pure", "1.0")]
            assert await packages() == image
            await client.call_tool("execute_code", {"code": "%pip install late"})
            assert await packages() == [("helper", "1.0"), ("late", "1.0"), ("pure", "1.0")]
            await client.call_tool("reset_workspace", {"scope": "variables"})
            await client.call_tool("execute_code", {"code": "1"})
            assert await packages() == [("helper", "1.0"), ("late", "1.0"), ("pure", "1.0")]
            text = (await client.call_tool("get_workspace_info", {})).content[0]
            assert "Installed packages: helper 1.0, late 1.0, pure 1.0" in getattr(text, "text", "")
