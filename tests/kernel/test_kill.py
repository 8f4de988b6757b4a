"""Code that ends its own kernel by a signal, as people restart a kernel in Jupyter: the kernel process ends, without a
reply. A program's own handlers run, and nothing but its own kernel process can be ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from ..processes import is_alive
from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until
from .test_hostile_frames import FLOOD

PLAIN = "import os, signal, asyncio\n"

ENDINGS = {
    "os.kill": ("os.kill(os.getpid(), signal.SIGTERM)", 15),
    "number": ("os.kill(os.getpid(), 9)", 9),
    "its group": ("os.kill(0, signal.SIGHUP)", 1),
    "killpg": ("os.killpg(os.getpgrp(), signal.SIGTERM)", 15),
    "raise_signal": ("signal.raise_signal(signal.SIGTERM)", 15),
    "a signal that we use ourselves": ("os.kill(os.getpid(), signal.SIGUSR1)", 10),
    "one that dumps core elsewhere": ("os.kill(os.getpid(), signal.SIGSEGV)", 11),
    "default action": ("signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)", 2),
    "no handler for SIGKILL": ("signal.signal(9, print)\nos.kill(os.getpid(), 9)", 9),
    "while it awaits": ("await asyncio.sleep(0); os.kill(os.getpid(), signal.SIGTERM)", 15),
    "a task": ("async def end(): os.kill(os.getpid(), signal.SIGTERM)\nawait asyncio.create_task(end())", 15),
}


def exit_status(kernel: Kernel) -> int | None:
    """The kernel process's, once it has ended. A shell shows the same for a signal: 128 and its number."""
    process = kernel.manager.provisioner.process
    assert wait_until(lambda: process.poll() is not None)
    return process.poll()


@pytest.mark.parametrize(("code", "number"), ENDINGS.values(), ids=ENDINGS.keys())
def test_a_deadly_signal_ends_the_kernel_process_without_a_reply(code: str, number: int) -> None:
    with running_kernel() as kernel:
        guests = kernel.guests()
        request = kernel.send(f"{PLAIN}print('before')\n{code}\nprint('after')")
        assert exit_status(kernel) == 128 + number
        assert not any(is_alive(guest) for guest in guests)
        assert kernel.output(request)["content"]["text"] == "before\n"
        while kernel.client.shell_channel.msg_ready():  # replies to what asked whether the kernel is ready
            assert kernel.client.get_shell_msg(timeout=DEADLINE)["parent_header"]["msg_id"] != request


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as running:
        running.prepare(PLAIN)
        yield running


LIVES = {
    "a handler": ("signal.signal(15, lambda *_: print('got')); os.kill(os.getpid(), 15)", "got\n", None),
    "a handler, raised": ("signal.raise_signal(15)", "got\n", None),
    "a handler that raises": (
        "def no(*_): raise ValueError('no')\nsignal.signal(1, no)\nos.kill(0, 1)",
        "",
        "ValueError: no",
    ),
    "ignored": ("signal.signal(15, signal.SIG_IGN); os.kill(os.getpid(), 15)", "", None),
    "a real-time signal's handler": ("signal.signal(50, lambda n, _: print(n)); os.kill(0, 50)", "50\n", None),
    "a real-time signal": ("os.kill(0, 51)", "", "PermissionError: signal 51 would end the kernel process, and has no"),
    "no signal": ("os.kill(os.getpid(), 0)", "", None),
    "ignored by default": ("os.kill(os.getpid(), signal.SIGCHLD); signal.raise_signal(signal.SIGWINCH)", "", None),
    "SIGPIPE": ("os.kill(os.getpid(), signal.SIGPIPE)", "", None),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT)", "", "KeyboardInterrupt: "),
    "SIGINT, raised": ("signal.raise_signal(signal.SIGINT)", "", "KeyboardInterrupt: "),
    "SIGSTOP": ("os.kill(0, signal.SIGSTOP)", "", "PermissionError: SIGSTOP would stop the kernel process for good"),
    "no such signal": ("os.kill(0, 999)", "", "OSError: [Errno 28] Invalid argument"),
    "no such signal, raised": ("signal.raise_signal(99)", "", "OSError: [Errno 28] Invalid argument"),
    "below zero": ("os.kill(os.getpid(), -9)", "", "OSError: [Errno 28] Invalid argument"),
    "no number": ("os.kill(os.getpid(), 'x')", "", "TypeError: 'str' object cannot be interpreted as an integer"),
    "no process number": ("os.kill('x', 9)", "", "TypeError: 'str' object cannot be interpreted as an integer"),
    "every process": ("os.kill(-1, 9)", "", "ProcessLookupError: -1 is not a process of the sandbox"),
    "another process": ("os.kill(1, 9)", "", "ProcessLookupError: 1 is not a process of the sandbox"),
    "another group": ("os.killpg(1, 9)", "", "ProcessLookupError: 1 is not a process group of the sandbox"),
}


@pytest.mark.parametrize(("code", "printed", "error"), LIVES.values(), ids=LIVES.keys())
def test_what_is_not_deadly_or_is_handled_ends_nothing(
    kernel: Kernel, code: str, printed: str, error: str | None
) -> None:
    ran = kernel.run(code)
    assert ran.text() == printed
    assert (ran.status, ran.state_lost) == ("error" if error else "ok", False)
    assert error is None or ran.error.startswith(error), ran.error
    assert kernel.run("1 + 1").result == "2"


@pytest.fixture(scope="module")
def hostile() -> Iterator[Kernel]:
    """Its JavaScript keeps what a hostile guest would find its way to."""
    with running_kernel(KERNELMCP_KEEP_GLOBALS="1") as running:
        yield running


NO_SIGNALS = [
    None, 9, 9.0, True, "", "9", "SIG", "SIG_DFL", "SIGSTOP", "SIGCHLD", "SIGRTMIN", "sigkill", "SIGKILL ", "SIGNONE",
    "__members__", "x" * 100_000, [], ["SIGKILL"], {}, {"SIGKILL": 1},
]  # fmt: skip


def test_a_frame_that_names_no_deadly_signal_ends_nothing(hostile: Kernel) -> None:
    for signal in NO_SIGNALS:
        arguments = {"call": "kill", "signal": signal, "pid": 1}
        ran = hostile.run(f"{FLOOD}\nwrite(frames('call', 1, number=1, arguments={arguments!r}))")
        assert (ran.status, ran.state_lost) == ("ok", False), json.dumps(signal)[:80]
    assert hostile.run(f"{FLOOD}\nwrite(frames('call', 50, number=1, arguments={{'call': 'kill'}}))").status == "ok"
    assert hostile.run("1 + 1").result == "2"


def test_only_a_cell_that_runs_may_end_the_kernel(hostile: Kernel) -> None:
    later = "import asyncio, os\nasync def end():\n    await asyncio.sleep(0.3)\n    os.kill(os.getpid(), 9)\n"
    ran = hostile.run(f"{later}task = asyncio.create_task(end()); first = __import__('time').monotonic()")
    assert ran.status == "ok"
    ran = hostile.run("await asyncio.wait([task]); task.exception()")
    assert "the cell that made this call has ended" in (ran.result or "")
    forged = "frames('call', 1, number=1, arguments={'call': 'kill', 'signal': 'SIGKILL'})"
    for request, ends in (("''", False), ("'0' * 16", False), ("'x' * 100_000", True)):
        forge = f"import asyncio; own = request_id.set({request}); forged = {forged}; request_id.reset(own)"
        ran = hostile.run(f"{FLOOD}\n{forge}\nwrite(forged)\nif {ends}: await asyncio.Event().wait()")
        assert (ran.status, "it broke the protocol" in ran.error) == ("error" if ends else "ok", ends)
    assert hostile.run("1 + 1").result == "2"


def test_a_private_directory_waits_for_a_kernel_that_has_ended_itself_as_long_as_it_may_come_back(
    tmp_path: Path,
) -> None:
    with running_kernel(TMPDIR=str(tmp_path)) as kernel:
        kernel.send("import os; open('file', 'w').write('x'); os.kill(os.getpid(), 9)")
        assert exit_status(kernel) == 137
        assert len(list(tmp_path.glob("*/*/workspace/file"))) == 1
    with running_kernel(TMPDIR=str(tmp_path)):
        assert list(tmp_path.glob("*/*/workspace/file")) == []


def test_a_named_sandbox_directory_keeps_its_files(own_kernel: Kernel, sandbox: Path) -> None:
    own_kernel.send("import os; open('file', 'w').write('x'); os.kill(os.getpid(), 9)")
    assert exit_status(own_kernel) == 137
    assert (sandbox / "workspace" / "file").read_text() == "x"
    assert sandbox.stat().st_mode & 0o777 == 0o700, "no longer sealed"


def test_a_restarter_brings_a_kernel_that_has_ended_itself_back() -> None:
    with running_kernel() as kernel:
        kernel.send("import os; os.kill(os.getpid(), 9)")
        assert exit_status(kernel) == 137
        kernel.manager.restart_kernel(now=True)  # what the restarter of Jupyter's server does
        kernel.client.wait_for_ready(timeout=DEADLINE)
        assert kernel.run("1 + 1").result == "2"


def test_nbclient_sees_a_dead_kernel() -> None:
    cell = nbformat.v4.new_code_cell("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    with pytest.raises(DeadKernelError):
        NotebookClient(notebook, kernel_name="kernelmcp", timeout=DEADLINE, startup_timeout=DEADLINE).execute()
