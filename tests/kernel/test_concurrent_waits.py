"""Coroutines that block at the same time: each has frames on the C stack, which others use while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .driver import Kernel
from .state_guest import StateGuest, starting

FAILING = """
import asyncio, subprocess
async def work(i):
    subprocess.run("echo hi", shell=True, capture_output=True)
    if i == 1: raise ValueError(i)
    return i
await asyncio.gather(*[work(i) for i in range(3)])
"""

# Three wait; the second goes on, and uses the part of the stack that the third has used.
WAITING = """
import asyncio, gc, sys
from kernelmcp_guest.blocking import host_call

def deeper(depth, function):
    return sorted([1, 2], key=lambda _: deeper(depth - 1, function) and 0) if depth else function() or 1

async def work(i):
    named = [i]
    host_call("input", prompt="", password=False)
    return named

async def all_of_it():
    tasks = [asyncio.ensure_future(work(i)) for i in range(3)]
    await tasks[1]
    return deeper(8, lambda: EXPRESSION), tasks

found, tasks = await all_of_it()
RESULT
"""


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], StateGuest]]:
    with starting(tmp_path_factory) as guests:
        yield guests


def answer(guest: StateGuest, number: int) -> None:
    guest.send("result", content={"number": number, "value": "here", "error": None})


def calls_of(guest: StateGuest, count: int) -> list[int]:
    """The numbers of the next calls to the kernel process."""
    found: list[int] = []
    for frame in guest.frames():
        if frame["type"] == "call":
            found.append(frame["content"]["number"])
        if len(found) == count:
            break
    return found


def test_one_of_several_fails_and_the_variables_are_kept(kernel: Kernel) -> None:
    kernel.run("kept = 5")
    for _ in range(20):
        assert kernel.run(FAILING).error == "ValueError: 1"
    assert kernel.run("kept").result == "5"


@pytest.mark.parametrize(
    "expression",
    [
        "gc.collect()",
        "[frame.f_code.co_name for frame in sys._current_frames().values()]",
        "[task.get_stack() for task in asyncio.all_tasks()]",
        "sys.monitoring.use_tool_id(3, 'x') or sys.monitoring.set_events(3, 1) or sys.monitoring.free_tool_id(3)",
    ],
)
@pytest.mark.parametrize("first", [[1], [0, 1], [2, 1]])
def test_frames_of_who_waits_are_followed(start: Callable[[], StateGuest], expression: str, first: list[int]) -> None:
    guest = start()
    guest.begin(WAITING.replace("EXPRESSION", expression).replace("RESULT", "type(found).__name__"))
    numbers = calls_of(guest, 3)
    for each in first:
        answer(guest, numbers[each])
    assert guest.finish() == "'list'"
    for each in {0, 1, 2} - set(first):
        answer(guest, numbers[each])
    assert guest.run("await asyncio.gather(*tasks)") == "[[0], [1], [2]]"


def test_the_stack_of_a_blocked_task_has_all_its_frames(start: Callable[[], StateGuest]) -> None:
    guest = start()
    expression = "[frame.f_code.co_name for frame in tasks[2].get_stack()]"
    guest.begin(WAITING.replace("EXPRESSION", "globals().update(seen=1)").replace("RESULT", expression))
    numbers = calls_of(guest, 3)
    answer(guest, numbers[1])
    assert guest.finish() == "['run_handle', '_run', 'run', 'work']"
