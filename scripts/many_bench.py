"""Many live sessions at once: how many calls a second, how long each takes, and who waits while one computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
from hibernate_bench import Found, client
from mcp import Client

from tests.prepared_home import prepared_home

LEVELS = (1, 10, 50, 200)
"""Live sessions, each of which has one call under way all the time."""
CALLS = 2000
"""Of each level, over all its sessions."""
WARM_UP = 5
"""Calls of each session before that."""
FAIR_CALLS = 500
STARTED_AT_ONCE = 4


async def measure_many(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, ours, beside, bar, note."""
    live = str(LEVELS[-1] + 1)
    limits = {"SESSIONS__MAX_SESSIONS": live, "SESSIONS__MAX_SESSIONS_PER_CLIENT": live}
    rows: list[Found] = []
    rates: dict[int, float] = {}
    with prepared_home() as home:
        async with client(home, folder, **limits) as one:
            sessions = Sessions(one)
            for level in LEVELS:
                await sessions.open(level)
                began = time.perf_counter()
                took = sorted(await sessions.call(level, CALLS))
                rates[level] = len(took) / (time.perf_counter() - began)
                median, slow = statistics.median(took), took[len(took) * 99 // 100]
                note = f"p99; p50 {median:.0f} ms; {rates[level]:.0f} calls a second"
                rows.append((f"{level} sessions, each calling", "ms", slow, None, None, note))
            took = sorted(await sessions.beside_one_that_computes())
    share = rates[10] / rates[LEVELS[-1]]
    median, slow = statistics.median(took), took[len(took) * 99 // 100]
    return [
        *rows,
        (f"calls a second of 10 sessions, to those of {LEVELS[-1]}", "", share, None, 1 / 0.8, ""),
        (f"{LEVELS[-1]} sessions: calls that failed", "", sessions.failed, None, 0.0, ""),
        ("a call while another session computes: p99, and p50", "ms", slow, median, 10.0, ""),
    ]


class Sessions:
    """The sessions of one server, and what their calls were."""

    def __init__(self, one: Client) -> None:
        self._one = one
        self._opened = 0
        self.failed = 0

    async def open(self, level: int) -> None:
        names = iter(range(self._opened, level))
        async with anyio.create_task_group() as tasks:
            for _ in range(STARTED_AT_ONCE):
                tasks.start_soon(self._warm_up, names)
        self._opened = level

    async def _warm_up(self, names: Iterator[int]) -> None:
        for name in names:
            for _ in range(WARM_UP):
                await self._run(name, "x = 1")

    async def call(self, level: int, calls: int) -> list[float]:
        took: list[float] = []
        left = iter(range(calls))

        async def caller(name: int) -> None:
            took.extend([await self._run(name, "x += 1") for _ in left])

        async with anyio.create_task_group() as tasks:
            for name in range(level):
                tasks.start_soon(caller, name)
        return took

    async def beside_one_that_computes(self) -> list[float]:
        took: list[float] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._compute)
            while "s1: busy" not in await self._state():
                pass
            took += [await self._run(0, "x += 1") for _ in range(FAIR_CALLS)]
            await self._one.call_tool("cancel_execution", {"session_id": "s1"})
        return took

    async def _state(self) -> str:
        found = await self._one.call_tool("get_sessions", {"session_id": "s1"})
        return " ".join(block.text for block in found.content if block.type == "text")

    async def _compute(self) -> None:
        with suppress(Exception):
            await self._one.call_tool("execute_code", {"code": "while True: pass", "session_id": "s1"})

    async def _run(self, name: int, code: str) -> float:
        began = time.perf_counter()
        found = await self._one.call_tool("execute_code", {"code": code, "session_id": f"s{name}"})
        self.failed += found.is_error is True
        return 1e3 * (time.perf_counter() - began)
