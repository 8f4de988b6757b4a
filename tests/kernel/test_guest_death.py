"""A guest may die at any time: its cell is answered at once, files stay, and the next cell gets a fresh guest."""

from pathlib import Path

import psutil
import pytest

from ..processes import is_alive
from .conftest import running_kernel
from .driver import Kernel, wait_until

REFUSED = {
    "fork": "import os; os.fork()",
    "thread": "import threading; threading.Thread(target=print).start()",
    "pool": "import concurrent.futures as f; f.ThreadPoolExecutor().submit(print).result()",
    "socket": "import socket; socket.create_connection(('127.0.0.1', 9), timeout=2)",
    "ctypes system": "import ctypes; assert ctypes.CDLL(None).system(b'ls') == 0",
}


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED.keys())
def test_what_a_sandbox_has_not_is_an_exception_and_no_dead_guest(kernel: Kernel, code: str) -> None:
    guests = kernel.guests()
    ran = kernel.run(code)
    assert (ran.status, ran.state_lost) == ("error", False), ran.outputs
    assert kernel.guests() == guests


def test_a_guest_that_exits_is_reported_and_replaced_and_its_files_stay(own_kernel: Kernel, sandbox: Path) -> None:
    own_kernel.run("kept = 1; open('notes.txt', 'w').write('kept')")
    ran = own_kernel.run("import os; print('before the end'); os._exit(3)")
    assert ran.error == (
        "GuestDied: The sandbox process ended: it exited with status 3. Its variables are lost; files are kept."
    )
    assert ran.state_lost
    assert ran.kinds() == ["stdout", "error"]
    after = own_kernel.run("'kept' in globals(), open('notes.txt').read()")
    assert (after.result, after.state_lost) == ("(False, 'kept')", True)
    assert (sandbox / "workspace" / "notes.txt").read_text() == "kept"


def test_a_guest_killed_in_the_middle_of_a_cell_is_answered_at_once(own_kernel: Kernel) -> None:
    request = own_kernel.send("print('go', flush=True)\nwhile True: pass")
    own_kernel.output(request)
    own_kernel.guests()[0].kill()
    ran = own_kernel.finish(request)
    assert "it was killed by SIGKILL" in ran.error
    assert ran.state_lost


def test_the_next_cell_says_that_an_idle_guest_was_killed(own_kernel: Kernel) -> None:
    own_kernel.run("kept = 1")
    first = own_kernel.guests()[0]
    first.kill()
    assert wait_until(lambda: own_kernel.guests() not in ([], [first]))
    ran = own_kernel.run("1")
    assert (ran.status, ran.state_lost) == ("ok", True)
    assert "earlier variables are lost" in ran.text("stderr")


def test_a_guest_killed_while_it_boots_is_replaced_and_nothing_was_lost() -> None:
    with running_kernel() as kernel:
        killed = kernel.guests()[0]
        killed.kill()
        assert wait_until(lambda: not psutil.pid_exists(killed.pid))  # the kernel process has noticed
        ran = kernel.run("1 + 1")
        assert ran.result == "2"


def test_memory_runs_out_as_an_exception_and_the_next_cell_works(own_kernel: Kernel) -> None:
    ran = own_kernel.run("held = []\nwhile True: held.append(bytearray(10**7))")
    assert ran.error.startswith("MemoryError"), ran.error
    assert own_kernel.run("del held; 1 + 1").result == "2"


def test_javascript_that_takes_all_memory_ends_the_guest_only(own_kernel: Kernel) -> None:
    ran = own_kernel.run("import js\nheld = []\nwhile True: held.append(js.Array.new(10**6).fill(1.5))")
    assert ran.state_lost
    assert "GuestDied" in ran.error
    assert own_kernel.run("1 + 1").result == "2"


def test_no_guest_outlives_a_killed_kernel_process() -> None:
    with running_kernel() as kernel:
        guests = kernel.guests()
        request = kernel.send("print('go', flush=True)\nwhile True: pass")
        kernel.output(request)
        kernel.process.kill()
        assert wait_until(lambda: not any(is_alive(g) for g in guests))


def test_a_restart_gives_a_fresh_namespace() -> None:
    with running_kernel() as kernel:
        kernel.run("kept = 1")
        kernel.manager.restart_kernel(now=False)
        kernel.client.wait_for_ready(timeout=90)
        assert kernel.run("'kept' in globals()").result == "False"


def test_a_death_that_a_cell_has_reported_is_not_reported_again(own_kernel: Kernel) -> None:
    own_kernel.run("import os; os._exit(3)")
    assert own_kernel.run("1").text("stderr") == ""


def test_a_guest_that_dies_of_a_signal_without_a_name_is_answered(own_kernel: Kernel) -> None:
    request = own_kernel.send("print('go', flush=True)\nwhile True: pass")
    own_kernel.output(request)
    own_kernel.guests()[0].send_signal(40)
    assert "killed by signal 40" in own_kernel.finish(request).error


def test_a_cell_is_interrupted_while_its_guest_still_boots(own_kernel: Kernel) -> None:
    own_kernel.run("import os; os._exit(3)")
    request = own_kernel.send("while True: pass")
    own_kernel.wait_until_busy(request)
    own_kernel.interrupt()
    assert own_kernel.finish(request).error == "KeyboardInterrupt: "
