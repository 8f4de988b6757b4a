"""From a session to a table and a plot, where `kernelmcp setup minimal` was run: seconds, CPU seconds, memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters

ROOT = Path(__file__).resolve().parents[1]
TABLE = """import numpy as np
import pandas as pd
df = pd.DataFrame({"a": np.arange(1000.0), "b": np.arange(1000) ** 2})
df.describe()"""
PLOT = "df.plot();"
NATIVE = f"""import matplotlib
matplotlib.use("agg")
{TABLE.removesuffix("df.describe()")}
str(df.describe())
df.plot().figure.savefig("plot.png")"""
# Until the pool has its kernels again.
REFILL_SECONDS = 4.0

Found = tuple[str, str, float, float | None, float | None, str]


async def measure_science(folder: Path, rounds: int) -> list[Found]:
    """Rows of the table: what, unit, ours, native, bar, note."""
    sys.path.insert(0, str(ROOT))
    from tests.pyodide_packages import pyodide_folder

    environment = {
        **os.environ,
        "KERNELMCP_LOGGING__LEVEL": "warning",
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_PACKAGES__PYODIDE_URL": str(pyodide_folder()),
    }
    start = time.perf_counter()
    await anyio.run_process([sys.executable, "-m", "kernelmcp", "setup", "minimal"], env=environment)
    rows: list[Found] = [("kernelmcp setup minimal", "s", time.perf_counter() - start, None, None, "once")]
    what = "session to df.describe() and a plot's PNG"
    warm, used = await _sessions(environment, rounds)
    rows.append((f"{what}, warm kernel", "s", warm["both"], None, 1.5, f"describe {warm['table']:.2f}"))
    cold, _ = await _sessions(environment | {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0"}, rounds)
    rows.append((f"{what}, cold", "s", cold["both"], None, 3.0, f"describe {cold['table']:.2f}"))
    rows.append(("first cell is `import pandas`, warm kernel", "s", warm["import"], None, None, "another guest comes"))
    rows.append(("`import pandas` in a prepared session", "s", warm["again"], None, 0.3, ""))
    rows.append(("private memory (USS) of a guest with all three", "MB", used["memory"], None, 300, ""))
    native = _native(folder)
    rows.append(
        ("CPU seconds of both cells, guest from its start", "s", used["cpu"], native, None, "native: a process")
    )
    return rows


async def _sessions(environment: dict[str, str], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    server = StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=environment)
    times: dict[str, list[float]] = {"table": [], "both": [], "import": [], "again": []}
    used: dict[str, float] = {}
    async with Client(server) as client:
        for number in range(rounds):
            await anyio.sleep(REFILL_SECONDS)
            before = {process.pid for process in _guests()}
            start = time.perf_counter()
            await _run(client, TABLE, f"s{number}")
            times["table"].append(time.perf_counter() - start)
            await _run(client, PLOT, f"s{number}")
            times["both"].append(time.perf_counter() - start)
            largest = max((guest for guest in _guests() if guest.pid not in before), key=_private)
            spent = largest.cpu_times()
            used = {"memory": _private(largest) / 1e6, "cpu": spent.user + spent.system}
            await client.call_tool("destroy_session", {"session_id": f"s{number}"})
            await anyio.sleep(REFILL_SECONDS)
            start = time.perf_counter()
            await _run(client, "import pandas", f"i{number}")
            times["import"].append(time.perf_counter() - start)
            await _run(client, "del pandas", f"i{number}")
            start = time.perf_counter()
            await _run(client, "import pandas; pandas.DataFrame", f"i{number}")
            times["again"].append(time.perf_counter() - start)
            await client.call_tool("destroy_session", {"session_id": f"i{number}"})
    return {name: statistics.median(found) for name, found in times.items()}, used


def _guests() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if each.name() in ("node", "MainThread")]


def _private(process: psutil.Process) -> int:
    return process.memory_full_info().uss


async def _run(client: Client, code: str, session_id: str) -> Any:
    result = await client.call_tool("execute_code", {"code": code, "session_id": session_id})
    if (result.meta or {}).get("kernelmcp/result", {}).get("status") != "ok":
        raise RuntimeError(f"{code!r} did not run: {result}")
    return result


def _native(folder: Path) -> float:
    """CPU seconds of native Python, the second time: its bytecode and its fonts' list are there."""
    python = folder / "native" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "native")], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pandas", "matplotlib"], check=True)
    spent: list[float] = []
    for _ in range(2):
        before = os.times()
        subprocess.run([python, "-c", NATIVE], cwd=folder, check=True)
        after = os.times()
        spent.append(after.children_user - before.children_user + after.children_system - before.children_system)
    return spent[-1]
