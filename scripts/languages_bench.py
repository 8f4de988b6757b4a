"""What a further language costs: its first cell in a fresh kernel, a call beside one of Python's, its memory."""

from __future__ import annotations

import statistics
from pathlib import Path

import psutil
import zmq.asyncio
from bench_kernels import Kernel, kernel

CELLS = {"shell": "%%bash\ntrue", "javascript": "%%js\n1"}
PYTHON = "x += 1"
STARTS = 10
START_MS = 150.0
CALL_RATIO = 2.0

Found = tuple[str, str, float, float | None, float | None, str]


async def measure_languages(folder: Path, rounds: int) -> list[Found]:
    """Rows of the table: what, unit, ours, Python's, bar, note."""
    context = zmq.asyncio.Context()
    rows: list[Found] = []
    for language, cell in CELLS.items():
        starts: list[float] = []
        memory, ratio = 0.0, (0.0, 0.0)
        for number in range(STARTS):
            async with kernel(context, "kernelmcp", folder) as running:
                await running.run("x = 0")
                before = _children(running)
                starts.append((await running.run(cell))[0])
                memory = sum(guest.memory_full_info().uss for guest in _children(running) - before) / 1e6
                if number == STARTS - 1:
                    ratio = await _calls(running, cell, rounds)
        rows.append((f"first {language} cell of a kernel, p50", "ms", statistics.median(starts), None, START_MS, ""))
        rows.append((f"{language} cell beside `x += 1`, p50", "ms", *ratio, CALL_RATIO, "beside Python's here"))
        rows.append((f"private memory (USS) of a {language} guest", "MB", memory, None, None, ""))
    context.destroy(linger=0)
    return rows


async def _calls(running: Kernel, cell: str, rounds: int) -> tuple[float, float]:
    """Milliseconds of a cell of the language, and of one of Python's a moment before."""
    times: dict[str, list[float]] = {PYTHON: [], cell: []}
    for _ in range(rounds):
        for code, found in times.items():
            found.append((await running.run(code))[0])
    return statistics.median(times[cell]), statistics.median(times[PYTHON])


def _children(running: Kernel) -> set[psutil.Process]:
    return set(psutil.Process(running.pid).children(recursive=True))
