"""Kernel processes that are forks (kernelmcp/kernel/forks.py): those of a server that has some already."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest
import zmq.asyncio
from mcp import Client

from kernelmcp.errors import KernelStartFailed
from kernelmcp.kernel import forks
from kernelmcp.kernel.forks import FOLDER, KERNEL_COMMAND, MIN_KERNELS, ForkedProcess, Forks, ForkServer
from kernelmcp.kernel.process import ForkingManager, Kernel, Launch, run_kernel

from ..processes import FORK_SERVER, children, command_line, is_alive
from ..starting import DEADLINE
from .support import Connect, kernel_pids, server_of_test, wait_until
from .test_continuing import killed
from .test_session_life import call

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.cold,
    pytest.mark.skipif(not forks.can_fork(), reason="kernel processes are forked on Linux with glibc only"),
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="only our own are forked"),
]
VARIABLE = "KERNELMCP_SANDBOX_DIRECTORY"
COMMAND = [*KERNEL_COMMAND, "-f", "/c.json"]
NOTHING: frozenset[str] = frozenset()
# Two forks of one process, each with a thread: whose child it is, whether Python and glibc know their
# thread's number, and random numbers.
SIBLINGS = """
import ctypes, os, random, ssl, sys, threading
from kernelmcp_kernel.fork_server import _PR_GET_TID_ADDRESS, _fork_a_sibling
place = ctypes.c_void_p()
assert ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0) == 0
random.random(), ssl.RAND_bytes(8)
for _ in range(2):
    if _fork_a_sibling() == 0:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        own = threading.get_native_id() == os.getpid() == ctypes.c_int.from_address(place.value).value
        row = os.getpid(), os.getppid(), own, random.random(), ssl.RAND_bytes(8).hex()
        os.write(1, (" ".join(map(str, row)) + "\\n").encode())  # whole: both write at once
        os._exit(7)
"""


def fork_servers(server: psutil.Process) -> list[psutil.Process]:
    """Those that are ready."""
    return [child for child in children(server.pid) if command_line(child) == [FORK_SERVER]]


def is_forked(pid: int) -> bool:
    """A fork's own variables are not those that its process began with."""
    return VARIABLE.encode() not in environment_of(pid)


def environment_of(pid: int) -> bytes:
    """What its process began with."""
    return Path(f"/proc/{pid}/environ").read_bytes()


async def run_sessions(client: Client, *names: str) -> dict[str, int]:
    """Run a cell in each of these new sessions; returns the kernel process of each."""
    found: dict[str, int] = {}
    for name in names:
        before = set(kernel_pids())
        ran = await call(client, "execute_code", code="x = 20 + 1; x * 2", session_id=name)
        assert ran["result"] == "42"
        [found[name]] = set(kernel_pids()) - before
    return found


async def with_a_fork_server(client: Client) -> psutil.Process:
    """The fork server, once it is ready. Takes sessions, which are stopped."""
    names = [f"before{number}" for number in range(MIN_KERNELS)]
    assert not any(map(is_forked, (await run_sessions(client, *names)).values()))
    server = server_of_test()
    assert wait_until(lambda: len(fork_servers(server)) == 1)
    [found] = fork_servers(server)
    for name in names:
        await call(client, "stop_session", session_id=name)
    return found


def wires(pid: int) -> set[str]:
    """Its sockets and pipes."""
    found = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return {each for each in found if each.startswith(("socket:", "pipe:"))}


async def test_a_fork_is_a_kernel_process_like_any_other(connect: Connect) -> None:
    async with connect() as client:
        server, fork_server = server_of_test(), await with_a_fork_server(client)
        kernels = await run_sessions(client, "a", "b")
        for pid in kernels.values():
            kernel = psutil.Process(pid)
            assert is_forked(pid)
            assert (kernel.ppid(), os.getpgid(pid), os.getsid(pid)) == (server.pid, pid, pid)
            *command, file = command_line(kernel)
            assert (command, Path(file).suffix) == ([*KERNEL_COMMAND, "-f"], ".json")
            assert kernel.cwd() == "/"
        one, other, origin = (wires(pid) for pid in (*kernels.values(), fork_server.pid))
        assert origin
        assert (one & origin, other & origin, one & other) == (set(), set(), set())
        os.kill(kernels["a"], signal.SIGKILL)
        assert wait_until(lambda: not psutil.pid_exists(kernels["a"])), "it is waited for"
        after = await call(client, "execute_code", code="'x' in globals()", session_id="a")
        assert after["result"] == "False"
        await call(client, "stop_session", session_id="b")
        assert wait_until(lambda: not psutil.pid_exists(kernels["b"]))
    assert wait_until(lambda: not is_alive(fork_server))


def test_forks_of_one_process_are_its_parents_and_draw_their_own_random_numbers() -> None:
    ran = subprocess.run([sys.executable, "-c", SIBLINGS], capture_output=True, text=True, timeout=DEADLINE, check=True)
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert len(rows) == 2
    for pid, parent, own, *_ in rows:
        assert (int(parent), own) == (os.getpid(), "True")
        assert os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1]) == 7
    assert rows[0][3] != rows[1][3]
    assert rows[0][4] != rows[1][4]


async def test_without_its_fork_server_a_server_starts_kernels(connect: Connect) -> None:
    async with connect() as client:
        fork_server = await with_a_fork_server(client)
        [forked] = (await run_sessions(client, "a")).values()
        fork_server.kill()
        assert wait_until(lambda: not is_alive(fork_server))
        [started] = (await run_sessions(client, "b")).values()
        assert (is_forked(forked), is_forked(started)) == (True, False)
        kept = await call(client, "execute_code", code="x", session_id="a")
        assert kept["result"] == "21"


async def test_a_killed_server_takes_its_forks_with_it(connect: Connect) -> None:
    async with killed(connect) as client:
        fork_server = await with_a_fork_server(client)
        kernels = [psutil.Process(pid) for pid in (await run_sessions(client, "a")).values()]
        everything = [fork_server, *kernels, *(guest for kernel in kernels for guest in children(kernel.pid))]
        assert len(everything) == 3
    assert wait_until(lambda: not any(map(is_alive, everything)))


# -- the server's side -------------------------------------------------------------------------------------------------


class Silent(ForkServer):
    """Answers what a test sends to `theirs`."""

    def __init__(self) -> None:
        self.wire, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire.setblocking(False)

    def is_ready(self) -> bool:
        return True

    def say(self, *answers: object) -> None:
        for each in answers:
            self.theirs.send(json.dumps(each).encode())

    def end(self) -> None:
        self.theirs.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.theirs.close()
    server.wire.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def forks_of(server: ForkServer) -> Forks:
    found = Forks()
    vars(found)["_server"] = server
    return found


async def fork(found: Forks, **environment: str) -> ForkedProcess | None:
    return await found.fork(COMMAND, environment, FOLDER, NOTHING, 1)


def is_given_up(found: Forks) -> bool:
    return vars(found)["_wanted_from"] > time.monotonic()


async def test_a_fork_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, silent: Silent) -> None:
    monkeypatch.setattr(forks, "ANSWER_SECONDS", 0.1)
    found = forks_of(silent)
    assert await fork(found) is None
    assert is_given_up(found)
    assert await fork(found) is None


@pytest.mark.parametrize(
    "answers", [[{}], [[]], [7], ["nonsense"], [{"pid": "x"}], [{"error": "no memory"}], [{"ready": True}]], ids=repr
)
async def test_an_answer_that_is_none_is_no_kernel(answers: list[object], silent: Silent) -> None:
    found = forks_of(silent)
    silent.say(*answers)
    assert await fork(found) is None
    assert is_given_up(found)


async def test_after_some_minutes_there_is_a_fork_server_again(monkeypatch: pytest.MonkeyPatch, silent: Silent) -> None:
    monkeypatch.setattr(forks, "PAUSE_SECONDS", 0)
    found, again = forks_of(silent), Silent()
    monkeypatch.setattr(forks, "ForkServer", lambda _: again)

    async def kernels_started() -> None:
        for _ in range(MIN_KERNELS):
            found.kernel_started({}, NOTHING)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    for pause in (1, 2):
        silent.say({"error": "no memory"})
        assert await fork(found) is None
        await kernels_started()
        assert vars(found)["_server"] is None
        assert vars(found)["_wanted_from"] > time.monotonic() + (pause - 0.5) * forks.RETRY_SECONDS
        vars(found)["_wanted_from"] = time.monotonic()
        await kernels_started()
        assert vars(found)["_server"] is again
        silent = again
    await found.close()
    again.theirs.close()


async def test_a_fork_that_ended_at_once_is_waited_for(silent: Silent, child: subprocess.Popen[bytes]) -> None:
    found, process = forks_of(silent), psutil.Process(child.pid)
    silent.say({"pid": child.pid}, {"error": "it ended at once"})
    assert await fork(found) is None
    assert wait_until(lambda: not is_alive(process))
    await found.close()
    assert not psutil.pid_exists(child.pid)


async def test_who_is_cancelled_leaves_neither_a_kernel_nor_an_answer(
    silent: Silent, child: subprocess.Popen[bytes]
) -> None:
    found, unclaimed = forks_of(silent), psutil.Process(child.pid)
    waiting = asyncio.create_task(fork(found))
    await asyncio.get_running_loop().sock_recv(_nonblocking(silent.theirs), 1 << 16)
    waiting.cancel()
    assert await asyncio.wait([waiting])
    silent.say({"pid": child.pid}, {"ready": True})
    following = asyncio.create_task(fork(found))
    await asyncio.get_running_loop().sock_recv(silent.theirs, 1 << 16)
    silent.say({"pid": 1 << 22}, {"ready": True})
    process = await following
    assert process is not None
    assert process.pid == 1 << 22
    assert wait_until(lambda: not is_alive(unclaimed))


def _nonblocking(wire: socket.socket) -> socket.socket:
    wire.setblocking(False)
    return wire


async def test_a_change_of_settings_meanwhile_costs_one_fork(silent: Silent) -> None:
    found = forks_of(silent)
    waiting = asyncio.create_task(fork(found))
    await asyncio.get_running_loop().sock_recv(_nonblocking(silent.theirs), 1 << 16)
    found.withhold(frozenset({"SECRET"}))
    assert await waiting is None
    assert not is_given_up(found)


async def test_an_environment_that_is_too_large_costs_one_fork(silent: Silent) -> None:
    found = forks_of(silent)
    assert await fork(found, LARGE="x" * (8 << 20)) is None
    assert not is_given_up(found)


async def test_a_secret_that_kernels_must_not_have_is_not_kept_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PAUSE_SECONDS", 0)
    found, secret = Forks(), frozenset({"SECRET"})

    async def environment_after(environment: dict[str, str], withheld: frozenset[str]) -> bytes | None:
        for _ in range(MIN_KERNELS):
            found.kernel_started({**os.environ, **environment}, withheld)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if (server := vars(found)["_server"]) is None:
            return None
        pid = vars(server)["_process"].pid
        assert await asyncio.to_thread(wait_until, lambda: environment_of(pid) != b"")  # it has begun its program
        return environment_of(pid)

    first = await environment_after({"SECRET": "s3cret", VARIABLE: "/tmp"}, NOTHING)
    assert first is not None
    assert b"s3cret" in first
    assert VARIABLE.encode() not in first
    found.withhold(secret)
    assert await environment_after({"SECRET": "s3cret"}, NOTHING) is None, "a kernel of before it is ready only now"
    second = await environment_after({}, secret)
    assert second is not None
    assert b"s3cret" not in second
    await found.close()


async def test_forks_that_do_not_get_ready_are_given_up(tmp_path: Path) -> None:
    found = forks_of(server := ForkServer(os.environ))
    assert wait_until(server.is_ready)
    environment = {"KERNELMCP_REQUIRED_LAYERS": "magic", VARIABLE: str(tmp_path / "sandbox")}
    launch = Launch("kernelmcp", tmp_path / "r", "k1", Path(FOLDER), environment, DEADLINE, forks=found)
    context = zmq.asyncio.Context()
    with pytest.raises(KernelStartFailed, match="required_layers: this machine does not have magic"):
        await run_kernel(context, launch, task_status=anyio.TASK_STATUS_IGNORED)
    assert is_given_up(found)
    await found.close()
    context.destroy(linger=0)


async def test_a_start_that_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[int] = []
    stock = ForkingManager._async_launch_kernel

    async def launch(self: ForkingManager, kernel_cmd: list[str], **options: object) -> None:
        await stock(self, kernel_cmd, **options)
        started.append(int(str(vars(self.provisioner)["pid"])))
        raise asyncio.CancelledError

    monkeypatch.setattr(ForkingManager, "_async_launch_kernel", launch)
    context = zmq.asyncio.Context()
    kernel = Kernel(context, Launch("kernelmcp", tmp_path / "r", "k1", Path(FOLDER), {}, DEADLINE))
    with pytest.raises(asyncio.CancelledError):
        await kernel.spawn()
    assert psutil.pid_exists(started[0])
    await kernel.close()
    assert not psutil.pid_exists(started[0])
    context.destroy(linger=0)
