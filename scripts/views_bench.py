"""How fast views are, in a browser, and what they cost: pixels after a result, and calls beside readers."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder
from tests.views.rig import UI, Host, chromium, dumped, host_page

ROUNDS, CHART_ROUNDS, STRIPS, READERS, READS, CALLS = 40, 3, 40, 20, 1000, 60
PIXELS_BAR_MS, CHART_BAR_MS, STRIP_BAR_PX, DELAY_BAR_MS = 150.0, 3000.0, 30.0, 50.0
LIST_BAR_BYTES, DOCUMENT_BAR_BYTES, LIBRARY_BAR_BYTES = 150.0, 60_000.0, 1_000_000.0

CELLS = {
    "text": "print('a line')",
    "table": "pd.DataFrame({'a': range(200), 'b': ['x', 'y'] * 100})",
    "PNG": "plt.plot([1, 3, 2]); plt.show()",
}
SETUP = "%pip install -q plotly\nimport pandas as pd, matplotlib.pyplot as plt, plotly.graph_objects as go"
VEGA = {"data": {"values": [{"a": "x", "b": 1}, {"a": "y", "b": 2}]}, "mark": "bar"}
CHARTS = {
    "vega": f"display({{'application/vnd.vegalite.v6+json': {VEGA}, 'text/plain': 'c'}}, raw=True)",
    "plotly": "go.Figure(go.Bar(y=[1, 3, 2]))",
}

Found = tuple[str, str, float, float | None, float | None, str]


async def measure_views(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, with views, without, bar, note."""
    rows: list[Found] = []
    with unpacked_home() as home:
        async with client(home, folder) as one, client(home, folder, views=False) as plain:
            more = len(json.dumps(dumped(await one.list_tools()))) - len(json.dumps(dumped(await plain.list_tools())))
            rows.append(("tools/list, longer", "bytes", more, None, LIST_BAR_BYTES, ""))
            for name in ("vega", "plotly"):
                size = len((await one.read_resource(f"kernelmcp://views/{name}")).contents[0].model_dump_json())
                rows.append((f"library {name}, as read", "bytes", size, None, LIBRARY_BAR_BYTES, ""))
            await one.call_tool("execute_code", {"code": SETUP})
            async with chromium() as browser:
                async with host_page(browser, one) as host:
                    rows.append(("document", "bytes", len(host.html.encode()), None, DOCUMENT_BAR_BYTES, ""))
                for name, code in CELLS.items():
                    async with host_page(browser, one) as host:
                        rows.append(await _pixels(host, name, code))
                async with host_page(browser, one) as host:
                    for name, code in CHARTS.items():
                        rows.append(await _chart(host, name, code))
                async with host_page(browser, one) as host:
                    views = [await host.run("x = 1") for _ in range(STRIPS)]
                    heights = [await view.height() for view in views]
                    rows.append((f"{STRIPS} views of x = 1, highest", "px", max(heights), None, STRIP_BAR_PX, ""))
            rows.append(await _crowd(one))
    return rows


def client(home: Path, folder: Path, *, views: bool = True) -> Client:
    environment = {
        **os.environ,
        "KERNELMCP_HOME": str(home if views else folder / "plain"),
        "KERNELMCP_SERVER__RUNTIME": str(folder / ("v" if views else "p")),
        "KERNELMCP_PACKAGES__PYODIDE_URL": str(pyodide_folder()),
    }
    server = StdioServerParameters(command=sys.executable, args=["-P", "-m", "kernelmcp"], env=environment)
    return Client(server, extensions=UI if views else None)


async def _pixels(host: Host, name: str, code: str) -> Found:
    times: list[float] = []
    for _ in range(ROUNDS):
        view = await host.run(code)
        times.append(await view.marked("pixels"))
    ninety_fifth = statistics.quantiles(times, n=20)[-1]
    return (
        f"result to pixels, {name}, p95",
        "ms",
        ninety_fifth,
        None,
        PIXELS_BAR_MS,
        f"median {statistics.median(times):.0f}",
    )


async def _chart(host: Host, name: str, code: str) -> Found:
    times: list[float] = []
    for _ in range(CHART_ROUNDS):
        view = await host.run(code)
        times.append(await view.marked("chart"))
    return (f"result to chart, {name}, slowest", "ms", max(times), None, CHART_BAR_MS, "")


async def _crowd(one: Client) -> Found:
    """Calls of a session, alone and while readers read the pages of another one."""
    result = await one.call_tool(
        "execute_code", {"code": "for n in range(200): print('line', n)", "session_id": "read"}
    )
    address = f"kernelmcp://executions/{dumped(result)['_meta']['kernelmcp/result']['execution_id']}/view?wait=0"
    await one.call_tool("execute_code", {"code": "x = 1", "session_id": "called"})
    alone = await _calls(one)
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            for _ in range(READS // READERS):
                await one.read_resource(address)

        for _ in range(READERS):
            tasks.start_soon(read)
        beside = await _calls(one)
    more = statistics.median(beside) - statistics.median(alone)
    note = f"{statistics.median(alone):.1f} ms alone"
    return (f"a call beside {READERS} readers, longer (median)", "ms", more, None, DELAY_BAR_MS, note)


async def _calls(one: Client) -> list[Any]:
    times: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await one.call_tool("execute_code", {"code": "x = 1", "session_id": "called"})
        times.append(1e3 * (time.perf_counter() - began))
    return times
