"""An interrupt ends what runs and keeps the variables; what cannot be interrupted is killed, and that is said."""

import json
import struct
import subprocess
from pathlib import Path

import pytest

from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.places import HOST

from .conftest import running_kernel
from .driver import DEADLINE, SLOW_STEPS, Kernel, Ran

GO = "print('go', flush=True)\n"
INTERRUPTIBLE = {
    "busy loop": "while True: pass",
    "time.sleep": "import time; time.sleep(1000)",
    "await": "import asyncio; await asyncio.sleep(1000)",
    "awaiting loop": "import asyncio\nwhile True: await asyncio.sleep(0)",
    "asyncio.run": "import asyncio; asyncio.run(asyncio.sleep(1000))",
    "generator": "sum(i for i in range(10**12))",
    "numbers to text, in C": "','.join(map(str, iter(int, 1)))",
    "one number to text, in C": "import sys\nsys.set_int_max_str_digits(0)\nx = 3 ** 200000\nwhile True: str(x)",
    "catastrophic regex": "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    "repr that never ends": "class Endless:\n    def __repr__(self):\n        while True: pass\nEndless()",
    "flush that never ends": (
        "import io, sys\nown = sys.stdout\nclass Endless(io.StringIO):\n    def flush(self):\n"
        "        sys.stdout = own\n        while True: pass\nsys.stdout = Endless()"
    ),
    "another task holds the loop": (
        "import asyncio\nasync def hold():\n    while True: pass\n"
        "holder = asyncio.ensure_future(hold())\nawait asyncio.sleep(1000)"
    ),
}


@pytest.mark.parametrize("code", INTERRUPTIBLE.values(), ids=INTERRUPTIBLE.keys())
def test_an_interrupt_ends_the_cell_and_keeps_the_variables(kernel: Kernel, code: str) -> None:
    kernel.run("kept = 41")
    ran = kernel.interrupt_once_it_prints(GO + code)
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert "kernelmcp_guest" not in "".join(ran.reply["content"]["traceback"])
    assert kernel.run("kept + 1").result == "42"


def test_an_interrupt_between_two_steps_of_a_cell_ends_it(kernel: Kernel) -> None:
    kernel.run(SLOW_STEPS)
    ran = kernel.interrupt_once_it_prints(GO + "while True: await asyncio.sleep(0)")
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("del loop.call_soon; 42").result == "42"


LOOKS_AT_THE_CLOCK = f"""
import {{ Interrupts }} from "{HOST}/interrupts.mjs";
const now = performance.now.bind(performance);
let looks = 0;
performance.now = () => (++looks, now());
function count(turns, isLoop) {{
  const interrupts = new Interrupts(-1, () => undefined, () => undefined);
  const HEAP32 = [0, 0, turns];
  interrupts.buffer({{ HEAP32, __Py_emscripten_signal_clock: 8 }});
  looks = 0;
  for (let asked = 0; asked < 3200; asked++) {{
    if (isLoop) HEAP32[2] = turns;
    interrupts.check();
  }}
  return looks;
}}
console.log(JSON.stringify([count(50, true), count(17, false), count(50, false)]));
"""


def test_c_code_may_ask_for_signals_at_each_digit_without_a_look_at_the_clock() -> None:
    """`str(262144)` asks six times, and the clock takes as long as all the rest."""
    command = [str(node_binary()), "--input-type=module", "-e", LOOKS_AT_THE_CLOCK]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    in_the_evaluation_loop, in_c, in_c_as_it_begins = json.loads(ran.stdout)
    assert (in_the_evaluation_loop, in_c, in_c_as_it_begins) == (3200, 100, 100)


COUNTS_SLOW_TURNS = f"""
import {{ Interrupts }} from "{HOST}/interrupts.mjs";
let time = 1000;
performance.now = () => time;
const interrupts = new Interrupts(-1, () => undefined, () => undefined);
const HEAP32 = [0];
interrupts.buffer({{ HEAP32, __Py_emscripten_signal_clock: 0 }});
/** The turns of the evaluation loop before its looks for signals, if each turn takes so long. */
function turns(looks, milliseconds) {{
  const found = [];
  for (; looks > 0; looks--) {{
    found.push(HEAP32[0]);
    time += HEAP32[0] * milliseconds;
    HEAP32[0] = 50; // as the loop does
    interrupts.check();
  }}
  return found;
}}
interrupts.lookSoon();
const said = [turns(5, 200), turns(300, 0.0001).at(-1), turns(3, 200)];
interrupts.lookSoon();
said.push(turns(20, 0.0001));
console.log(JSON.stringify(said));
"""


def test_where_turns_take_long_the_loop_looks_for_signals_at_each() -> None:
    """As in numpy. Where they do not, at every 49th: a look takes as long as a turn."""
    command = [str(node_binary()), "--input-type=module", "-e", COUNTS_SLOW_TURNS]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    slow, fast, slow_again, as_it_begins = json.loads(ran.stdout)
    assert slow == [1, 1, 1, 1, 1]
    assert fast == 49
    assert slow_again == [49, 1, 1]
    assert as_it_begins == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]


def test_a_loop_of_slow_calls_of_c_is_interrupted_and_keeps_the_variables(kernel: Kernel) -> None:
    """It was killed: the evaluation loop looked for signals at every 50th turn, and a call is two."""
    kernel.run("x = list(range(3 * 10**6))")
    ran = kernel.interrupt_once_it_prints(GO + "while True: max(x)")
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("len(x); del x").status == "ok"


COUNTS_THE_PROCESSORS_TIME = f"""
import {{ Interrupts }} from "{HOST}/interrupts.mjs";
import fs from "node:fs";
import process from "node:process";
const now = performance.now.bind(performance);
let later = 0;
performance.now = () => now() + later;
const interrupts = new Interrupts(fs.openSync(process.argv[1]), () => undefined, () => undefined);
const signals = interrupts.buffer({{ HEAP32: [0], __Py_emscripten_signal_clock: 0 }});
interrupts.begin(1);
later = 1000;
const found = [signals[0]];
interrupts.heard();
later = 3_600_000;
found.push(signals[0]);
for (const since = process.cpuUsage(); process.cpuUsage(since).user < 250_000; );
later += 1000;
found.push(signals[0]);
console.log(JSON.stringify(found));
"""


def test_a_busy_machine_does_not_make_an_interrupted_cell_stuck(tmp_path: Path) -> None:
    """It has not had the processor since the interrupt, and its event loop no chance to turn."""
    (tmp_path / "pipe").write_bytes(struct.pack("<I", 1))
    command = [str(node_binary()), "--input-type=module", "-e", COUNTS_THE_PROCESSORS_TIME, str(tmp_path / "pipe")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout) == [2, 0, 10]  # Emscripten's SIGINT and SIGUSR1


OPENS_MANY = """
import asyncio
from kernelmcp_guest.blocking import host_call
while True:
    for _ in range(50): open('f', 'w')
"""


@pytest.mark.parametrize(
    "code",
    [
        "while True: open('f', 'w').write('x')",
        "while True: open('f', 'w')",
        f"{OPENS_MANY}    await asyncio.sleep(0)",
        f"{OPENS_MANY}    host_call('install', module='no')",
    ],
    ids=["written", "opened", "opened, and the event loop turns", "opened, and the host answers"],
)
def test_an_interrupt_that_a_files_destructor_throws_away_is_raised_again(kernel: Kernel, code: str) -> None:
    kernel.run("kept = 41")
    for _ in range(10):
        ran = kernel.interrupt_once_it_prints(GO + code)
        assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept + 1").result == "42"


def test_input_is_interrupted_while_nobody_answers(kernel: Kernel) -> None:
    kernel.run("kept = 41")
    request = kernel.send("input('name? ')", allow_stdin=True)
    assert kernel.client.get_stdin_msg(timeout=90)["content"]["prompt"] == "name? "
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request).error == "KeyboardInterrupt: "
    assert kernel.run("kept").result == "41"


def test_an_interrupt_ends_the_debugger_that_asks_and_keeps_the_variables(kernel: Kernel) -> None:
    kernel.run("kept = 41")
    request = kernel.send("import pdb; pdb.set_trace()", allow_stdin=True)
    assert "pdb" in kernel.client.get_stdin_msg(timeout=90)["content"]["prompt"]
    kernel.interrupt()
    ran = kernel.finish(request)
    assert (ran.status, ran.state_lost) == ("ok", False)
    assert kernel.run("kept").result == "41"


def test_an_interrupt_as_the_guest_begins_to_wait_is_one(kernel: Kernel) -> None:
    kernel.run("kept = 41; import pdb")
    for code, error in (("input('name? ')", "KeyboardInterrupt: "), ("pdb.set_trace()\n1", "")) * 30:
        request = kernel.send(code, allow_stdin=True)
        assert kernel.client.get_stdin_msg(timeout=90)  # the call has gone up; the code that waits for it may still run
        kernel.interrupt()
        ran = kernel.finish(request)
        assert (ran.error if ran.status == "error" else "", ran.state_lost) == (error, False)
    assert kernel.run("kept").result == "41"


def test_an_interrupt_is_not_lost_in_host_calls_that_succeed(kernel: Kernel) -> None:
    kernel.run("from kernelmcp_guest.blocking import host_call")
    calls = f"{GO}while True: host_call('install', module='no')"
    kernel.run("kept = 41")
    for _ in range(12):
        ran = kernel.interrupt_once_it_prints(calls)
        assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept").result == "41"


def test_an_interrupt_in_the_event_loops_own_code_is_not_lost_with_the_answer(kernel: Kernel) -> None:
    kernel.run(
        "import asyncio, time\nfrom kernelmcp_guest.blocking import host_call\n"
        "kept, is_cancelled = 41, asyncio.Handle.cancelled\n"
        "def look_slowly(handle):\n    end = time.process_time() + 0.11\n    while time.process_time() < end: pass\n"
        "    return is_cancelled(handle)"
    )
    calls = f"{GO}asyncio.Handle.cancelled = look_slowly\nwhile True: host_call('install', module='no')"
    for _ in range(5):
        ran = kernel.interrupt_once_it_prints(calls)
        assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
        kernel.run("asyncio.Handle.cancelled = is_cancelled")
    assert kernel.run("kept").result == "41"


def test_a_cell_that_catches_the_interrupt_goes_on(kernel: Kernel) -> None:
    code = "try:\n    while True: pass\nexcept KeyboardInterrupt:\n    pass\n'caught'"
    ran = kernel.interrupt_once_it_prints(GO + code)
    assert (ran.status, ran.result) == ("ok", "'caught'")


def test_an_interrupt_that_comes_as_a_request_begins_is_not_lost(kernel: Kernel) -> None:
    for code in ["while True: pass", "import asyncio; await asyncio.sleep(1000)"] * 8:
        request = kernel.send(code)
        kernel.wait_until_busy(request)
        kernel.interrupt()
        ran = kernel.finish(request)
        assert (ran.reply["content"]["ename"], ran.state_lost) == ("KeyboardInterrupt", False)
    assert kernel.run("1 + 1").result == "2"


def test_an_interrupt_when_nothing_runs_hits_nothing(kernel: Kernel) -> None:
    kernel.interrupt()
    assert kernel.run("1 + 1").result == "2"


def test_an_interrupt_that_names_another_request_hits_nothing(kernel: Kernel) -> None:
    request = kernel.send("import time\nfor _ in range(20): time.sleep(0.01)\n'whole'")
    kernel.wait_until_busy(request)
    session = kernel.client.session
    message = session.msg("interrupt_request", {}, metadata={"kernelmcp": {"msg_id": "another"}})
    kernel.client.control_channel.send(message)
    assert kernel.finish(request).result == "'whole'"
    request = kernel.send("while True: pass")
    kernel.wait_until_busy(request)
    kernel.client.control_channel.send(
        session.msg("interrupt_request", {}, metadata={"kernelmcp": {"msg_id": request}})
    )
    assert kernel.finish(request).error == "KeyboardInterrupt: "


def test_cleanup_runs_when_an_await_is_interrupted(kernel: Kernel) -> None:
    code = "import asyncio\ntry:\n    await asyncio.sleep(1000)\nfinally:\n    print('cleaned up')"
    ran = kernel.interrupt_once_it_prints(GO + code)
    assert ran.text() == "go\ncleaned up\n"


def test_what_cannot_be_interrupted_is_killed_and_the_loss_is_said_until_it_was_seen(kernel: Kernel) -> None:
    kernel.run("kept = 41")
    ran = kernel.interrupt_once_it_prints("print('before')\nsum(range(10**13))")
    while ran.error.startswith("KeyboardInterrupt"):  # it came between the two statements
        ran = kernel.interrupt_once_it_prints("print('before')\nsum(range(10**13))")
    assert ran.error.startswith("GuestDied: The sandbox process ended: it could not be interrupted")
    assert "variables are lost" in ran.error
    assert (ran.text(), ran.state_lost) == ("before\n", True)
    first, second = kernel.run("'kept' in globals()"), kernel.run("1")
    assert (first.result, first.state_lost, second.state_lost) == ("False", True, False)


def test_what_was_printed_before_code_that_gives_nobody_a_turn_is_not_lost(kernel: Kernel) -> None:
    request = kernel.send("for i in range(20): print(i)\nprint('end', end='', flush=True)\nsum(range(10**13))")
    outputs = [kernel.output(request)]
    while not Ran({}, outputs).text().endswith("end"):
        outputs.append(kernel.output(request))
    kernel.manager.interrupt_kernel()
    ran = kernel.finish(request, outputs)
    assert ran.text() == "".join(f"{i}\n" for i in range(20)) + "end"


SWALLOWERS = {
    "a finalizer": (
        "class Slow:\n    def __del__(self):\n        print('go', flush=True)\n        while not over(): pass\n"
        "Slow()\nwhile True: pass"
    ),
    "a finalizer, then an await": (
        "import asyncio\nclass Slow:\n    def __del__(self):\n        print('go', flush=True)\n"
        "        while not over(): pass\nSlow()\nawait asyncio.sleep(1000)"
    ),
    "a finalizer in a task, while the cell blocks": (
        "import asyncio, time\nclass Slow:\n    def __del__(self):\n        print('go', flush=True)\n"
        "        while not over(): pass\n"
        "async def drop():\n    await asyncio.sleep(0.05)\n    Slow()\n"
        "async def both():\n    dropping = asyncio.ensure_future(drop())\n    await asyncio.sleep(1000)\n"
        "asyncio.run(both())"
    ),
}
# Long enough for the interrupt to arrive in it, wherever it arrives: then it is swallowed.
OVER = (
    "import time\nbegan = None\ndef over():\n    global began\n"
    "    began = began or time.monotonic()\n    return time.monotonic() > began + 30\n"
)


ALWAYS_SWALLOWED = {
    "finalizers, one after the other": (
        "import time\nclass Slow:\n    def __del__(self):\n        end = time.monotonic() + 0.02\n"
        "        while time.monotonic() < end: pass\nwhile True: Slow()"
    ),
    "finalizers of one object": (
        "import time\nclass Slow:\n    def __del__(self):\n        end = time.monotonic() + 0.02\n"
        "        while time.monotonic() < end: pass\nwhile True: [Slow() for _ in range(20)]"
    ),
    "no room for a handler": ("def f():\n    try: f()\n    except RecursionError: f()\nwhile True: f()"),
    "no room for a handler, beyond a limit of its own": (
        "import sys; sys.setrecursionlimit(300)\n"
        "def f():\n    try: f()\n    except RecursionError: f()\nwhile True: f()"
    ),
}


@pytest.mark.parametrize("code", ALWAYS_SWALLOWED.values(), ids=ALWAYS_SWALLOWED.keys())
def test_an_interrupt_gets_through_where_each_one_would_be_swallowed(kernel: Kernel, code: str) -> None:
    kernel.run("import sys; kept = 41; limit = sys.getrecursionlimit()")
    for _ in range(3):
        ran = kernel.interrupt_once_it_prints(GO + code)
        assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept + 1").result == "42"
    assert kernel.run("sys.setrecursionlimit(limit) if sys.getrecursionlimit() == 300 else 0").status == "ok"
    assert kernel.run("sys.getrecursionlimit() == limit").result == "True"


def test_an_interrupt_that_comes_again_while_its_handler_begins_leaves_the_recursion_limit(kernel: Kernel) -> None:
    kernel.run(
        "import sys, time\nlimit, set_limit = sys.getrecursionlimit(), sys.setrecursionlimit\n"
        "def set_slowly(limit):\n    sys.setrecursionlimit = set_limit\n    set_limit(limit)\n"
        "    end = time.monotonic() + 0.2\n    while time.monotonic() < end: pass"
    )
    ran = kernel.interrupt_once_it_prints(f"sys.setrecursionlimit = set_slowly\n{GO}while True: pass")
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("sys.setrecursionlimit is set_limit, sys.getrecursionlimit() == limit").result == "(True, True)"


@pytest.mark.parametrize("code", SWALLOWERS.values(), ids=SWALLOWERS.keys())
def test_an_interrupt_that_python_swallows_comes_again(kernel: Kernel, code: str) -> None:
    kernel.run(f"kept = 41\n{OVER}")
    ran = kernel.interrupt_once_it_prints(code)
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert "Exception ignored" in ran.text("stderr")
    assert kernel.run("kept").result == "41"


def test_an_interrupt_in_a_callback_of_ipython_ends_the_cell(kernel: Kernel) -> None:
    kernel.run(
        "def hook():\n    ip.events.unregister('pre_execute', hook)\n"
        "    print('go', flush=True)\n    while True: pass\n"
        "kept, ip = 41, get_ipython()\nip.events.register('pre_execute', hook)"
    )
    ran = kernel.interrupt_once_it_prints("while True: pass")
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept").result == "41"


def test_cleaning_up_after_an_interrupt_may_take_its_time(kernel: Kernel) -> None:
    code = "import time\ntry:\n    while True: pass\nfinally:\n    time.sleep(2.5); print('cleaned up')"
    ran = kernel.interrupt_once_it_prints(GO + code)
    assert (ran.error, ran.text()) == ("KeyboardInterrupt: ", "go\ncleaned up\n")


def test_an_interrupt_while_the_kernel_starts_is_answered() -> None:
    with running_kernel() as kernel:
        kernel.manager.restart_kernel(now=True)
        kernel.interrupt()
        kernel.client.wait_for_ready(timeout=90)
        assert kernel.run("1 + 1").result == "2"


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(100)"], ids=["computes", "sleeps"])
def test_a_widgets_callback_is_interrupted_after_the_cell_that_it_waited_for(kernel: Kernel, body: str) -> None:
    code = (
        f"import comm, time\nlink = comm.create_comm(target_name='t')\ndef hear(_):\n    print('go', flush=True)\n"
        f"    {body}\nlink.on_msg(hear)\ntime.sleep(1)"
    )
    request = kernel.send(code)
    opened = kernel.output(request)
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {}})
    kernel.client.shell_channel.send(message)

    def told() -> tuple[str, str]:
        """What tells of the callback, or of the cell's end: whose, and what."""
        while True:
            heard = kernel.client.get_iopub_msg(timeout=DEADLINE)
            content, parent = heard["content"], heard["parent_header"]["msg_id"]
            what = content.get("execution_state") or content.get("text") or content.get("ename")
            if parent == message["msg_id"] or (parent, what) == (request, "idle"):
                return parent, str(what)

    assert {told(), told()} == {(request, "idle"), (message["msg_id"], "go\n")}
    kernel.interrupt()
    assert [told(), told()] == [(message["msg_id"], "KeyboardInterrupt"), (message["msg_id"], "idle")]
    assert kernel.run("1 + 1").result == "2"
