"""What an open JupyterLab costs an execution over MCP: ten sessions, in turn with Lab running and stopped (SIGSTOP)."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSIONS = 10
CALLS = 100
ROUNDS = 10
# More, in percent, than without.
BAR = 10.0

Found = tuple[str, str, float, float | None, float | None, str]


async def measure_lab(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, ours, native, bar, note."""
    environment = {
        **os.environ,
        "KERNELMCP_LOGGING__LEVEL": "error",
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_SERVER__RUNTIME": str(folder / "r"),
        "KERNELMCP_SESSIONS__MAX_SESSIONS_PER_CLIENT": str(SESSIONS),
    }
    server = StdioServerParameters(command=sys.executable, args=["-m", "kernelmcp"], env=environment)
    async with Client(server) as client:
        for number in range(SESSIONS):
            await _call(client, number, "x = 0")
        with _lab(environment, folder) as lab:
            await anyio.sleep(5)  # until every notebook is there
            await _block(client)
            times: dict[signal.Signals, list[float]] = {signal.SIGCONT: [], signal.SIGSTOP: []}
            for _ in range(ROUNDS):
                for state, found in times.items():
                    lab.send_signal(state)
                    found += await _block(client)
            lab.send_signal(signal.SIGCONT)
    open_ms, closed_ms = (1000 * statistics.median(times[state]) for state in (signal.SIGCONT, signal.SIGSTOP))
    note = f"p50 {open_ms:.2f} and {closed_ms:.2f} ms, {SESSIONS} sessions, one call after the other"
    return [
        ("an execution with JupyterLab open, more than without", "%", 100 * (open_ms / closed_ms - 1), None, BAR, note)
    ]


async def _block(client: Client) -> list[float]:
    times: list[float] = []
    for call in range(CALLS):
        began = time.perf_counter()
        await _call(client, call % SESSIONS, "x += 1")
        times.append(time.perf_counter() - began)
    return times


async def _call(client: Client, number: int, code: str) -> None:
    result = await client.call_tool("execute_code", {"code": code, "session_id": f"s{number}"})
    assert not result.is_error, result.content


@contextmanager
def _lab(environment: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kernelmcp", "lab", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout
        try:
            assert any("http://" in line for line in lab.stdout), "Lab ended"
            yield lab
        finally:
            lab.send_signal(signal.SIGCONT)
            lab.kill()
