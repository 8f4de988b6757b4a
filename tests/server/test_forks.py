"""Kernel processes that are forks (kernelmcp/kernel/forks.py): those of a server that has had some already."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mcp import Client

from kernelmcp.kernel import forks
from kernelmcp.kernel.forks import KERNEL_COMMAND, STARTED_BEFORE, Forks

from ..processes import FORK_SERVER, children, command_line, is_alive
from ..starting import DEADLINE
from .support import Connect, kernel_pids, server_of_test, wait_until
from .test_continuing import killed
from .test_session_life import call

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.cold,
    pytest.mark.skipif(not forks.IS_SUPPORTED, reason="kernel processes are forked on Linux only"),
    pytest.mark.skipif(os.environ.get("TEST_KERNELSPEC", "kernelmcp") != "kernelmcp", reason="only our own are forked"),
]
VARIABLE = "KERNELMCP_SANDBOX_DIRECTORY"


def fork_servers(server: psutil.Process) -> list[psutil.Process]:
    """Those that are ready."""
    return [child for child in children(server.pid) if command_line(child) == [FORK_SERVER]]


def is_forked(pid: int) -> bool:
    """A fork's own variables are not those that its process began with."""
    return VARIABLE.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


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
    """The fork server, once it is ready. Takes three sessions, which are stopped."""
    names = [f"before{number}" for number in range(STARTED_BEFORE)]
    assert not any(map(is_forked, (await run_sessions(client, *names)).values()))
    server = server_of_test()
    assert wait_until(lambda: len(fork_servers(server)) == 1)
    [found] = fork_servers(server)
    for name in names:
        await call(client, "stop_session", session_id=name)
    return found


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
            assert not any(is_alive(child) and child.pid == fork_server.pid for child in children(pid))
        await call(
            client, "execute_code", code="import random, os; mine = random.random(), os.urandom(8)", session_id="a"
        )
        one = await call(client, "execute_code", code="mine", session_id="a")
        await call(
            client, "execute_code", code="import random, os; mine = random.random(), os.urandom(8)", session_id="b"
        )
        assert one["result"] != (await call(client, "execute_code", code="mine", session_id="b"))["result"]
        os.kill(kernels["a"], signal.SIGKILL)
        assert wait_until(lambda: not psutil.pid_exists(kernels["a"])), "it is waited for"
        after = await call(client, "execute_code", code="'x' in globals()", session_id="a")
        assert after["result"] == "False"
        await call(client, "stop_session", session_id="b")
        assert wait_until(lambda: not psutil.pid_exists(kernels["b"]))
    assert wait_until(lambda: not is_alive(fork_server))


async def test_descriptors_of_the_fork_server_stay_there(connect: Connect) -> None:
    async with connect() as client:
        await with_a_fork_server(client)
        started = await run_sessions(client, "a", "b")
        sockets = [
            {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) < 3}
            for pid in started.values()
        ]
        assert all(len(each) == 2 and os.devnull in each for each in sockets), "null, and the log"
        assert sockets[0] != sockets[1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_without_its_fork_server_a_server_starts_kernels(connect: Connect, how: signal.Signals) -> None:
    async with connect() as client:
        fork_server = await with_a_fork_server(client)
        [forked] = (await run_sessions(client, "a")).values()
        fork_server.send_signal(how)
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


@pytest.fixture
def prepared() -> Iterator[Forks]:
    found = Forks()
    for _ in range(STARTED_BEFORE):
        found.prepare({**os.environ, "SECRET": "s3cret", VARIABLE: "/tmp"}, frozenset())
    yield found
    found.close()


def environment_of(found: Forks) -> bytes:
    process = vars(found)["_process"]
    assert isinstance(process, subprocess.Popen)
    return Path(f"/proc/{process.pid}/environ").read_bytes()


async def test_a_secret_that_kernels_must_not_have_is_not_kept_for_them(prepared: Forks) -> None:
    first = environment_of(prepared)
    assert b"s3cret" in first
    assert VARIABLE.encode() not in first
    assert await prepared.fork(KERNEL_COMMAND, {}, frozenset({"SECRET"}), 1) is None
    prepared.prepare(dict(os.environ), frozenset({"SECRET"}))
    assert b"s3cret" not in environment_of(prepared)


async def test_a_fork_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "ANSWER_SECONDS", 0.1)
    found = Forks()
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setblocking(False)
    vars(found).update(_wire=own, _is_ready=True)
    with theirs:
        assert await found.fork([*KERNEL_COMMAND, "-f", "/c.json"], {}, frozenset(), 1) is None
        assert theirs.recv(1 << 16)
        assert theirs.recv(1) == b"", "it is told to end"
    for _ in range(STARTED_BEFORE):
        found.prepare(dict(os.environ), frozenset())
    assert vars(found)["_process"] is None


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b"nonsense", b'{"pid": "x"}', b'{"error": "no memory"}'])
async def test_an_answer_that_is_none_is_no_kernel(answer: bytes) -> None:
    found = Forks()
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setblocking(False)
    vars(found).update(_wire=own, _is_ready=True)
    with theirs:
        if answer:
            theirs.send(answer)
        else:
            theirs.close()
        assert await found.fork([*KERNEL_COMMAND, "-f", "/c.json"], {}, frozenset(), 1) is None


async def test_an_environment_that_is_too_large_for_the_wire(prepared: Forks) -> None:
    assert select.select([vars(prepared)["_wire"]], [], [], DEADLINE)[0], "it is ready"
    large = {"LARGE": "x" * (8 << 20)}
    assert await prepared.fork([*KERNEL_COMMAND, "-f", "/c.json"], large, frozenset(), 1) is None
