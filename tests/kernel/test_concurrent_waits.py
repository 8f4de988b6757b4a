"""Coroutines that block at the same time: each has frames on the C stack, which others use while it waits."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.places import HOST

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


IN_HIGH_MEMORY = f"""
import {{ unlink }} from "{HOST}/suspended_frames.mjs";
const [state, entry, frame] = [0x90000000, 0x1000, 0xa0000000];
const heap = {{}};
const at = (place) => place / 4;
Object.assign(heap, {{ [at(state + 52)]: frame, [at(frame + 4)]: entry, [at(entry + 4)]: 0 }});
const changed = unlink(heap, {{ threadState: state | 0, stackState: {{ start: 0x800, stop: 0x2000 }} }});
console.log(JSON.stringify([heap[at(frame + 4)], changed]));
"""


def test_frames_above_two_gigabytes_are_linked_without_the_stack_too() -> None:
    command = [str(node_binary()), "--input-type=module", "-e", IN_HIGH_MEMORY]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout) == [0, [[(0xA0000000 + 4) // 4, 0x1000]]]


def test_an_interrupt_is_not_lost_in_a_look_at_the_environment_that_nobody_waits_for(
    start: Callable[[], StateGuest],
) -> None:
    guest = start()
    guest.begin("1")
    guest.finish()
    cell = {"code": "while True: pass", "silent": False, "store_history": True, "user_expressions": {}}
    guest.signal(3)
    guest.send_together(
        {"op": "environment", "id": "given up", "number": 2, "content": {}},
        {"op": "execute", "id": "cell", "number": 3, "content": {**cell, "allow_stdin": False, "execution_count": 2}},
        {"op": "interrupt"},
    )
    assert guest.wait_for("reply")["status"] == "ok"
    assert guest.wait_for("reply")["ename"] == "KeyboardInterrupt"


def test_the_stack_of_a_blocked_task_has_all_its_frames(start: Callable[[], StateGuest]) -> None:
    guest = start()
    expression = "[frame.f_code.co_name for frame in tasks[2].get_stack()]"
    guest.begin(WAITING.replace("EXPRESSION", "globals().update(seen=1)").replace("RESULT", expression))
    numbers = calls_of(guest, 3)
    answer(guest, numbers[1])
    assert guest.finish() == "['run_handle', '_run', 'run', 'work']"
