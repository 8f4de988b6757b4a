"""How many host calls a guest may have under way, and how large they may be: a guest writes what it likes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
import pytest

from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, Frame
from kernelmcp_kernel.guests.guest import Guest
from kernelmcp_kernel.guests.host_calls import CELL_ENDED, MAX_CALLS, MAX_HELD_BYTES, HostCalls

pytestmark = pytest.mark.anyio
REFUSED = "the host does not offer this call, or has too many of them under way"


class Calling:
    """A guest that calls; its calls end when a test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.answers: dict[int, Any] = {}
        self.may_end = asyncio.Event()
        self.calls = HostCalls({"fetch": self._handle, "input": self._handle})
        self.request = Request(Cell({}), host_calls=frozenset({"fetch", "input", "other"}))

    async def _handle(self, arguments: dict[str, Any], request: Request) -> str:
        self.begun += 1
        await self.may_end.wait()
        return "done"

    def answer(self, number: int, value: Any = None, error: str | None = None) -> None:
        assert number not in self.answers, "each call has one answer"
        self.answers[number] = value if error is None else error

    async def call(self, number: int, kind: Any = "fetch", size: int = 100, request: Any = ...) -> None:
        frame = Frame("call", "", {"number": number, "arguments": {"call": kind}}, size)
        self.calls.start(cast("Guest", self), frame, self.request if request is ... else request)
        await anyio.wait_all_tasks_blocked()

    async def end(self) -> None:
        self.may_end.set()
        await anyio.wait_all_tasks_blocked()
        await asyncio.sleep(0)  # for what is called after a task
        self.may_end.clear()


async def test_so_many_calls_at_a_time() -> None:
    one = Calling()
    for number in range(MAX_CALLS + 3):
        await one.call(number)
    assert one.begun == MAX_CALLS
    assert one.answers == dict.fromkeys(range(MAX_CALLS, MAX_CALLS + 3), REFUSED)
    await one.end()
    await one.call(1000)
    assert one.begun == MAX_CALLS + 1, "those that have ended count no more"


async def test_so_many_bytes_at_a_time() -> None:
    one = Calling()
    await one.call(0, size=MAX_FRAME_BYTES)
    await one.call(1, size=MAX_HELD_BYTES - MAX_FRAME_BYTES)
    await one.call(2, size=1)
    assert (one.begun, one.answers) == (2, {2: REFUSED})
    await one.end()
    await one.call(3, size=MAX_FRAME_BYTES)
    assert one.begun == 3, "those that have ended count no more"


async def test_one_question_at_a_time() -> None:
    one = Calling()
    await one.call(0, "input")
    await one.call(1, "input")
    await one.call(2)
    assert (one.begun, one.answers) == (2, {})
    await one.end()
    assert (one.begun, one.answers) == (3, dict.fromkeys(range(3), "done"))


async def test_a_question_that_waits_for_another_ends_with_its_cell() -> None:
    one = Calling()
    await one.call(0, "input")
    await one.call(1, "input")
    one.calls.cancel("the cell has ended")
    await anyio.wait_all_tasks_blocked()
    assert (one.begun, one.answers) == (1, dict.fromkeys(range(2), "the cell has ended"))
    await one.call(2, "input")
    assert one.begun == 2, "the turn of one that has ended is the next one's"


@pytest.mark.parametrize("kind", ["other", "none", None, ["fetch"], {}])
async def test_what_is_not_offered(kind: Any) -> None:
    one = Calling()
    await one.call(0, kind)
    assert (one.begun, one.answers) == (0, {0: REFUSED})


async def test_after_the_end_of_its_cell() -> None:
    one = Calling()
    await one.call(0, request=None)
    assert (one.begun, one.answers) == (0, {0: CELL_ENDED})


async def test_a_cancel_answers_all_that_have_begun_or_not() -> None:
    one = Calling()
    await one.call(0)
    frame = Frame("call", "", {"number": 1, "arguments": {"call": "fetch"}}, 100)
    one.calls.start(cast("Guest", one), frame, one.request)
    one.calls.cancel("the cell was interrupted")
    await anyio.wait_all_tasks_blocked()
    assert one.answers == dict.fromkeys(range(2), "the cell was interrupted")
    await one.call(2, size=MAX_HELD_BYTES)
    assert one.begun == 3
