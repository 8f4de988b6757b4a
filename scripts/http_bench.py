"""The HTTP part of the benchmarks: a server on a free port, the time of a call beside stdio's, and the soak.

The soak: many clients of both MCP eras on a few sessions. Each call prints and returns a mark of its own, so that an
output that strays is seen; afterwards the server must be as large as it was after a first, short round.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

CLIENTS, SESSIONS, CALLS = 200, 20, 10_000
WARM_CALLS = 2_000
CALL_SECONDS = 600
# What the server's memory may differ by: the allocator keeps some pages.
SPARE_MB = 40


@asynccontextmanager
async def http_server(home: Path, **settings: str) -> AsyncIterator[tuple[str, int]]:
    """Its URL, and its process id."""
    env = {**os.environ, "KERNELMCP_HOME": str(home), "KERNELMCP_LOGGING__FORMAT": "json"}
    env["KERNELMCP_TOOLS__STRUCTURED_CONTENT"] = "always"  # each answer is compared with its own code
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernelmcp", "serve", "--transport", "http", "--port", "0"),
        env={**env, **{f"KERNELMCP_{name}": value for name, value in settings.items()}},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    log = process.stderr
    if log is None:
        raise RuntimeError("no stderr")
    url = ""
    while not url:
        line = await log.readline()
        if not line:
            raise RuntimeError("the server has ended")
        found = re.search(rb'"url": "([^"]+)"', line)
        url = found[1].decode() if found else ""
    drain = asyncio.ensure_future(_discard(log))
    try:
        yield url, process.pid
    finally:
        process.terminate()
        await process.wait()
        await drain


async def _discard(log: asyncio.StreamReader) -> None:
    while await log.read(65536):
        pass


async def measure_calls(stdio: Callable[[str], Awaitable[Any]], url: str, rounds: int) -> tuple[float, float]:
    """p50 of `x += 1` in milliseconds over HTTP and over stdio, taken in turn."""
    times: dict[str, list[float]] = {"http": [], "stdio": []}
    async with Client(url) as client:
        session = (await _run(client, "x = 0", None))["session_id"]
        await stdio("x = 0")
        for _ in range(rounds):
            start = time.perf_counter()
            await stdio("x += 1")
            times["stdio"].append((time.perf_counter() - start) * 1e3)
            start = time.perf_counter()
            await _run(client, "x += 1", session)
            times["http"].append((time.perf_counter() - start) * 1e3)
    return statistics.median(times["http"]), statistics.median(times["stdio"])


@dataclass
class Soak:
    """What came of it."""

    clients: int
    sessions: int
    calls: int
    errors: list[str]
    seconds: float
    p50_ms: float
    before_mb: float
    after_mb: float

    @property
    def held(self) -> bool:
        return not self.errors and self.after_mb - self.before_mb <= SPARE_MB


async def soak(clients: int = CLIENTS, sessions: int = SESSIONS, calls: int = CALLS) -> Soak:
    with tempfile.TemporaryDirectory(prefix="kms-") as name:
        limits = {
            "SESSIONS__MAX_SESSIONS_PER_CLIENT": str(sessions),
            "SESSIONS__MAX_SESSIONS": str(sessions),
            "SESSIONS__MAX_QUEUED": str(clients),
            "TRANSPORT_HTTP__RATE_LIMIT_REQUESTS": "0",
        }
        async with http_server(Path(name) / "home", **limits) as (url, pid):
            errors: list[str] = []
            await _round(url, clients, sessions, WARM_CALLS, errors)
            await _destroy(url, sessions)
            before = await _settled_mb(pid)
            start = time.perf_counter()
            times = await _round(url, clients, sessions, calls, errors)
            seconds = time.perf_counter() - start
            await _destroy(url, sessions)
            after = await _settled_mb(pid)
    return Soak(clients, sessions, calls, errors, seconds, statistics.median(times), before, after)


async def _destroy(url: str, sessions: int) -> None:
    """With its session go its transcript and the executions that are kept."""
    async with Client(url) as client:
        for number in range(sessions):
            await client.call_tool("destroy_session", {"session_id": f"soak-{number}"})


async def _settled_mb(pid: int) -> float:
    """Of the server alone, once the ends of its connections are dealt with."""
    await asyncio.sleep(5)
    return psutil.Process(pid).memory_info().rss / 1e6


async def _round(url: str, clients: int, sessions: int, calls: int, errors: list[str]) -> list[float]:
    times: list[float] = []

    async def work(number: int) -> None:
        try:
            # Of its own, but without TLS: two hundred of those contexts take the clients half a minute.
            async with (
                httpx2.AsyncClient(verify=False, timeout=CALL_SECONDS) as http,
                Client(
                    streamable_http_client(url, http_client=http), mode="legacy" if number % 2 else "auto"
                ) as client,
            ):
                for index in range(calls // clients):
                    mark = f"{number}.{index}"
                    start = time.perf_counter()
                    found = await _run(client, f"print({mark!r}); {mark!r}", f"soak-{number % sessions}")
                    times.append((time.perf_counter() - start) * 1e3)
                    if (found["status"], found["stdout"], found["result"]) != ("ok", f"{mark}\n", repr(mark)):
                        errors.append(f"{mark}: {json.dumps(found)[:300]}")
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is counted
            errors.append(f"client {number}: {exc!r}"[:300])

    await asyncio.gather(*(work(number) for number in range(clients)))
    return times


async def _run(client: Client, code: str, session: str | None) -> dict[str, Any]:
    arguments = {"code": code} | ({"session_id": session} if session else {})
    result = await client.call_tool("execute_code", arguments, read_timeout_seconds=CALL_SECONDS)
    if result.structured_content is None or "status" not in result.structured_content:
        raise RuntimeError(f"{code!r} did not run: {result}"[:300])
    return result.structured_content
