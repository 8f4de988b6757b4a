"""Upstreams opened from settings, without a server around them, and the fixtures' servers as processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from kernelmcp.config.load import load
from kernelmcp.files.home import open_home
from kernelmcp.upstreams.upstreams import Upstreams, open_upstreams

from ..starting import python_command, start_python

HERE = Path(__file__).parent
DEADLINE = 180
Opened = Callable[..., AbstractAsyncContextManager[Upstreams]]
Started = Callable[..., str]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """`async with opened(toml) as upstreams`: the text is mcp.toml, and the home is a folder of the test's."""

    @asynccontextmanager
    async def opened(text: str) -> AsyncIterator[Upstreams]:
        (tmp_path / "mcp.toml").write_text(text)
        settings = load(tmp_path / "mcp.toml", environ={"KERNELMCP_HOME": str(tmp_path / "home")})
        with open_home(tmp_path / "home", tmp_path / "run") as home, anyio.fail_after(DEADLINE):
            async with open_upstreams(settings, home) as upstreams:
                yield upstreams

    return opened


@pytest.fixture
def started() -> Iterator[Started]:
    """`started("crm_server.py", "--http", "0")`: the address of a server that listens; it says its port first."""
    processes: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str, path: str = "/mcp") -> str:
        process = start_python(HERE / program, *arguments, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{int(process.stdout.readline())}{path}"

    yield start
    for process in processes:
        process.kill()
        process.wait(DEADLINE)


def on_stdio(name: str, program: str, *arguments: str, more: str = "") -> str:
    """The lines of mcp.toml for a program of this folder."""
    # The others are plain Python, and about what becomes of a process.
    start = python_command if program == "crm_server.py" else lambda *command: [sys.executable, *map(str, command)]
    command, *args = start(HERE / program, *arguments)
    return f"[upstreams.servers.{name}]\ncommand = {command!r}\nargs = {args}\n{more}\n"


async def until(condition: Callable[[], bool]) -> None:
    """The test's deadline bounds it."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no one event
        await anyio.sleep(0.02)


async def ready(upstreams: Upstreams, name: str) -> None:
    await until(lambda: upstreams.status(name).state == "ready")
