"""Callers that want a kernel while the pool starts one: one of them gets it, and the others wait for nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kernelmcp.config.models import Config, Flavor
from kernelmcp.config.settings import Settings, Values
from kernelmcp.files.home import Home
from kernelmcp.kernel.forks import Forks
from kernelmcp.kernel.pool import Pool, PooledKernel

pytestmark = pytest.mark.anyio


def _sized(warm_pool_size: int) -> Values:
    sessions = {"warm_pool_size": warm_pool_size}
    return Values(config=Config.model_validate({"sessions": sessions, "kernels": {"refill_delay_seconds": 0}}))


class Counting(Pool):
    """Its kernels come when a test says so."""

    def __init__(self, tasks: Any, warm_pool_size: int = 1) -> None:
        self.settings = Settings(_sized(warm_pool_size))
        super().__init__(self.settings, cast("Home", None), cast("Any", None), Forks(frozenset()), tasks)
        self.started: list[asyncio.Future[PooledKernel]] = []

    async def start(self, flavor: Flavor) -> PooledKernel:
        self.started.append(asyncio.get_running_loop().create_future())
        return await self.started[-1]

    def resize(self, warm_pool_size: int) -> None:
        self.settings._values = _sized(warm_pool_size)
        self.settings._tell()

    def come(self, number: int) -> PooledKernel:
        found = PooledKernel(cast("Any", f"kernel {number}"), cast("Any", None))
        self.started[number].set_result(found)
        return found

    def _drop_unusable(self) -> None:
        """They live."""


async def test_one_caller_waits_for_the_kernel_that_starts_and_the_others_start_theirs() -> None:
    async with anyio.create_task_group() as tasks:
        pool = Counting(tasks)
        tasks.start_soon(pool.keep_warm)
        callers = [asyncio.ensure_future(pool.take("medium")) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        assert len(pool.started) == 3, "the pool's, and those of two callers"
        for number, caller in enumerate(callers):
            assert pool.come(number) is await caller
        tasks.cancel_scope.cancel()


async def test_who_no_longer_waits_leaves_the_kernel_to_the_next() -> None:
    async with anyio.create_task_group() as tasks:
        pool = Counting(tasks)
        tasks.start_soon(pool.keep_warm)
        first = asyncio.ensure_future(pool.take("medium"))
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        second = asyncio.ensure_future(pool.take("medium"))
        await anyio.wait_all_tasks_blocked()
        assert len(pool.started) == 1
        assert pool.come(0) is await second
        tasks.cancel_scope.cancel()


async def test_a_smaller_pool_ends_what_it_has_too_many_and_not_what_somebody_waits_for() -> None:
    def kernel(ended: asyncio.Event) -> PooledKernel:
        live = SimpleNamespace(ended=ended, kill=ended.set)
        return PooledKernel(cast("Any", live), cast("Any", SimpleNamespace(delete=lambda: None)))

    async with anyio.create_task_group() as tasks:
        pool = Counting(tasks, warm_pool_size=3)
        ended = [asyncio.Event() for _ in range(4)]
        tasks.start_soon(pool.keep_warm)
        await anyio.wait_all_tasks_blocked()
        for number in range(3):
            pool.started[number].set_result(kernel(ended[number]))
            await anyio.wait_all_tasks_blocked()
        pool.resize(1)
        await anyio.wait_all_tasks_blocked()
        assert [event.is_set() for event in ended] == [False, True, True, False]
        assert (await pool.take("medium")).kernel.ended is ended[0]
        await anyio.wait_all_tasks_blocked()
        caller = asyncio.ensure_future(pool.take("medium"))
        await anyio.wait_all_tasks_blocked()
        pool.resize(0)
        pool.started[3].set_result(kernel(ended[3]))
        assert (await caller).kernel.ended is ended[3]
        await anyio.wait_all_tasks_blocked()
        assert not ended[3].is_set()
        tasks.cancel_scope.cancel()


async def test_a_warm_kernel_whose_process_has_just_ended_is_not_handed_out() -> None:
    class Current(Pool):
        def _is_current(self, found: PooledKernel) -> bool:
            return True

    async with anyio.create_task_group() as tasks:
        pool = Current(Settings(), cast("Home", None), cast("Any", None), cast("Forks", None), tasks)
        ended = asyncio.Event()  # set later: its last messages are on their way
        for lives in (False, True):
            kernel = SimpleNamespace(lives=lives, ended=ended, kill=lambda: None)
            sandbox = SimpleNamespace(delete=lambda: None)
            pool._warm.append(PooledKernel(cast("Any", kernel), cast("Any", sandbox)))
        assert (await pool.take("medium")).kernel.lives
        ended.set()
