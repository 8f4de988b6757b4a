"""What a hostile neighbour costs: calls of a good upstream beside each kind of hostile one, and beside none.

Two servers over HTTP run at the same time, and the calls are made in turn: one has the good upstream alone, the other
has a hostile one too (tests/upstreams/hostile_http_server.py). Where the harm is in the answer of a call, four calls of
another session wait for it meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
from http_bench import http_server
from mcp import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.upstreams.hostile_http_server import IN_CALLS, UNASKED

PROGRAM = Path(__file__).resolve().parents[1] / "tests" / "upstreams" / "hostile_http_server.py"
ROUNDS, CALLS = 10, 10
SLOWER_BAR_MS, MEMORY_BAR_MB, HEALTH_BAR_MS, END_BAR_MS = 50.0, 300.0, 1000.0, 3000.0

Found = tuple[str, str, float, float | None, float | None, str]

READY = "import servers\nfor name in {names}: await servers.callMCPTool(f'{{name}}.echo', {{'value': 'good'}})"
TIMED = f"""
import json, time, servers
found = []
for _ in range({CALLS}):
    began = time.perf_counter()
    await servers.callMCPTool("good.echo", {{"value": "good"}})
    found.append(1e3 * (time.perf_counter() - began))
print(json.dumps(found))
"""
WAITING = """
import asyncio, servers
async def one():
    try:
        await servers.callMCPTool("bad.echo", {"value": "wrong"})
    except servers.ToolError:
        pass
while True:
    await asyncio.gather(*[one() for _ in range(4)])
"""


async def measure_neighbours(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, beside a hostile one, beside none, bar, note."""
    rows: list[Found] = []
    async with _serving(folder / "alone") as (alone, _, _):
        for how in (*UNASKED, *IN_CALLS):
            rows += await _beside(folder / how, how, alone)
    return rows


async def _beside(folder: Path, how: str, alone: Client) -> list[Found]:
    times: dict[str, list[float]] = {"alone": [], "beside": []}
    health: list[float] = []
    async with _serving(folder, how) as (beside, url, pid):
        waiting = asyncio.ensure_future(_run(beside, WAITING, "other") if how in IN_CALLS else asyncio.sleep(0))
        peak = 0.0
        for _ in range(ROUNDS):
            for where, client in (("alone", alone), ("beside", beside)):
                times[where] += json.loads((await _run(client, TIMED, "mine"))["stdout"])
            peak = max(peak, psutil.Process(pid).memory_info().rss / 1e6)
            health.append(await _health(url))
        waiting.cancel()
        await asyncio.wait([waiting])
        began = time.perf_counter()
        os.kill(pid, signal.SIGINT)  # at once: what runs is interrupted
        with anyio.fail_after(60):
            while _is_running(pid):  # noqa: ASYNC110  # another process's end
                await anyio.sleep(0.01)
        end = 1e3 * (time.perf_counter() - began)
    worst, of_alone = max(times["beside"]), max(times["alone"])
    slower = statistics.median(times["beside"]) - statistics.median(times["alone"])
    medians = f"medians {statistics.median(times['beside']):.1f} and {statistics.median(times['alone']):.1f} ms"
    return [
        (f"{how}: a good neighbour's call is slower by", "ms", slower, None, SLOWER_BAR_MS, medians),
        (f"{how}: worst call, beside it and beside none", "ms", worst, of_alone, None, ""),
        (f"{how}: memory of the server", "MB", peak, None, MEMORY_BAR_MB, ""),
        (f"{how}: /health, worst", "ms", max(health), None, HEALTH_BAR_MS, ""),
        (f"{how}: end of the server", "ms", end, None, END_BAR_MS, ""),
    ]


async def _health(url: str) -> float:
    began = time.perf_counter()
    async with httpx2.AsyncClient(verify=False) as http:
        (await http.get(url.removesuffix("/mcp") + "/health")).raise_for_status()
    return 1e3 * (time.perf_counter() - began)


def _is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@asynccontextmanager
async def _serving(folder: Path, how: str | None = None) -> AsyncIterator[tuple[Client, str, int]]:
    """A client of a server whose upstreams are ready, its URL, and its process."""
    with ExitStack() as upstreams:
        urls = {"good": upstreams.enter_context(_upstream("good"))}
        if how is not None:
            urls["bad"] = upstreams.enter_context(_upstream(how))
        settings = _settings(folder, urls)
        async with http_server(folder / "home", **settings) as (url, pid), Client(url, mode="legacy") as client:
            with anyio.fail_after(120):
                while (await _facts(client, READY.format(names=list(urls)), "mine"))["status"] != "ok":  # noqa: ASYNC110
                    await anyio.sleep(0.2)
            yield client, url, pid


def _settings(folder: Path, urls: dict[str, str]) -> dict[str, str]:
    rules = 'default = "allow"\nprincipals = ["anonymous"]\ntimeout_seconds = 3\n'
    tables = (f"[upstreams.servers.{name}]\nurl = {json.dumps(url)}\n{rules}" for name, url in urls.items())
    folder.mkdir()
    config = folder / "mcp.toml"
    config.write_text("".join(tables))
    return {"CONFIG_FILE": str(config), "UPSTREAMS__CALLS_PER_EXECUTION": "100000"}


@contextmanager
def _upstream(how: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(PROGRAM), how], stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None:
            raise RuntimeError("no stdout")
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}/mcp"
        finally:
            server.kill()


async def _facts(client: Client, code: str, session: str) -> dict[str, Any]:
    result = await client.call_tool("execute_code", {"code": code, "session_id": session, "timeout": 600})
    return result.structured_content or {}


async def _run(client: Client, code: str, session: str) -> dict[str, Any]:
    facts = await _facts(client, code, session)
    if facts.get("status") not in ("ok", "running"):
        raise RuntimeError(f"it did not run: {facts}")
    return facts
