"""Tasks that outlive their cell: they are bounded, and never in the way of the next cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import running_kernel
from .driver import DEADLINE, SLOW_STEPS, Kernel, wait_until

LEAVE = "import asyncio\nasync def later():\n{body}\ntask = asyncio.ensure_future(later()); await asyncio.sleep(0)"
# A task that waits until its cell has ended and says when it has, so that a loaded machine changes nothing.
OUTLIVE = (
    "import asyncio, os\nasync def later():\n    while not os.path.exists('go'): await asyncio.sleep(0.02)\n"
    "    print('began', flush=True)\n    try:\n{body}\n    finally: print('ended', flush=True)\n"
    "task = asyncio.ensure_future(later()); await asyncio.sleep(0)"
)
SPINS = {
    "never yields": "        while True: pass",
    "yields": "        while True: await asyncio.sleep(0)",
    "goes on when interrupted once": (
        "        try:\n            while True: pass\n        except KeyboardInterrupt: await asyncio.sleep(1000)"
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox")


@pytest.fixture(scope="module")
def kernel(sandbox: Path) -> Iterator[Kernel]:
    with running_kernel(KERNELMCP_BACKGROUND_CPU_SECONDS="0.5", KERNELMCP_SANDBOX_DIRECTORY=str(sandbox)) as running:
        yield running


@pytest.fixture
def leave(kernel: Kernel, sandbox: Path) -> Iterator[Callable[[str], str]]:
    """Run a cell that leaves a task; the id of its request. The body of the task begins after the cell's end."""
    go = sandbox / "workspace" / "go"

    def run(body: str) -> str:
        request = kernel.send(OUTLIVE.format(body=body))
        kernel.finish(request)
        go.touch()
        assert kernel.output(request)["content"]["text"] == "began\n"
        return request

    yield run
    go.unlink()


def test_a_shell_cell_does_not_wait_for_a_task_that_computes(kernel: Kernel, leave: Callable[[str], str]) -> None:
    kernel.run("%%bash\ntrue")  # starts the shell
    kernel.run("kept = 40")
    leave("        while not os.path.exists('seen'): pass")
    assert kernel.run("%%bash\ntouch seen; echo ran").text() == "ran\n"
    assert kernel.run("kept").result == "40"


@pytest.mark.parametrize("body", SPINS.values(), ids=SPINS.keys())
def test_a_task_that_burns_cpu_between_cells_is_cancelled_and_the_next_result_says_so(
    kernel: Kernel, leave: Callable[[str], str], body: str
) -> None:
    kernel.run("kept = 41")
    request = leave(body)
    assert kernel.output(request)["content"]["text"] == "ended\n"
    ran = kernel.run("kept + 1")
    assert (ran.result, ran.state_lost) == ("42", False)
    assert "were cancelled: they used more than 0.5 s of CPU time between two cells" in ran.text("stderr")
    assert kernel.run("1").text("stderr") == ""
    kernel.run("task.cancel()")


def test_a_task_that_yields_is_never_interrupted_between_two_of_its_steps(
    kernel: Kernel, leave: Callable[[str], str]
) -> None:
    kernel.run(SLOW_STEPS)
    request = leave(SPINS["yields"])
    assert kernel.output(request)["content"]["text"] == "ended\n"
    assert kernel.run("del loop.call_soon; task.cancelled()").result == "True"


def test_a_task_that_burns_cpu_from_the_turn_in_which_its_cell_ended_is_cancelled(kernel: Kernel) -> None:
    body = (
        "    for _ in range(2): await asyncio.sleep(0)\n    try:\n        while True: pass\n    finally: print('ended')"
    )
    kernel.run("kept = 41")
    request = kernel.send(LEAVE.format(body=body))
    kernel.finish(request)
    assert kernel.output(request)["content"]["text"] == "ended\n"
    ran = kernel.run("kept + 1")
    assert (ran.result, ran.state_lost) == ("42", False)


@pytest.mark.parametrize("body", SPINS.values(), ids=SPINS.keys())
def test_a_cell_that_a_task_of_an_earlier_one_keeps_from_beginning_is_interrupted(
    kernel: Kernel, leave: Callable[[str], str], body: str
) -> None:
    kernel.run("kept = 41")
    leave(body)
    request = kernel.send("import time; time.sleep(1000)")
    kernel.wait_until_busy(request)
    kernel.interrupt()
    ran = kernel.finish(request)
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept").result == "41"
    kernel.run("task.cancel()")


def test_one_that_cannot_be_cancelled_ends_the_guest_and_the_next_result_says_why(
    kernel: Kernel, leave: Callable[[str], str]
) -> None:
    leave("        sum(range(10**13))")
    before = kernel.guests()
    assert wait_until(lambda: kernel.guests() not in ([], before))
    ran = kernel.run("1")
    assert (ran.result, ran.state_lost) == ("1", True)
    assert "tasks that cells left behind used more than 0.5 s of CPU time" in ran.text("stderr")


@pytest.mark.parametrize(
    "call",
    [
        "urllib.request.urlopen('http://example.org/')",
        "await pyodide.http.pyfetch('http://example.org/')",
        "await micropip.install('nothing')",
        "input()",
    ],
)
def test_a_host_call_of_a_task_that_outlived_its_cell_is_answered_and_a_later_interrupt_reaches_its_cell(
    kernel: Kernel, call: str
) -> None:
    names = "import asyncio, urllib.request, pyodide.http, micropip\nanswered = asyncio.Event()\n"
    body = f"    await asyncio.sleep(0.2)\n    try: {call}\n    finally: answered.set()"
    kernel.run(names + LEAVE.format(body=body), allow_stdin=True)
    kernel.run("kept = 41")
    assert (
        kernel.run("await asyncio.wait_for(answered.wait(), 30); isinstance(task.exception(), Exception)").result
        == "True"
    )
    ran = kernel.interrupt_once_it_prints("print('go', flush=True)\nawait asyncio.sleep(1000)")
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept").result == "41"


def test_an_interrupt_reaches_the_cell_while_a_task_of_an_earlier_one_blocks(kernel: Kernel) -> None:
    body = "    from pyodide.ffi import run_sync\n    run_sync(asyncio.sleep(3))\n    return 'went on'"
    kernel.run("kept = 41\n" + LEAVE.format(body=body))
    ran = kernel.interrupt_once_it_prints("print('go', flush=True)\nawait asyncio.sleep(1000)")
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("await task").result == "'went on'"


@pytest.mark.parametrize("wait", ["await task", "await asyncio.gather(task, asyncio.sleep(1000))"])
def test_an_interrupt_reaches_a_task_of_an_earlier_cell_that_the_cell_waits_for(kernel: Kernel, wait: str) -> None:
    body = "    from pyodide.ffi import run_sync\n    run_sync(asyncio.sleep(1000))"
    kernel.run("kept = 41\n" + LEAVE.format(body=body))
    ran = kernel.interrupt_once_it_prints(f"print('go', flush=True)\n{wait}")
    assert (ran.status, ran.state_lost) == ("error", False)
    assert kernel.run("kept").result == "41"


def test_a_cell_that_awaits_is_interrupted_though_another_task_of_it_blocks(kernel: Kernel) -> None:
    body = "    from pyodide.ffi import run_sync\n    run_sync(asyncio.sleep(1000))"
    code = LEAVE.format(body=body) + "\nprint('go', flush=True)\nawait asyncio.sleep(1000)"
    kernel.run("kept = 41")
    ran = kernel.interrupt_once_it_prints(code)
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept").result == "41"


def test_a_comm_message_arrives_while_a_cell_awaits_it(kernel: Kernel) -> None:
    code = (
        "import asyncio, comm\nheard = asyncio.get_event_loop().create_future()\n"
        "link = comm.create_comm(target_name='t')\n"
        "def hear(message):\n    link.send('thanks'); heard.set_result(message['content']['data'])\n"
        "link.on_msg(hear)\nawait asyncio.wait_for(heard, 30)"
    )
    request = kernel.send(code)
    opened = kernel.output(request)
    assert opened["msg_type"] == "comm_open"
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {"a": 2}})
    kernel.client.shell_channel.send(message)
    while (answer := kernel.client.get_iopub_msg(timeout=DEADLINE))["msg_type"] != "comm_msg":
        pass
    assert answer["parent_header"]["msg_id"] == message["msg_id"]
    assert answer["content"]["data"] == "thanks"
    told = [kernel.client.get_iopub_msg(timeout=DEADLINE) for _ in range(2)]
    statuses = [(each["parent_header"]["msg_id"], each["content"].get("execution_state")) for each in told]
    assert statuses == [(message["msg_id"], "idle"), (request, "busy")], "the widget may send the next one"
    assert kernel.finish(request).result == "{'a': 2}"


def test_a_widget_may_send_again_only_when_its_message_was_handled_after_the_cell(kernel: Kernel) -> None:
    code = (
        "import comm\nheard = []\nlink = comm.create_comm(target_name='t')\n"
        "link.on_msg(lambda message: heard.append(1))\nimport time; time.sleep(1); heard"
    )
    request = kernel.send(code)
    opened = kernel.output(request)
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {}})
    kernel.client.shell_channel.send(message)
    results: list[str] = []
    told: dict[str, list[str]] = {request: [], message["msg_id"]: []}
    while any("idle" not in states for states in told.values()):  # in either order: both come at the cell's end
        heard = kernel.client.get_iopub_msg(timeout=DEADLINE)
        if heard["msg_type"] == "status":
            told[heard["parent_header"]["msg_id"]].append(heard["content"]["execution_state"])
        elif heard["msg_type"] == "execute_result":
            results.append(heard["content"]["data"]["text/plain"])
    kernel.reply(request)
    assert (results, told[message["msg_id"]]) == (["[]"], ["idle"])
    assert kernel.run("heard").result == "[1]"


def test_an_interrupt_that_a_widgets_callback_takes_while_it_sleeps_reaches_the_cell_that_waits(kernel: Kernel) -> None:
    code = (
        "import asyncio, comm, time\nlink = comm.create_comm(target_name='t')\n"
        "def hear(message):\n    link.send('asleep'); time.sleep(1000)\n"
        "link.on_msg(hear)\nawait asyncio.sleep(1000)"
    )
    kernel.run("kept = 41")
    request = kernel.send(code)
    opened = kernel.output(request)
    message = kernel.client.session.msg("comm_msg", {"comm_id": opened["content"]["comm_id"], "data": {}})
    kernel.client.shell_channel.send(message)
    while kernel.client.get_iopub_msg(timeout=DEADLINE)["msg_type"] != "comm_msg":
        pass
    kernel.interrupt()
    ran = kernel.finish(request)
    assert (ran.error, ran.state_lost) == ("KeyboardInterrupt: ", False)
    assert kernel.run("kept").result == "41"
