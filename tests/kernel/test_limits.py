"""What a policy gives a guest: memory, CPU time, environment variables. One kernel, which each test leaves usable."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .conftest import running_kernel
from .driver import Kernel, Ran

SECRET = "not on a command line"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    limits = {"KERNELMCP_MEMORY_MB": "128", "KERNELMCP_CPU_SECONDS": "1", "KERNELMCP_ENV": json.dumps({"MODE": SECRET})}
    with running_kernel(**limits) as running:
        yield running


def run_with_cpu_seconds(kernel: Kernel, seconds: float | None, code: str) -> Ran:
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    metadata = {"kernelmcp": {"cpu_seconds": seconds}}
    message = kernel.client.session.msg("execute_request", content, metadata=metadata)
    kernel.client.shell_channel.send(message)
    return kernel.finish(message["header"]["msg_id"])


@pytest.mark.parametrize("code", ["bytearray(10**10)", "[0] * 10**10", "'x' * 10**10", "bytearray(200 * 2**20)"])
def test_what_is_too_large_is_a_memory_error(kernel: Kernel, code: str) -> None:
    assert kernel.run(code).error.startswith("MemoryError: ")
    assert kernel.run("1 + 1").result == "2"


@pytest.mark.parametrize("item", ["{}", "bytearray(10**6)", "[0] * 100", "object()"])
def test_a_loop_that_takes_all_memory_gets_an_error_and_keeps_the_variables(kernel: Kernel, item: str) -> None:
    ran = run_with_cpu_seconds(kernel, None, f"kept = 'kept'\nheld = []\nwhile True: held.append({item})")
    assert (ran.status, ran.error.partition(":")[0], ran.state_lost) == ("error", "MemoryError", False)
    assert kernel.run("kept").result == "'kept'"
    assert kernel.run("del held").status == "ok"
    assert kernel.run("bytearray(20 * 2**20) and 'room'").result == "'room'"


def test_memory_is_whole_again_although_there_was_a_reserve_before() -> None:
    with running_kernel(KERNELMCP_MEMORY_MB="128") as kernel:
        run_with_cpu_seconds(kernel, None, "held = []\nwhile True: held.append(object())")
        assert kernel.run("[str(n) for n in range(3)]").status == "ok"  # it begins with a new reserve
        assert kernel.run("del held").status == "ok"
        assert kernel.run("[str(n) for n in range(3)]").status == "ok"
        assert kernel.run("bytearray(24 * 2**20) and 'room'").result == "'room'"


def test_what_the_traceback_of_a_memory_error_was_made_from_is_freed(kernel: Kernel) -> None:
    count = "import gc; sum(type(each).__name__ == 'Source' for each in gc.get_objects())"
    for _ in range(3):
        run_with_cpu_seconds(kernel, None, "def fill():\n    held = []\n    while True: held.append([0] * 100)\nfill()")
    assert kernel.run(count).result == "0"


def test_a_guest_that_cannot_run_another_cell_is_replaced_and_the_reply_says_so(kernel: Kernel) -> None:
    greedy = "held = globals().get('held', [])\nwhile True: held.append([0] * 100)"
    for _ in range(100):  # each leaves most of the reserve, which a cell needs to delete what is too large
        if (ran := run_with_cpu_seconds(kernel, None, greedy)).state_lost:
            break
    assert "it ran out of memory" in ran.error
    assert kernel.run("'held' in globals()").result == "False"


def test_a_cell_that_uses_up_its_cpu_time_is_interrupted(kernel: Kernel) -> None:
    kernel.run("kept = 'kept'")
    ran = kernel.run("while True: pass")
    assert ran.error.startswith("KeyboardInterrupt")
    assert ran.reply["metadata"]["kernelmcp"] == {"limit": "cpu_seconds"}
    assert "used more than its limit of 1 s of CPU time" in ran.text("stderr")
    assert kernel.run("kept").result == "'kept'"
    assert kernel.run("import time; time.sleep(1.5); 'slept'").result == "'slept'"  # that takes none


def test_a_cell_that_goes_on_is_killed_and_the_reply_says_why(kernel: Kernel) -> None:
    stubborn = "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass"
    ran = run_with_cpu_seconds(kernel, 0.2, stubborn)
    assert "it used more than its limit of 0.2 s of CPU time and went on when interrupted" in ran.error
    assert (ran.state_lost, ran.reply["metadata"]["kernelmcp"]["limit"]) == (True, "cpu_seconds")


def test_a_request_may_have_no_limit(kernel: Kernel) -> None:
    used = "import time\nwhile time.process_time() < 1.5: pass\n'done'"
    assert run_with_cpu_seconds(kernel, None, used).result == "'done'"


def test_the_guest_has_its_variables_and_nobody_else_sees_them(kernel: Kernel) -> None:
    assert kernel.run("import os; os.environ['MODE']").result == repr(SECRET)
    names = kernel.run("sorted(os.environ)").result
    assert "'MODE'" in names
    assert "'_'" not in names, "Emscripten's: where the image was built"
    assert all(SECRET not in " ".join(guest.cmdline()) for guest in kernel.guests())
    assert all(SECRET not in guest.environ().values() for guest in kernel.guests())
