"""What a load balancer costs a call: one session, called in turn through HAProxy and at its own server."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import httpx2
from hibernate_bench import Found
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.server.balanced import ERAS, balanced

ROUNDS = 400
WARM_UP = 50


async def measure_fleet(folder: Path) -> list[Found]:
    """Rows of the table: what, unit, ours, beside, bar, note."""
    rows: list[Found] = []
    with balanced(folder) as balancer:
        balancer.may_call.set()
        for era in (ERAS[0], ERAS[-1]):
            async with balancer.client(era) as through:
                first = await through.call_tool("execute_code", {"code": "x = 1"})
                found = first.structured_content or {}
                slot = str(found["execution_id"]).partition("-")[0]
                async with (
                    httpx2.AsyncClient(timeout=60) as http,
                    Client(streamable_http_client(balancer.servers[slot].mcp, http_client=http), mode=era) as direct,
                ):
                    await direct.list_tools()
                    took = await _in_turn(direct, through, str(found["session_id"]))
            beside, ours = (statistics.median(each[WARM_UP:]) for each in took)
            rows.append((f"a call through HAProxy ({era})", "ms", ours, beside, beside + 1.5, "p50, and directly"))
    return rows


async def _in_turn(direct: Client, through: Client, session_id: str) -> tuple[list[float], list[float]]:
    took: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS):
        for client, times in zip((direct, through), took, strict=True):
            began = time.perf_counter()
            await client.call_tool("execute_code", {"code": "x += 1", "session_id": session_id})
            times.append(1000 * (time.perf_counter() - began))
    return took
