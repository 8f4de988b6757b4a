"""Three servers behind HAProxy: what clients see while servers end, begin and die."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp_types import ElicitResult

from ..packaging.test_deploy_haproxy import HAPROXY
from .balanced import ERAS, SLOTS, Balanced, Counter, balanced
from .test_tasks import MODERN, Asking, WithTasks

pytestmark = [pytest.mark.slow, pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")]
CLIENTS = 6


@asynccontextmanager
async def counting(
    balancer: Balanced, *, is_forgiving: bool = False
) -> AsyncIterator[tuple[list[Counter], Callable[[int], object]]]:
    """Clients of each era that count; and a way to wait until each has counted so much further. `is_forgiving`: they
    make a new connection when a call fails, as it may when a server dies in the middle of its answer."""
    counters = [Counter(balancer, ERAS[number % len(ERAS)], is_forgiving=is_forgiving) for number in range(CLIENTS)]

    async def further(steps: int) -> None:
        wanted = [counter.calls + steps for counter in counters]
        while any(counter.calls < count for counter, count in zip(counters, wanted, strict=True)):  # noqa: ASYNC110
            await anyio.sleep(0.05)

    balancer.may_call.set()
    async with anyio.create_task_group() as tasks:
        for counter in counters:
            tasks.start_soon(counter.run)
        await further(3)
        yield counters, further
        for counter in counters:
            counter.is_done = True


def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    async def scenario(balancer: Balanced) -> list[Counter]:
        async with counting(balancer) as (counters, further):
            for slot in SLOTS:
                assert await anyio.to_thread.run_sync(balancer.end, slot) == 0
                await further(3)
                await anyio.to_thread.run_sync(balancer.start, slot)
                await further(3)
        return counters

    with balanced(tmp_path) as balancer:
        counters = anyio.run(scenario, balancer)
    assert [wrong for counter in counters for wrong in counter.wrong] == []
    assert not any(counter.has_lost for counter in counters)
    assert {slot for counter in counters for slot in counter.servers} == set(SLOTS)


def test_a_killed_server_costs_its_variables_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(balancer: Balanced) -> list[Counter]:
        async with counting(balancer, is_forgiving=True) as (counters, further):
            await anyio.to_thread.run_sync(balancer.end, "s1", signal.SIGKILL)
            await further(5)
        return counters

    with balanced(tmp_path) as balancer:
        counters = anyio.run(scenario, balancer)
    assert [wrong for counter in counters for wrong in counter.wrong] == []
    assert any(counter.has_lost for counter in counters)


def test_a_task_is_answered_whichever_server_is_asked(tmp_path: Path) -> None:
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.1)\n41 + 1"

    async def scenario(balancer: Balanced) -> None:
        async with balancer.client(MODERN, WithTasks()) as client:
            one = Asking(client)
            created = await one.run(code)
            owner = created.task_id.partition("-")[0]
            for slot in (each for each in SLOTS if each != owner):
                assert (await one.ask("tasks/get", created.task_id))["status"] == "working"
                await anyio.to_thread.run_sync(balancer.end, slot, signal.SIGKILL)
            assert (await one.ask("tasks/get", created.task_id))["status"] == "working"
            await client.call_tool("write_file", {"path": "go", "content": "", "session_id": "s"})
            ended = await one.until(created.task_id, "completed")
            assert ended["result"]["structuredContent"]["result"] == "42"
            await anyio.to_thread.run_sync(balancer.start, next(each for each in SLOTS if each != owner))
            await anyio.to_thread.run_sync(balancer.end, owner, signal.SIGKILL)
            again = await one.until(created.task_id, "completed")
            assert again["result"]["structuredContent"]["result"] == "42"

    with balanced(tmp_path, SESSIONS__INLINE_WAIT_SECONDS="0.5", TOOLS__STRUCTURED_CONTENT="always") as balancer:
        anyio.run(scenario, balancer)


def test_an_answer_reaches_the_cell_that_asked(tmp_path: Path) -> None:
    """The repeated call names no session, so nothing else of it says where that cell runs."""

    async def answer(_context: object, _params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "Ada"})

    async def scenario(balancer: Balanced) -> None:
        async with balancer.client(MODERN, elicitation_callback=answer) as client:
            for _ in SLOTS:  # in turn, so that each begins one
                ran = await client.call_tool("execute_code", {"code": "input(), input()"})
                assert (ran.structured_content or {})["result"] == "('Ada', 'Ada')", ran
            listed = await client.call_tool("get_sessions", {})
            assert len((listed.structured_content or {})["sessions"]) == len(SLOTS), "one for each call"

    with balanced(tmp_path) as balancer:
        anyio.run(scenario, balancer)


def test_a_paused_server_is_replaced_and_comes_back(tmp_path: Path) -> None:
    async def scenario(balancer: Balanced) -> list[Counter]:
        async with counting(balancer) as (counters, further):
            paused = balancer.servers["s2"]
            balancer.may_call, go_on = anyio.Event(), balancer.may_call
            assert go_on.is_set()
            while any(counter.is_calling for counter in counters):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            paused.process.send_signal(signal.SIGSTOP)
            await balancer.until_marked("s2", "DOWN")
            balancer.may_call.set()
            await further(3)
            paused.process.send_signal(signal.SIGCONT)
            await balancer.until_marked("s2", "UP")
            await further(5)
        return counters

    with balanced(tmp_path) as balancer:
        counters = anyio.run(scenario, balancer)
        taken = balancer.servers["s2"].logged("another server has taken over a session")
    assert [wrong for counter in counters for wrong in counter.wrong] == []
    assert sum(counter.has_lost for counter in counters) == len(taken) > 0
