"""Operations without a reply (comm messages beside a cell), with a process that does nothing in the guest's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, Frame
from kernelmcp_kernel.guests.guest import Guest, new_request_id

from .driver import DEADLINE
from .stand_in import StandIn

Use = Callable[[Guest, StandIn, list[str], "asyncio.Future[Any]"], Awaitable[None]]


def with_cell(use: Use) -> None:
    """Run `use` while a cell runs in the guest, with the ids of the operations that were told to be done."""

    async def run() -> None:
        done: list[str] = []

        def hear(_: Guest, frame: Frame) -> None:
            if frame.type == "comm_done":
                done.append(frame.id)

        guest = Guest(stand_in.spawned, hear)
        stand_in.say("ready")
        cell = asyncio.ensure_future(guest.request("execute", {}, "cell"))
        try:
            async with asyncio.timeout(DEADLINE):
                await guest.ready()
                while not guest.busy:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await use(guest, stand_in, done, cell)
        finally:
            guest.kill("the test is over")
            await asyncio.wait([cell])
            cell.exception()

    stand_in = StandIn()
    try:
        asyncio.run(run())
    finally:
        stand_in.end()


def test_what_waits_for_a_computing_cell_never_ends_its_guest() -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        large = {"buffers": ["x" * (MAX_FRAME_BYTES // 3 * 2)]}
        guest.notify("comm_message", large, new_request_id())
        with pytest.raises(ValueError, match="too much waits"):
            guest.notify("comm_message", large, new_request_id())
        guest.notify("comm_message", {}, new_request_id())
        assert guest.death is None

    with_cell(use)


def test_what_waits_for_a_guest_is_no_reason_to_end_it_when_it_is_asked_next() -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        large = {"buffers": ["x" * (MAX_FRAME_BYTES // 3 * 2)]}
        guest.notify("comm_message", large, new_request_id())
        guest.answer(1, large)
        assert guest.death is None

    with_cell(use)


@pytest.mark.parametrize("asides", [0, 1])
def test_what_was_sent_aside_leaves_a_guest_no_more_room_for_its_answers(asides: int) -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        large = {"buffers": ["x" * (MAX_FRAME_BYTES // 3 * 2)]}
        for _ in range(asides):
            guest.notify("comm_message", large, new_request_id())
        guest.answer(1, large)
        assert guest.death is None
        guest.answer(2, large)
        assert guest.death is not None

    with_cell(use)


def test_what_a_guest_has_read_leaves_it_no_more_room_for_its_answers() -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        large = {"buffers": ["x" * (MAX_FRAME_BYTES // 3 * 2)]}
        guest.notify("comm_message", large, new_request_id())
        guest.answer(1, large)
        read = 0
        while read < MAX_FRAME_BYTES // 3 * 2:
            read += len(stand_in.hear())
            await asyncio.sleep(0)
        assert guest.death is None
        guest.answer(2, large)
        assert guest.death is not None

    with_cell(use)


def test_a_large_answer_waits_until_the_guest_has_read_the_earlier_ones() -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        async def answer(number: int) -> None:
            await guest.drained()
            guest.answer(number, "x" * (MAX_FRAME_BYTES // 2))
            answered.append(number)

        answered: list[int] = []
        answers = [asyncio.ensure_future(answer(number)) for number in range(6)]
        read = 0
        while len(answered) < len(answers):
            read += len(stand_in.hear())
            await asyncio.sleep(0)
            assert len(answered) <= 1 + read // (MAX_FRAME_BYTES // 2 - 2**20)
        assert guest.death is None

    with_cell(use)


def test_what_was_under_way_when_the_guest_ends_is_done() -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        guest.notify("comm_message", {}, "a")
        guest.notify("comm_message", {}, "b")
        stand_in.say("comm_done", "a")
        while not done:  # noqa: ASYNC110
            await asyncio.sleep(0)
        guest.kill("of a reason")
        assert done == ["a", "b"]
        with pytest.raises(GuestDied):
            await cell

    with_cell(use)


def test_only_what_is_under_way_can_be_done_and_only_once() -> None:
    async def use(guest: Guest, stand_in: StandIn, done: list[str], cell: asyncio.Future[Any]) -> None:
        guest.notify("comm_message", {}, "a")
        for each in ("other", "a", "a", ""):
            stand_in.say("comm_done", each)
        stand_in.say("reply", "cell")
        await cell
        assert done == ["a"]
        assert guest._beside == set()  # pyright: ignore[reportPrivateUsage]

    with_cell(use)
