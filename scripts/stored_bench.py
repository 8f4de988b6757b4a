"""A start with 5,000 stored sessions beside an empty home: `initialize`, the first cell, and `get_sessions`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters

sys.path.insert(0, str(Path(__file__).parents[1]))  # the generator of sessions is the tests'

COUNT = 5_000
BAR = 1.2
# Of a page of 50 sessions, the first time.
LIST_BAR_MS = 1_000.0


async def measure_stored(folder: Path, rounds: int) -> list[tuple[Any, ...]]:
    """Rows: what, unit, ours, beside, bar."""
    from tests.server.stored_sessions import store_sessions

    empty, full = folder / "empty", folder / "full"
    store_sessions(full, COUNT)
    found: dict[Path, list[tuple[float, float, float]]] = {empty: [], full: []}
    for _ in range(rounds):
        for home, times in found.items():
            times.append(await _start(home))

    def p50(home: Path, number: int) -> float:
        return sorted(times[number] for times in found[home])[rounds // 2]

    what = f"{COUNT:,} stored sessions beside none"
    return [
        (f"{what}: spawn to initialize", "ms", p50(full, 0), p50(empty, 0), BAR),
        (f"{what}: spawn to first cell", "ms", p50(full, 1), p50(empty, 1), BAR),
        (f"{what}: the first get_sessions", "ms", p50(full, 2), None, LIST_BAR_MS),
    ]


async def _start(home: Path) -> tuple[float, float, float]:
    """Milliseconds from the spawn to the answer of initialize, and of the first cell; and those that a list takes."""
    env = {**os.environ, "KERNELMCP_HOME": str(home), "KERNELMCP_LOGGING__LEVEL": "error"}
    begin = time.perf_counter()
    async with Client(StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=env)) as client:
        answered = time.perf_counter()
        await client.call_tool("execute_code", {"code": "1"})
        ran = time.perf_counter()
        await client.call_tool("get_sessions", {})
        listed = time.perf_counter()
    return (answered - begin) * 1e3, (ran - begin) * 1e3, (listed - ran) * 1e3
