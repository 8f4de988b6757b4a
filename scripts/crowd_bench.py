"""Many more sessions than live kernels: calls to random ones, each of which must find its variables."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
from hibernate_bench import Found, client
from mcp import Client

from tests.prepared_home import prepared_home

LIVE = 20
AT_ONCE = 2
"""Calls under way at a time: one a core."""
FILL = "import os, hashlib; data = os.urandom(1 << 20); hashlib.sha256(data).hexdigest()"
USE = "hashlib.sha256(data).hexdigest()"


async def measure_crowd(folder: Path, sessions: int, calls: int) -> list[Found]:
    """Rows of the table: what, unit, ours, beside, bar, note."""
    limits = {"SESSIONS__MAX_SESSIONS": str(LIVE), "SESSIONS__MAX_SESSIONS_PER_CLIENT": str(LIVE)}
    with prepared_home() as home:
        async with client(home, folder, **limits, SESSIONS__MAX_STORED=str(2 * sessions)) as one:
            server = next(each for each in psutil.Process().children() if "kernelmcp" in " ".join(each.cmdline()))
            crowd = Crowd(one, sessions)
            await crowd.fill()
            filled_mb = server.memory_info().rss / 1e6
            await crowd.use(calls)
            used_mb = server.memory_info().rss / 1e6
            stored = sum(file.stat().st_blocks * 512 for file in (home / "sessions").rglob("*") if file.is_file())
    woken = sorted(crowd.took)
    what = f"{sessions} sessions of 1 MB, {LIVE} live, {calls} random calls"
    return [
        (f"{what}: refused or failed", "", crowd.failed, None, 0.0, ""),
        (f"{what}: with other variables", "", crowd.wrong, None, 0.0, ""),
        ("a call that wakes its session", "ms", statistics.median(woken), None, 250.0, f"p50 of {len(woken)}"),
        ("a call that wakes its session", "ms", woken[len(woken) * 99 // 100], None, 800.0, "p99"),
        ("the server's memory", "MB", used_mb, filled_mb, None, "after the calls, and before them"),
        ("on disk for each session", "MB", stored / sessions / 1e6, None, 5.0, ""),
    ]


class Crowd:
    """The sessions, what their variables must be, and what was seen."""

    def __init__(self, one: Client, sessions: int) -> None:
        self._one = one
        self._expected = {f"s{number}": "" for number in range(sessions)}
        self._busy: set[str] = set()
        self.took: list[float] = []
        """Of calls that woke their session, in ms."""
        self.failed = self.wrong = 0

    async def fill(self) -> None:
        async with anyio.create_task_group() as tasks:
            names = iter(self._expected)
            for _ in range(AT_ONCE):
                tasks.start_soon(self._fill, names)

    async def _fill(self, names: Iterator[str]) -> None:
        for name in names:
            self._expected[name] = (await self._run(name, FILL)).split("'")[1]

    async def use(self, calls: int) -> None:
        async with anyio.create_task_group() as tasks:
            numbers = iter(range(calls))
            for _ in range(AT_ONCE):
                tasks.start_soon(self._use, numbers)

    async def _use(self, numbers: Iterator[int]) -> None:
        for _ in numbers:
            name = random.choice([name for name in self._expected if name not in self._busy])
            self._busy.add(name)
            began = time.perf_counter()
            found = await self._run(name, USE)
            took = 1e3 * (time.perf_counter() - began)
            self._busy.discard(name)
            if "variables are back" in found:
                self.took.append(took)
            self.wrong += self._expected[name] not in found

    async def _run(self, session: str, code: str) -> str:
        found = await self._one.call_tool("execute_code", {"code": code, "session_id": session})
        self.failed += found.is_error is True
        return " ".join(block.text for block in found.content if block.type == "text")
