"""Speed and memory of kernelmcp beside native ipykernel: interleaved, in one run, so that the ratios mean something.

Absolute figures depend on the machine and on what else it does; each row with a bar compares two things measured a
moment apart. `--json` prints the same rows for a machine. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import zmq.asyncio
from bench_kernels import Kernel, kernel, uss_mb
from bench_table import Row, machine, p50, table
from code_mode_bench import measure_code_mode
from confinement_bench import measure_confinement
from crowd_bench import measure_crowd
from end_bench import measure_ends
from fleet_bench import measure_fleet
from hibernate_bench import measure_hibernation
from http_bench import http_server, measure_calls, soak
from lab_bench import measure_lab
from languages_bench import measure_languages
from many_bench import measure_many
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from neighbours_bench import measure_neighbours
from science_bench import measure_science
from stored_bench import measure_stored
from views_bench import measure_views

NATIVE, OURS = "python3", "kernelmcp"
# Until the warm kernel has given back what its start left.
IDLE_SECONDS = 20.0
PRINTS = 20_000
LINES, LINE_CHARS = 200, 100_000  # 20 MB

# What a person or a model interrupts. All must answer within a second, with their variables.
INTERRUPTIBLE = {
    "while True: pass": "while True: pass",
    "time.sleep": "import time; time.sleep(1000)",
    "await asyncio.sleep": "import asyncio; await asyncio.sleep(1000)",
    "input()": "input('name? ')",
    "sum of a generator": "sum(i for i in range(10**12))",
    "catastrophic regex": "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
}
# What nothing can interrupt: killed after the grace period, and the reply says so.
UNINTERRUPTIBLE = {"sum(range(10**11))": "sum(range(10**11))"}


class Peak:
    """The largest resident memory of some processes while a block runs."""

    def __init__(self, pid: int) -> None:
        root = psutil.Process(pid)
        self._processes = [root, *root.children(recursive=True)]
        self.megabytes = 0.0

    async def watch(self) -> None:
        while True:
            for process in self._processes:
                try:
                    self.megabytes = max(self.megabytes, process.memory_info().rss / 1e6)
                except psutil.NoSuchProcess:
                    continue
            await asyncio.sleep(0.02)

    async def during(self, work: Awaitable[Any]) -> Any:
        watcher = asyncio.ensure_future(self.watch())
        try:
            return await work
        finally:
            watcher.cancel()


def measure_version(rounds: int) -> list[Row]:
    """The command that does nothing else, beside an interpreter that does nothing at all."""
    commands = {
        NATIVE: [sys.executable, "-c", "pass"],
        OURS: [Path(sys.executable).with_name("kernelmcp"), "--version"],
    }
    times: dict[str, list[float]] = {NATIVE: [], OURS: []}
    for _ in range(rounds):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append((time.perf_counter() - start) * 1e3)
    note = "beside `python -c pass`; its own bar is 150 ms"
    return [Row("`kernelmcp --version`", "ms", p50(times[OURS]), p50(times[NATIVE]), 5, note)]


async def measure_start(context: zmq.asyncio.Context, folder: Path, rounds: int) -> tuple[list[Row], float]:
    times: dict[str, list[float]] = {NATIVE: [], OURS: []}
    alone = 0.0
    for _ in range(rounds):
        for name, found in times.items():
            start = time.perf_counter()
            async with kernel(context, name, folder) as running:
                await running.run("x = 0")
                found.append((time.perf_counter() - start) * 1e3)
                alone = uss_mb(running.pid)
    native = p50(times[NATIVE])
    rows = [
        Row("kernel start to first result, cold", "ms", p50(times[OURS]), native, 1.5),
        Row("the only kernel of the machine: USS, Node's code included", "MB", alone),
    ]
    return rows, native


async def measure_server_start(context: zmq.asyncio.Context, folder: Path, rounds: int) -> list[Row]:
    """From the spawn of a server on stdio: everything that a client asks for is sent at once. Its home is kept."""
    times: dict[int, list[float]] = {number: [] for number in range(4)}
    for _ in range(rounds):
        start = time.perf_counter()
        async with kernel(context, NATIVE, folder) as running:
            await running.run("1 + 1")
            times[0].append((time.perf_counter() - start) * 1e3)
        for number, took in (await _answers(folder / "started")).items():
            times[number].append(took)
    native, *answers = (p50(found) for found in times.values())
    return [
        Row(
            "server spawned to the answer to initialize, beside a native kernel's first result",
            "ms",
            answers[0],
            native,
        ),
        Row("server spawned to the list of tools, beside the same", "ms", answers[1], native),
        Row("server spawned to the first result, beside the same", "ms", answers[2], native, 1.2),
    ]


async def _answers(home: Path) -> dict[int, float]:
    """Milliseconds until each answer of a new server, by the number of the request."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "execute_code", "arguments": {"code": "1 + 1"}}},
    ]
    found: dict[int, float] = {}
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernelmcp"),
        env={**os.environ, "KERNELMCP_LOGGING__LEVEL": "warning", "KERNELMCP_HOME": str(home)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.writelines(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)
    while 3 not in found:
        answer = json.loads(await process.stdout.readline())
        if "result" in answer:
            found[answer["id"]] = (time.perf_counter() - start) * 1e3
    process.stdin.close()
    await process.wait()
    return found


async def measure_execute(native: Kernel, ours: Kernel, mcp: Callable[[str], Awaitable[Any]], rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {"native": [], "ours": [], "mcp": []}
    for running in (native, ours):
        await running.run("x = 0")
    await mcp("x = 0")
    for _ in range(rounds):
        times["native"].append((await native.run("x += 1"))[0])
        times["ours"].append((await ours.run("x += 1"))[0])
        start = time.perf_counter()
        await mcp("x += 1")
        times["mcp"].append((time.perf_counter() - start) * 1e3)
    base = p50(times["native"])
    return [
        Row("execute `x += 1`, jupyter_client, to the reply, p50", "ms", p50(times["ours"]), base, 1.0),
        Row("execute `x += 1`, MCP over stdio, call to result, p50", "ms", p50(times["mcp"]), base, 2.0),
    ]


async def measure_output(native: Kernel, ours: Kernel) -> list[Row]:
    rows: list[Row] = []
    cells = {
        "20,000 prints": (f"for i in range({PRINTS}): print(i)", "".join(f"{i}\n" for i in range(PRINTS))),
        "20 MB of text": (f"for i in range({LINES}): print('x' * {LINE_CHARS})", ("x" * LINE_CHARS + "\n") * LINES),
    }
    for what, (code, expected) in cells.items():
        found: dict[str, float] = {}
        peak = Peak(ours.pid)
        for running in (native, ours):
            start = time.perf_counter()
            _, messages, _ = await (peak.during(running.run(code)) if running is ours else running.run(code))
            found[running.manager.kernel_name] = (time.perf_counter() - start) * 1e3
            text = "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
            if running is ours and text != expected:
                rows.append(Row(f"{what}: LOST OR OUT OF ORDER, of {len(expected)}", "chars", max(1, len(text)), bar=0))
        rows.append(Row(what, "ms", found[OURS], found[NATIVE], note="whole and in order"))
        rows.append(Row(f"{what}: largest process of the kernel", "MB", peak.megabytes))
    return rows


async def measure_interrupts(ours: Kernel) -> list[Row]:
    rows: list[Row] = []
    await ours.run("kept = 41")
    for what, code in {**INTERRUPTIBLE, **UNINTERRUPTIBLE}.items():
        request = ours.client.execute(code, allow_stdin=True)
        await asyncio.sleep(0.5)
        start = time.perf_counter()
        await ours.manager.interrupt_kernel()
        reply = await ours.reply(request)
        elapsed = (time.perf_counter() - start) * 1e3
        await ours.outputs(request)
        _, _, check = await ours.run("kept")
        lost = "kernelmcp" in reply["metadata"]
        if what in INTERRUPTIBLE:
            kept = reply["content"].get("ename") == "KeyboardInterrupt" and check["content"]["status"] == "ok"
            rows.append(Row(f"interrupt: {what}", "ms", elapsed, bar=1000 if kept else 0, note="state kept"))
        else:
            rows.append(Row(f"killed: {what}", "ms", elapsed, bar=10_000 if lost else 0, note="says state_lost"))
    return rows


async def measure_pool(client: Client, native_start: float, rounds: int) -> list[Row]:
    times: list[float] = []
    for number in range(rounds):
        await asyncio.sleep(5)  # the pool refills
        start = time.perf_counter()
        await call(client, "x = 0", session_id=f"bench-{number}")
        times.append((time.perf_counter() - start) * 1e3)
        await client.call_tool("destroy_session", {"session_id": f"bench-{number}"})
    return [Row("new session to first result, from the warm pool, MCP", "ms", p50(times), native_start, 0.1)]


async def measure_reset(client: Client, rounds: int) -> list[Row]:
    times: list[float] = []
    await call(client, "x = 0", session_id="reset")
    for _ in range(rounds):
        await asyncio.sleep(5)  # the pool refills
        start = time.perf_counter()
        await client.call_tool("reset_workspace", {"session_id": "reset", "scope": "variables"})
        times.append((time.perf_counter() - start) * 1e3)
    return [Row("reset of variables, from the warm pool, MCP", "ms", p50(times), bar=50)]


async def measure_install(client: Client) -> list[Row]:
    """The first time, and another session's: the cache must be empty."""
    times: list[float] = []
    for session in ("first", "second"):
        await call(client, "x = 0", session_id=session)
        start = time.perf_counter()
        result = await client.call_tool("install_package", {"package_name": "pydantic", "session_id": session})
        times.append((time.perf_counter() - start) * 1e3)
        if result.is_error:
            return [Row("install_package pydantic FAILED", "", 1, bar=0)]
        await call(client, "import pydantic", session_id=session)
    note = "beside the first session's, with an empty cache"
    return [Row("install_package pydantic, a second session", "ms", times[1], times[0], 0.3, note)]


async def call(client: Client, code: str, **arguments: Any) -> Any:
    result = await client.call_tool("execute_code", {"code": code, **arguments})
    facts = (result.meta or {}).get("kernelmcp/result", {})
    if facts.get("status") != "ok":
        raise RuntimeError(f"{code!r} did not run: {result}")
    return facts


async def measure_idle(server: StdioServerParameters) -> Row:
    """Memory of a server with its pool, by shares: what it shares with others counts for each of them in part."""
    async with Client(server) as client:
        await client.list_tools()
        await asyncio.sleep(IDLE_SECONDS)
        shares = [process.memory_full_info().pss for process in psutil.Process().children(recursive=True)]
    return Row("memory (PSS) of an idle server with its warm kernel", "MB", sum(shares) / 2**20, bar=220)


async def measure_sessions(server: StdioServerParameters) -> Row:
    """Private memory of a session that has been idle for a while, of a server whose kernel processes are forks: it has
    three others."""
    async with Client(server) as client:

        async def begin(name: str) -> set[psutil.Process]:
            for number in range(3):
                await call(client, "x = 0", session_id=f"{name}-{number}")
            await asyncio.sleep(IDLE_SECONDS)
            [process] = psutil.Process().children()
            return {child for child in process.children() if child.children()}

        earlier = await begin("earlier")
        memory = [uss_mb(kernel.pid) for kernel in await begin("later") - earlier]
    what = "private memory (USS) of an idle session, kernel process and guest, beside three others"
    return Row(what, "MB", sum(memory) / len(memory), bar=90)


async def measure(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="kmb-") as name:
        rows = [Row(*found) for found in await measure_confinement(Path(name), rounds)]
    rows += measure_version(max(5, rounds // 10))
    context = zmq.asyncio.Context()
    context.setsockopt(zmq.RECONNECT_IVL, 5)
    context.setsockopt(zmq.RCVHWM, 0)
    with tempfile.TemporaryDirectory(prefix="kmb-") as name:
        folder = Path(name)
        start_rows, native_start = await measure_start(context, folder, max(3, rounds // 40))
        rows += start_rows
        rows += await measure_server_start(context, folder, max(3, rounds // 20))
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "kernelmcp"],
            env={"KERNELMCP_LOGGING__LEVEL": "warning", **os.environ, "KERNELMCP_HOME": str(folder / "home")},
        )
        rows += [await measure_idle(server), await measure_sessions(server)]
        async with (
            kernel(context, OURS, folder) as ours,
            kernel(context, NATIVE, folder) as native,
            Client(server) as client,
        ):
            await ours.run("x = 0")
            await call(client, "x = 0")
            what = "private memory (USS), kernel process and guest, beside the pool's"
            rows.append(Row(what, "MB", uss_mb(ours.pid), bar=150))
            rows.append(Row("private memory (USS), native ipykernel", "MB", uss_mb(native.pid)))
            rows += await measure_execute(native, ours, lambda code: call(client, code), rounds)
            async with http_server(folder / "http") as (url, _):
                over_http, over_stdio = await measure_calls(lambda code: call(client, code), url, rounds)
            # The second figure is stdio's here: the bar is about the transport.
            rows.append(Row("execute `x += 1`, MCP over HTTP beside stdio, p50", "ms", over_http, over_stdio, 1.5))
            rows += await measure_pool(client, native_start, 5)
            rows += await measure_reset(client, 5)
            rows += await measure_install(client)
            rows += await measure_output(native, ours)
            rows += await measure_interrupts(ours)
    context.destroy(linger=0)
    with tempfile.TemporaryDirectory(prefix="kmb-") as name:
        rows += [Row(what, "ms", took, bar=bar) for what, took, bar in measure_ends(Path(name))]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument(
        "--soak", action="store_true", help="200 clients, 20 sessions, 10,000 calls over HTTP; nothing else"
    )
    parser.add_argument("--science", action="store_true", help="pandas and matplotlib, prepared; nothing else")
    parser.add_argument("--lab", action="store_true", help="JupyterLab open on ten sessions; nothing else")
    parser.add_argument("--languages", action="store_true", help="the shell and JavaScript; nothing else")
    parser.add_argument("--code-mode", action="store_true", help="tools of other MCP servers; nothing else")
    parser.add_argument("--stored", action="store_true", help="a start with 5,000 stored sessions; nothing else")
    parser.add_argument("--neighbours", action="store_true", help="hostile upstreams beside a good one; nothing else")
    parser.add_argument("--views", action="store_true", help="views of MCP Apps, in a browser; nothing else")
    parser.add_argument("--hibernate", action="store_true", help="saved variables; nothing else")
    parser.add_argument("--crowd", action="store_true", help="1,000 sessions, 20 live (half an hour); nothing else")
    parser.add_argument("--many", action="store_true", help="1 to 200 sessions that call at once; nothing else")
    parser.add_argument("--fleet", action="store_true", help="calls through HAProxy, and directly; nothing else")
    parser.add_argument("--sessions", type=int, default=1000, help="of the crowd (default 1000)")
    parser.add_argument("--calls", type=int, default=5000, help="to the crowd (default 5000)")
    parser.add_argument("--rounds", type=int, default=200, help="executions to time (default 200)")
    options = parser.parse_args()
    if options.soak:
        found_soak = asyncio.run(soak())
        print(json.dumps({"machine": machine(), **asdict(found_soak), "held": found_soak.held}, indent=1))
        return 0 if found_soak.held else 1
    parts: dict[str, Callable[[Path], Coroutine[Any, Any, Iterable[tuple[Any, ...]]]]] = {
        "science": lambda folder: measure_science(folder, 5),
        "lab": measure_lab,
        "languages": lambda folder: measure_languages(folder, options.rounds),
        "code_mode": measure_code_mode,
        "stored": lambda folder: measure_stored(folder, 5),
        "neighbours": measure_neighbours,
        "views": measure_views,
        "hibernate": measure_hibernation,
        "crowd": lambda folder: measure_crowd(folder, options.sessions, options.calls),
        "fleet": measure_fleet,
        "many": measure_many,
    }
    if chosen := [measured for name, measured in parts.items() if getattr(options, name)]:
        with tempfile.TemporaryDirectory(prefix="kmb-") as name:
            some = chosen[0](Path(name))
            rows = [Row(*found) for found in asyncio.run(some)]
    else:
        rows = asyncio.run(measure(options.rounds))
    if options.json:
        found = [{**asdict(row), "ratio": row.ratio, "held": row.held} for row in rows]
        print(json.dumps({"machine": machine(), "rows": found}, indent=1))
    else:
        print(f"{machine()}, load {os.getloadavg()[0]:.1f}\n\n{table(rows)}")
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
