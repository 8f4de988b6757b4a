"""What it costs to save the variables of a session, to have them back, to fork it, and to checkpoint each cell."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
from mcp import Client, StdioServerParameters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.prepared_home import prepared_home
from tests.pyodide_packages import pyodide_folder

ROUNDS = 9
SETTLE_SECONDS = 4.0
"""Until the pool has its next kernel, and that has looked at its pages."""

SMALL = "x, words = 1, ['a', 'b']\ndef double(n): return 2 * n"
TEN_MB = "numbers = {i: str(i) for i in range(100_000)}"
SCIENCE = """import pandas as pd, matplotlib.pyplot as plt
frame = pd.DataFrame({'a': range(1000), 'b': ['x', 'y'] * 500})
figure, axes = plt.subplots(); axes.plot([1, 3, 2])"""
CASES = {  # code, a cell that uses it, its result, restored within ms, saved within ms, bytes on the disk
    "a small session": (SMALL, "double(x)", "2", 100.0, None, 3e6),
    "10 MB of variables": (TEN_MB, "len(numbers)", "100000", 150.0, 200.0, 6e6),
    "pandas and a figure": (SCIENCE, "frame.a.sum(), len(figure.axes)", "(np.int64(499500), 1)", 250.0, None, None),
}

Found = tuple[str, str, float, float | None, float | None, str]


async def measure_hibernation(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, ours, beside, bar, note."""
    rows: list[Found] = []
    with prepared_home() as home:
        for name, (fill, use, result, restored_bar, saved_bar, bytes_bar) in CASES.items():
            # With this, the warm kernels have the image of the packages, as a restored session with pandas needs it.
            more = {"PACKAGES__PREINSTALLED": '["pandas", "matplotlib"]'} if fill == SCIENCE else {}
            before = len(_images(home))
            async with client(home, folder, **more) as one:
                while more and len(_images(home)) == before:  # noqa: ASYNC110  # it is made meanwhile
                    await anyio.sleep(1)
                saved, restored, size = await _rounds(one, home, fill, use, result)
                rows.append((f"restore to the first result, {name}", "ms", restored, None, restored_bar, "p50"))
                rows.append((f"save, {name}", "ms", saved, None, saved_bar, "p50, stop_session"))
                rows.append((f"on disk, {name}", "bytes", size, None, bytes_bar, ""))
        rows.append(await _cold(home, folder))
        rows.append(await _end(home, folder))
        rows += await _forks(home, folder)
        rows += await _checkpoints(home, folder)
    return rows


@asynccontextmanager
async def client(home: Path, folder: Path, **settings: str) -> AsyncIterator[Client]:
    environment = {
        **os.environ,
        "KERNELMCP_HOME": str(home),
        "KERNELMCP_SERVER__RUNTIME": str(folder / "r"),
        "KERNELMCP_PACKAGES__PYODIDE_URL": str(pyodide_folder()),
        "KERNELMCP_LOGGING__LEVEL": "error",
        "KERNELMCP_SESSIONS__AUTOMATIC_CHECKPOINTS": "0",
        **{f"KERNELMCP_{name}": value for name, value in settings.items()},
    }
    async with Client(
        StdioServerParameters(command=sys.executable, args=["-P", "-m", "kernelmcp"], env=environment)
    ) as made:
        yield made


async def _rounds(one: Client, home: Path, fill: str, use: str, result: str) -> tuple[float, float, float]:
    await _run(one, fill)
    saves: list[float] = []
    restores: list[float] = []
    size = 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await one.call_tool("stop_session", {"session_id": "s"})
        saves.append(1e3 * (time.perf_counter() - began))
        size = _states(home)[0]
        await anyio.sleep(SETTLE_SECONDS)
        took, text = await _run(one, use)
        if result not in text or "variables are back" not in text:
            raise RuntimeError(f"not restored: {text}")
        restores.append(took)
    await one.call_tool("destroy_session", {"session_id": "s"})
    return statistics.median(saves), statistics.median(restores), size


async def _run(one: Client, code: str, session: str = "s") -> tuple[float, str]:
    began = time.perf_counter()
    found = await one.call_tool("execute_code", {"code": code, "session_id": session})
    took = 1e3 * (time.perf_counter() - began)
    return took, " ".join(block.text for block in found.content if block.type == "text")


async def _cold(home: Path, folder: Path) -> Found:
    """Without a pool: a fresh process that loads 10 MB, beside one that loads nothing."""
    loads: list[float] = []
    starts: list[float] = []
    async with client(home, folder, SESSIONS__WARM_POOL_SIZE="0") as one:
        await _run(one, TEN_MB)
        for number in range(ROUNDS):
            await one.call_tool("stop_session", {"session_id": "s"})
            took, _ = await _run(one, "len(numbers)")
            loads.append(took)
            took, _ = await _run(one, "1", f"cold{number}")
            starts.append(took)
            await one.call_tool("destroy_session", {"session_id": f"cold{number}"})
        await one.call_tool("destroy_session", {"session_id": "s"})
    ours, beside = statistics.median(loads), statistics.median(starts)
    return ("restore of 10 MB in a fresh process, beside a cold start", "ratio", ours / beside, None, 1.2,
            f"{ours:.0f} and {beside:.0f} ms")  # fmt: skip


async def _end(home: Path, folder: Path) -> Found:
    async with client(home, folder) as one:
        await _run(one, TEN_MB)
        began = time.perf_counter()
    took = 1e3 * (time.perf_counter() - began)
    if not _states(home):
        raise RuntimeError("the session was not saved")
    return ("end of a server with a session of 10 MB", "ms", took, None, 3000.0, "saved")


async def _forks(home: Path, folder: Path) -> list[Found]:
    rows: list[Found] = []
    async with client(home, folder) as one:
        for name, bar in (("a small session", 100.0), ("10 MB of variables", 200.0)):
            fill, use, result, *_ = CASES[name]
            await _run(one, fill, "origin")
            forks: list[float] = []
            for number in range(ROUNDS):
                await anyio.sleep(SETTLE_SECONDS)
                began = time.perf_counter()
                await one.call_tool("create_session", {"from_session": "origin", "session_id": f"fork{number}"})
                _, text = await _run(one, use, f"fork{number}")
                forks.append(1e3 * (time.perf_counter() - began))
                if result not in text:
                    raise RuntimeError(f"not forked: {text}")
                await one.call_tool("destroy_session", {"session_id": f"fork{number}"})
            await one.call_tool("destroy_session", {"session_id": "origin"})
            rows.append((f"fork to the first result, {name}", "ms", statistics.median(forks), None, bar, "p50"))
    limits = {"SESSIONS__MAX_SESSIONS_PER_CLIENT": "32", "SESSIONS__WARM_POOL_SIZE": "20"}
    async with client(home, folder, **limits) as one:
        await _run(one, SMALL, "origin")
        await anyio.sleep(10 * SETTLE_SECONDS)  # until 20 kernels wait
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(one.call_tool, "create_session", {"from_session": "origin"})
        rows.append(("20 forks of a small session", "s", time.perf_counter() - began, None, 2.0, "20 warm kernels"))
    return rows


async def _checkpoints(home: Path, folder: Path) -> list[Found]:
    cells = 12
    spent: dict[str, float] = {}
    took: dict[str, float] = {}
    for most in ("20", "0"):
        async with client(home, folder, SESSIONS__AUTOMATIC_CHECKPOINTS=most, SESSIONS__WARM_POOL_SIZE="0") as one:
            await _run(one, SMALL)
            await anyio.sleep(SETTLE_SECONDS)
            before = _processor_seconds()
            times: list[float] = []
            for _ in range(cells):
                times.append((await _run(one, "x += 1"))[0])
                await anyio.sleep(SETTLE_SECONDS)
            spent[most], took[most] = _processor_seconds() - before, statistics.median(times)
            await one.call_tool("destroy_session", {"session_id": "s"})
    each = 1e3 * (spent["20"] - spent["0"]) / cells
    return [
        ("processor time of a checkpoint after a small cell", "ms", each, None, 50.0, "all processes"),
        ("a small cell with automatic checkpoints, beside one without", "ms", took["20"], took["0"], None, "p50"),
    ]  # fmt: skip


def _processor_seconds() -> float:
    """Of all processes below this one."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def _images(home: Path) -> list[Path]:
    """The lists of the packages of prepared images."""
    return list(home.rglob("images/*.json"))


def _states(home: Path) -> list[int]:
    """The sizes of the saved states, in bytes."""
    return [file.stat().st_size for file in home.glob("sessions/*/state")]
