"""Starts kernel processes as forks of one that has imported what they need (kernelmcp_kernel/fork_server.py).

A start takes 130 ms less of CPU, and a process 10 MB less of memory. The first kernels of a server are started without
it: their imports run beside the guest's start, and a person with one session needs no further process.
"""

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
import structlog

from kernelmcp.process_start import python_command

KERNEL_COMMAND = python_command("kernelmcp_kernel")
# Kernels that a server has started before it gets a fork server.
STARTED_BEFORE = 3
# A fork takes 5 ms.
ANSWER_SECONDS = 10.0
MAX_ANSWER_BYTES = 4096
ENDED = "the process that forks them has ended"
# The room for the command line of a fork.
ROOM = "-" * 512
IS_SUPPORTED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
log = structlog.get_logger(__name__)


class ForkedProcess:
    """A child process, as far as a kernel provisioner needs subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, as subprocess reports it; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Its exit status, once it has ended."""
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)


class Forks:
    """The fork server of a server, once there is one."""

    def __init__(self) -> None:
        self._is_wanted = IS_SUPPORTED
        self._started = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: socket.socket | None = None
        self._is_ready = False
        self._withheld: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()

    def prepare(self, environment: Mapping[str, str], withheld: frozenset[str]) -> None:
        """Note that a kernel has been started with this environment; start the fork server if it is time to."""
        self._started += 1
        if not self._is_wanted or self._started < STARTED_BEFORE:
            return
        if self._process is not None and withheld == self._withheld:
            return
        self.close()  # its memory has a secret that kernels must not have
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._wire.setblocking(False)
        self._withheld = withheld
        with theirs:
            try:
                self._process = subprocess.Popen(
                    python_command("kernelmcp_kernel.fork_server", str(theirs.fileno()), ROOM),
                    pass_fds=[theirs.fileno()],
                    env={name: value for name, value in environment.items() if not name.startswith("KERNELMCP_")},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                self._give_up(error)

    async def fork(
        self, command: Sequence[str], environment: Mapping[str, str], withheld: frozenset[str], output: int
    ) -> ForkedProcess | None:
        """A kernel process whose output goes to a descriptor. None: it must be started in another way."""
        async with self._turn:
            if list(command[: len(KERNEL_COMMAND)]) != KERNEL_COMMAND or withheld != self._withheld:
                return None
            if self._wire is None:
                return None
            request = {"arguments": command, "environment": environment}
            try:
                if not self._has_begun(self._wire):
                    return None
                # A kernel that has been forked must become known, even if nobody waits for it any more.
                with anyio.fail_after(ANSWER_SECONDS, shield=True):
                    return ForkedProcess(await _exchange(self._wire, json.dumps(request).encode(), output))
            except (OSError, TimeoutError, ValueError) as error:
                self._give_up(error)
                return None

    def close(self) -> None:
        """End the fork server. Kernels stay."""
        if self._wire is not None:
            self._wire.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._wire, self._process, self._is_ready = None, None, False

    def _has_begun(self, wire: socket.socket) -> bool:
        if not self._is_ready:
            with suppress(BlockingIOError):
                if not wire.recv(MAX_ANSWER_BYTES):
                    raise OSError(ENDED)
                self._is_ready = True
        return self._is_ready

    def _give_up(self, error: Exception) -> None:
        """Start kernels without one from now on."""
        log.warning("kernel processes cannot be forked, and are started", error=str(error) or type(error).__name__)
        self.close()
        self._is_wanted = False


async def _exchange(wire: socket.socket, request: bytes, output: int) -> int:
    """The process id of a fork. Raises OSError, ValueError."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        socket.send_fds(wire, [request], [null, output, output])
    finally:
        os.close(null)
    match json.loads(await asyncio.get_running_loop().sock_recv(wire, MAX_ANSWER_BYTES) or b"{}"):
        case {"pid": int(pid)}:
            return pid
        case {"error": str(reason)}:
            raise OSError(reason)
        case _:
            raise OSError(ENDED)
