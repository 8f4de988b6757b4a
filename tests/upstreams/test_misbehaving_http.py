"""Servers over HTTP that do each a thing wrong, beside one that does not: it is answered meanwhile, as before."""

from __future__ import annotations

import statistics
import time

import anyio
import psutil
import pytest

from kernelmcp.upstreams.catalogue import UpstreamError
from kernelmcp.upstreams.upstreams import Upstreams

from .conftest import Opened, Started, ready, until
from .hostile_http_server import IN_CALLS, SECRET, UNASKED

pytestmark = pytest.mark.anyio
PROGRAM = "hostile_http_server.py"
CALLS = 60
# A good neighbour's call takes some milliseconds; what is meant was 2 to 20 seconds.
MOST_SECONDS = 1.0
MOST_BYTES = 64 * 2**20


def servers(started: Started, how: str) -> str:
    addresses = {"good": started(PROGRAM, "good"), "bad": started(PROGRAM, how)}
    return "".join(f'[upstreams.servers.{name}]\nurl = "{url}"\n' for name, url in addresses.items())


async def echo(upstreams: Upstreams, name: str, value: str = "good", seconds: float = 60.0) -> None:
    result = await upstreams.tool_call(name, "echo", {"value": value}, timeout_seconds=seconds)
    assert result.value is not None


async def durations(upstreams: Upstreams) -> list[float]:
    """Of calls of the good one, seconds."""
    found: list[float] = []
    for _ in range(CALLS):
        began = time.monotonic()
        await echo(upstreams, "good")
        found.append(time.monotonic() - began)
    return found


async def undisturbed(upstreams: Upstreams) -> None:
    before = psutil.Process().memory_info().rss
    found = await durations(upstreams)
    assert statistics.median(found) < MOST_SECONDS, found
    assert psutil.Process().memory_info().rss - before < MOST_BYTES


@pytest.mark.parametrize("how", UNASKED)
async def test_a_stream_that_nobody_asked_for_holds_nobody_up(opened: Opened, started: Started, how: str) -> None:
    async with opened(servers(started, how)) as upstreams:
        await ready(upstreams, "good")
        await ready(upstreams, "bad")
        await undisturbed(upstreams)
        await echo(upstreams, "bad")


@pytest.mark.parametrize("how", IN_CALLS)
async def test_what_answers_a_call_is_read_as_long_as_the_call_lasts(
    opened: Opened, started: Started, how: str
) -> None:
    async with opened(servers(started, how)) as upstreams:
        await ready(upstreams, "good")
        await ready(upstreams, "bad")
        before = connections()
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(given_up, upstreams, 3.0)
            await undisturbed(upstreams)
        await until(lambda: connections() <= before)
        await undisturbed(upstreams)
        await echo(upstreams, "bad")


async def test_one_that_has_lost_its_session_and_does_not_let_it_end_is_connected_again(
    opened: Opened, started: Started
) -> None:
    async with opened(servers(started, "gone-and-silent")) as upstreams:
        await ready(upstreams, "bad")
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams, "bad", "lost")
        assert caught.value.kind == "ServerUnavailable"
        await echo(upstreams, "bad")


async def test_one_that_sends_a_call_elsewhere_is_not_followed_and_its_address_is_not_told(
    opened: Opened, started: Started
) -> None:
    async with opened(servers(started, "sends-elsewhere")) as upstreams:
        await ready(upstreams, "bad")
        with pytest.raises(UpstreamError) as caught:
            await echo(upstreams, "bad", "wrong")
        assert "it answered with HTTP 302, and redirects are not followed" in str(caught.value)
        assert SECRET not in str(caught.value)
        await echo(upstreams, "good")


async def given_up(upstreams: Upstreams, seconds: float) -> None:
    with pytest.raises(UpstreamError) as caught:
        await echo(upstreams, "bad", "wrong", seconds)
    assert caught.value.kind in ("ToolTimeout", "ServerUnavailable")


def connections() -> int:
    """That this process has."""
    return sum(found.status == psutil.CONN_ESTABLISHED for found in psutil.Process().net_connections("tcp"))
