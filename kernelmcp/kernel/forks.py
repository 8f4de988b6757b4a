"""Starts kernel processes as forks of one that has imported what they need (kernelmcp_kernel/fork_server.py).

A start takes two thirds less of CPU, and a process 10 MB less of memory. A server with one or two kernels does without:
their imports run beside the guest's start, and it would have one process more for nothing.
"""

import asyncio
import errno
import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import structlog

from kernelmcp.process_start import python_command

KERNEL_COMMAND = python_command("kernelmcp_kernel")
# The working directory of forks.
FOLDER = "/"
# Kernels that a server has at the same time when it gets a fork server.
MIN_KERNELS = 3
# The fork server's own imports wait for so long: they would compete with the first cell of the kernel before.
PAUSE_SECONDS = 2.0
# A fork takes 5 ms. An environment of over 200 kB does not fit into the request: then its kernel alone is started.
ANSWER_SECONDS = 10.0
MAX_ANSWER_BYTES = 4096
# After a failure kernels are started for so long, and for twice as long after each further one: some pass, and where
# forks do not work, each attempt costs a kernel's start.
RETRY_SECONDS, MAX_RETRY_SECONDS = 300.0, 86400.0
# So many kernels that have started as forks show that they work: the next failure is a first one again.
ENOUGH_FORKS = 10
# Makes room for a fork's command line.
ROOM = "-" * 512
log = structlog.get_logger(__name__)


def can_fork() -> bool:
    """A fork is made by a system call, under conditions (kernelmcp_kernel/fork_server.py)."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    return "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))


class ForkedProcess:
    """A child process: what is used of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, as subprocess reports it; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self) -> None:
        """Kill its process group, and itself if it has none yet."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                if self.poll() is None:
                    kill(self.pid, signal.SIGKILL)


class ForkServer:
    """One fork server: its process, and the socket to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire.setblocking(False)
        self._is_ready = False
        with theirs:
            self._process = subprocess.Popen(
                python_command("kernelmcp_kernel.fork_server", str(theirs.fileno()), ROOM),
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in environment.items() if not name.startswith("KERNELMCP_")},
                cwd=FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Whether it has imported everything. Raises OSError if it has ended."""
        if not self._is_ready:
            with suppress(BlockingIOError):
                if not self.wire.recv(MAX_ANSWER_BYTES):
                    raise OSError("it has ended")
                self._is_ready = True
        return self._is_ready

    async def answer(self, name: str) -> object:
        """A field of its next answer. Raises OSError: it has none, or has ended."""
        match json.loads(await asyncio.get_running_loop().sock_recv(self.wire, MAX_ANSWER_BYTES) or b"{}"):
            case {**found} if name in found:
                return cast("object", found[name])
            case other:
                raise OSError(f"no usable answer: {other}")

    def end(self) -> int | None:
        """End it; who waits for an answer gets none. Returns its exit status if it had ended."""
        status = self._process.poll()
        self._process.kill()
        self._process.wait()
        return status


class Forks:
    """The fork server of a server, while there is one."""

    def __init__(self, withheld: frozenset[str] = frozenset()) -> None:
        self._withheld = withheld
        self._wanted_from = 0.0 if can_fork() else math.inf
        """By the monotonic clock."""
        self._retry_seconds = RETRY_SECONDS
        self._good_forks = 0
        """Since the last failure."""
        self._kernels = 0
        self._server: ForkServer | None = None
        self._start: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        self._exchanges: set[asyncio.Task[ForkedProcess | None]] = set()
        self._forked: list[ForkedProcess] = []

    def withhold(self, names: frozenset[str]) -> None:
        """Kernels must not have these environment variables from now on, and so the fork server must not."""
        if names != self._withheld:
            self._withheld = names
            self._end()

    def kernel_started(
        self, environment: Mapping[str, str], withheld: frozenset[str], *, is_forked: bool = False
    ) -> None:
        """There is one more kernel, with this environment."""
        self._kernels += 1
        self._good_forks += is_forked
        if self._good_forks >= ENOUGH_FORKS:
            self._retry_seconds = RETRY_SECONDS
        if self._is_due(withheld) and self._start is None:
            loop = asyncio.get_running_loop()
            self._start = loop.call_later(PAUSE_SECONDS, self._start_server, environment, withheld)

    def kernel_ended(self) -> None:
        """There is one less."""
        self._kernels -= 1

    def _is_due(self, withheld: frozenset[str]) -> bool:
        is_enough = self._kernels >= MIN_KERNELS
        is_wanted = time.monotonic() >= self._wanted_from
        return is_wanted and self._server is None and is_enough and withheld == self._withheld

    def _start_server(self, environment: Mapping[str, str], withheld: frozenset[str]) -> None:
        self._start = None
        if self._is_due(withheld):
            try:
                self._server = ForkServer(environment)
            except OSError as error:
                self.give_up(error)

    async def fork(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: str, withheld: frozenset[str], output: int
    ) -> ForkedProcess | None:
        """A kernel process whose output goes to a descriptor. None: it must be started in another way."""
        if self._server is None or withheld != self._withheld:
            return None
        if list(command[: len(KERNEL_COMMAND)]) != KERNEL_COMMAND or cwd != FOLDER:
            return None
        request = json.dumps({"arguments": command, "environment": environment}).encode()
        # In a task of its own: who is cancelled meanwhile leaves no answer, and no kernel that nobody knows.
        exchange = asyncio.create_task(self._exchange(request, os.dup(output)))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_end_unclaimed)
            raise

    async def _exchange(self, request: bytes, output: int) -> ForkedProcess | None:
        async with self._turn:
            server, process, is_whole = self._server, None, False
            self._forked = [each for each in self._forked if each.poll() is None]
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    if server is None or not server.is_ready():
                        return None
                    socket.send_fds(server.wire, [request], [output])
                    process = ForkedProcess(int(str(await server.answer("pid"))))
                    self._forked.append(process)
                    is_whole = await server.answer("ready") is True
                return process if is_whole else None
            except (OSError, TimeoutError, ValueError) as error:
                if server is self._server and getattr(error, "errno", None) != errno.EMSGSIZE:
                    self.give_up(error)
                return None
            finally:
                os.close(output)
                if process is not None and not is_whole:
                    process.kill()
                if server is not None and server is not self._server:
                    server.wire.close()

    def give_up(self, error: Exception) -> None:
        """Start kernels without a fork server for some time. What fails meanwhile had begun before: it has the same
        cause."""
        if time.monotonic() < self._wanted_from:
            return
        status = self._end()
        reason = str(error) or type(error).__name__
        log.warning("kernel processes are started, not forked: the fork server failed", error=reason, status=status)
        self._wanted_from = time.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)
        self._good_forks = 0

    async def close(self) -> None:
        """End the fork server. Kernels stay."""
        self._wanted_from = math.inf
        self._end()
        if self._exchanges:
            await asyncio.wait(self._exchanges)
        self._forked = [each for each in self._forked if each.poll() is None]

    def _end(self) -> int | None:
        if self._start is not None:
            self._start.cancel()
            self._start = None
        server, self._server = self._server, None
        if server is None:
            return None
        status = server.end()
        if not self._turn.locked():
            server.wire.close()  # an exchange closes it otherwise
        return status


def _end_unclaimed(exchange: "asyncio.Task[ForkedProcess | None]") -> None:
    if not exchange.cancelled() and (process := exchange.result()) is not None:
        process.kill()
