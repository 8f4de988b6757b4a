"""Sessions whose kernels are objects of the test: they answer at once or when they are interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio

from kernelmcp.config.models import Config, Flavor
from kernelmcp.config.settings import Settings, Values
from kernelmcp.errors import KernelDied, KernelStartFailed
from kernelmcp.files.home import Home, open_home
from kernelmcp.kernel.pool import Pool, PooledKernel
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry

CALLER = Caller("token:a", lambda: None)
# A cell that runs until it is interrupted.
LONG = "while True: pass"
PICTURE = {"data": {"image/png": "A" * 5_000_000}, "metadata": dict[str, Any]()}


class FakeKernel:
    """Runs each cell at once, and those in `long` until it is interrupted."""

    def __init__(self) -> None:
        self.ended, self.lives, self.pid = asyncio.Event(), True, 0
        self.why_ended = ""
        self.connection_file = Path("connection.json")
        self.connection = SimpleNamespace(listener=None)
        self.cells: list[str] = []
        self.long = {LONG}
        self.waits: asyncio.Future[dict[str, Any]] | None = None

    async def execute(self, code: str, on_output: Any, **_: Any) -> dict[str, Any]:
        self.cells.append(code)
        if on_output is not None:
            on_output("execute_input", {})
        if code not in self.long:
            return {"content": {"status": "ok", "execution_count": len(self.cells)}}
        if on_output is not None:
            on_output("display_data", PICTURE)
        self.waits = asyncio.get_running_loop().create_future()
        return await self.waits

    def interrupt(self, _grace_seconds: float | None = None) -> None:
        if self.waits is not None and not self.waits.done():
            error = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": list[str]()}
            self.waits.set_result({"content": error})

    def kill(self) -> None:
        self.fail("it was ended")

    def fail(self, reason: str) -> None:
        self.lives = False
        asyncio.get_running_loop().call_later(0.01, self.ended.set)  # its last messages are on their way
        if self.waits is not None and not self.waits.done():
            self.waits.set_exception(KernelDied(reason))


class FakePool:
    """Starts a kernel at once."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.is_full = False
        self.gate = asyncio.Event()
        """Kernels come while it is set."""
        self.gate.set()

    async def take(self, _flavor: Flavor) -> PooledKernel:
        await self.gate.wait()
        if self.is_full:
            raise KernelStartFailed("no room")
        return PooledKernel(cast("Any", FakeKernel()), self._home.new_sandbox())


def settings_of(folder: Path, **sections: Any) -> Settings:
    config = {
        "server": {"home": folder / "home", "runtime": folder / "run"},
        "sessions": {"hibernate": False, "automatic_checkpoints": 0},
        **sections,
    }
    return Settings(Values(config=Config.model_validate(config)))


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[tuple[Registry, FakePool]]:
    with open_home(settings.home, settings.config.server.runtime) as home:
        async with anyio.create_task_group() as tasks:
            pool = FakePool(home)
            registry = Registry(settings, home, cast("Pool", pool), tasks)
            yield registry, pool
            await registry.close()
            tasks.cancel_scope.cancel()
