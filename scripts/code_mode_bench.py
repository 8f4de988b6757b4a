"""What a tool of another MCP server costs when code in the sandbox calls it, beside mcp's own client, in one run.

Both have an upstream of their own, of the same program (tests/upstreams/crm_server.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters

CRM = Path(__file__).resolve().parents[1] / "tests" / "upstreams" / "crm_server.py"
CALLS = 100
# Of each of the two ways, in turn. The first rounds warm up what is compiled and imported when it is needed.
ROUNDS, WARM = 15, 3
ROLES = ("guest", "kernel", "server", "upstream")
CPU_BAR, PARALLEL_BAR, DELAY_BAR_MS = 3.0, 1.3, 100.0

Found = tuple[str, str, float, float | None, float | None, str]

IN_TURN = f"""
for number in range({CALLS}):
    get_deal(id="deal_7")
"""
AT_ONCE = f"""
began = time.perf_counter()
found = await asyncio.gather(*[get_deal.aio(id="deal_7") for _ in range({CALLS})])
print(time.perf_counter() - began, len(found))
"""
LARGE_CELL = """
{imports}
try:
    found = {call}
    print(len(found) if isinstance(found, str) else list(found)[0])
except Exception as exc:
    print(type(exc).__name__)
"""
LARGE = {
    "a text of 50 MB over stdio, above result_mb": ("crm", "big(mb=50)", "LimitExceeded"),
    "a text of 50 MB over HTTP, above result_mb": ("web", "big(mb=50)", "LimitExceeded"),
    "a text of 50 MB over stdio": ("crm", "big(mb=50)", "50000000"),
    "a text of 50 MB over HTTP": ("web", "big(mb=50)", "50000000"),
    "10 MB of structured rows over stdio": ("crm", "big(mb=10, rows=True)", "rows"),
    "10 MB of structured rows over HTTP": ("web", "big(mb=10, rows=True)", "rows"),
    "8 MB of arguments": ("crm", "create_ticket(name='n' * 8_000_000)", "id"),
}


async def measure_code_mode(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, ours, the direct client's, bar, note."""
    direct = StdioServerParameters(command=sys.executable, args=[str(CRM)])
    async with _serving(folder) as (ours, pid), Client(direct) as client:
        await _execute(ours, "import asyncio, time\nfrom servers.crm import get_deal", "a")
        await client.list_tools()
        rows = await _in_turn(ours, pid, client)
        rows += await _at_once(ours, client)
    with _over_http() as url:
        for what, (server, call, expected) in LARGE.items():
            limit = 16 if "above" in what else 64
            async with _serving(folder, url=url, result_mb=limit) as (ours, pid):
                rows += await _large(
                    ours, pid, what, f"from servers.{server} import {call.partition('(')[0]}", call, expected
                )
    return rows


# -- one call after the other, and many at once ----------------------------------------------------------------------


async def _in_turn(ours: Client, server: int, client: Client) -> list[Found]:
    """Processor time of a call in all processes that work on it: ours with the guest's, the client's."""
    tree, upstream = _tree(server), _upstream_of(os.getpid(), not_in=_tree(server))
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "direct": []}
    parts: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        before, began = {process: _cpu(process) for process in tree}, time.perf_counter()
        await _execute(ours, IN_TURN, "a")
        spent = {process: _cpu(process) - before[process] for process in tree}
        times["ours"].append((sum(spent.values()), time.perf_counter() - began))
        for role in ROLES:
            parts.setdefault(role, []).append(sum(spent[each] for each in tree if _role(each, server) == role))
        own, began, cpu = psutil.Process(), time.perf_counter(), _cpu(upstream)
        cpu += _cpu(own)
        for _ in range(CALLS):
            await client.call_tool("get_deal", {"id": "deal_7"})
        times["direct"].append((_cpu(upstream) + _cpu(own) - cpu, time.perf_counter() - began))
    cpu, wall = (
        {way: 1e3 / CALLS * statistics.median([t[i] for t in found[WARM:]]) for way, found in times.items()}
        for i in (0, 1)
    )
    note = ", ".join(f"{role} {1e3 / CALLS * statistics.median(found[WARM:]):.1f}" for role, found in parts.items())
    return [
        ("processor time of a call from a cell, all processes", "ms", cpu["ours"], cpu["direct"], CPU_BAR, note),
        ("a call from a cell, one after the other", "ms", wall["ours"], wall["direct"], None, ""),
    ]


async def _at_once(ours: Client, client: Client) -> list[Found]:
    times: dict[str, list[float]] = {"ours": [], "cell": [], "direct": []}
    for _ in range(2 * ROUNDS):
        began = time.perf_counter()
        took, count = (await _execute(ours, AT_ONCE, "a"))["stdout"].split()
        assert int(count) == CALLS
        times["cell"].append(time.perf_counter() - began)
        times["ours"].append(float(took))
        began = time.perf_counter()
        await asyncio.gather(*[client.call_tool("get_deal", {"id": "deal_7"}) for _ in range(CALLS)])
        times["direct"].append(time.perf_counter() - began)
    took_ms = {way: 1e3 * statistics.median(found[WARM:]) for way, found in times.items()}
    fastest = f"fastest {1e3 * min(times['ours']):.0f} and {1e3 * min(times['direct']):.0f}"
    note = f"with the cell around it {took_ms['cell']:.0f} ms; {fastest}"
    return [(f"{CALLS} calls at once", "ms", took_ms["ours"], took_ms["direct"], PARALLEL_BAR, note)]


# -- large results ----------------------------------------------------------------------------------------------------


async def _large(ours: Client, pid: int, what: str, imports: str, call: str, expected: str) -> list[Found]:
    """The server's memory, and how long another session's execution takes meanwhile beyond what it takes alone."""
    code = LARGE_CELL.format(imports=imports, call=call)
    await _execute(ours, imports, "a")
    await _execute(ours, "x = 0", "b")
    alone = [await _timed(ours) for _ in range(100)]
    peak = _Peak(pid)
    before = peak.megabytes
    beside: list[float] = []

    async def another() -> None:
        while True:
            beside.append(await _timed(ours))

    began = time.perf_counter()
    others = [asyncio.ensure_future(each) for each in (peak.watch(), another())]
    try:
        said = (await _execute(ours, code, "a"))["stdout"].strip()
        took = time.perf_counter() - began
        await anyio.sleep(0.5)
    finally:
        for each in others:
            each.cancel()
        await asyncio.wait(others)
    assert said == expected, said
    delay = 1e3 * (max(beside) - statistics.median(alone))
    baseline = f"alone {1e3 * statistics.median(alone):.1f} ms, at most {1e3 * max(alone):.1f}"
    note = f"{took:.1f} s; {len(beside)} executions beside it, {baseline}"
    return [
        (f"{what}: largest delay of another session", "ms", delay, None, DELAY_BAR_MS, note),
        (f"{what}: peak memory of the server", "MB", peak.megabytes, None, None, f"{before:.0f} before"),
    ]


async def _timed(ours: Client) -> float:
    began = time.perf_counter()
    await _execute(ours, "x += 1", "b")
    return time.perf_counter() - began


class _Peak:
    """The largest resident memory of a process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.megabytes = self._process.memory_info().rss / 1e6

    async def watch(self) -> None:
        while True:
            self.megabytes = max(self.megabytes, self._process.memory_info().rss / 1e6)
            await anyio.sleep(0.01)


# -- processes --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _serving(folder: Path, url: str = "", result_mb: int = 16) -> AsyncIterator[tuple[Client, int]]:
    """A client of a server with the upstream, which is ready; and the server's process."""
    tables = {"crm": f"command = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(CRM))}]"}
    if url:
        tables["web"] = f"url = {json.dumps(url)}"
    config = folder / "mcp.toml"
    text = f"[upstreams]\nresult_mb = {result_mb}\ndefault = 'allow'\n"
    config.write_text(text + "".join(f"[upstreams.servers.{name}]\n{more}\n" for name, more in tables.items()))
    env = {
        **os.environ,
        "KERNELMCP_CONFIG_FILE": str(config),
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_LOGGING__LEVEL": "error",
        "KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always",
    }
    server = StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=env)
    others = set(psutil.Process().children())
    async with Client(server) as ours:
        [process] = set(psutil.Process().children()) - others
        for name in tables:
            with anyio.fail_after(60):
                code = f"from servers.{name} import get_deal"
                while (await _facts(ours, code, "a"))["status"] != "ok":  # noqa: ASYNC110
                    await anyio.sleep(0.1)
        yield ours, process.pid


@contextmanager
def _over_http() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(CRM), "--http", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}/mcp"
        finally:
            server.kill()


async def _facts(ours: Client, code: str, session: str) -> dict[str, Any]:
    result = await ours.call_tool("execute_code", {"code": code, "session_id": session})
    return result.structured_content or {}


async def _execute(ours: Client, code: str, session: str) -> dict[str, Any]:
    facts = await _facts(ours, code, session)
    if facts.get("status") != "ok":
        raise RuntimeError(f"{code!r} did not run: {facts}")
    return facts


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _upstream_of(pid: int, not_in: list[psutil.Process]) -> psutil.Process:
    [found] = [each for each in psutil.Process(pid).children(recursive=True) if each not in not_in and _is_crm(each)]
    return found


def _is_crm(process: psutil.Process) -> bool:
    return str(CRM) in process.cmdline()


def _role(process: psutil.Process, server: int) -> str:
    if process.pid == server:
        return "server"
    if _is_crm(process):
        return "upstream"
    return "guest" if "--permission" in process.cmdline() else "kernel"


def _cpu(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0
