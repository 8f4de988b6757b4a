"""Starting kernelmcp in tests: every server, every command and every kernel process of a test begins here.

A start is 1.2 s of processor time for imports, the same ones for each test. So each worker keeps one process that has
imported them (`fork_server.py`), and a server is a fork of it: its own process, with its own home and settings, and an
ordinary child of the worker. So is a kernel process that a test starts itself; those of a server are forked by a child
that the server has from its beginning, and are the server's own children. Tests about a start itself (imports, the
environment, the command line, the end of a process) have the mark `cold`; for them, and where forking is not possible,
the same functions start a new interpreter.
With KERNELMCP_TESTS_COLD=1 everything is started so.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread
from jupyter_client import launcher
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from .accounting import adopt_orphans
from .fork_server import send

# Generous: on a machine with both cores busy a server with its kernels takes half a minute to start.
DEADLINE = 180
COMMAND = [sys.executable, "-m", "kernelmcp"]
KERNEL = [sys.executable, "-P", "-m", "kernelmcp_kernel"]
MAX_LINE_BYTES = 1 << 28
# What a client has sent must reach the server before its stdin is closed.
FLUSH_SECONDS = 0.5
# A program's name, for ps, is written over its arguments: room for the longest.
_ROOM = " " * 8192
# What an interpreter or the C library reads once, when it starts; a fork does as PYTHONUNBUFFERED says.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC")
_FORKS_READ = "PYTHONUNBUFFERED"

cold = False
"""Whether the test that runs now is about starts."""


class ForkServer:
    """The process that forks, and the way to ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        adopt_orphans()  # so its forks are children of this process, as if it had started them
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = str(Path(__file__).with_name("fork_server.py"))
            self.address = f"/tmp/kmt-forks-{os.getpid()}"
            self._process = subprocess.Popen(
                [sys.executable, "-P", program, str(theirs.fileno()), self.address, _ROOM],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        assert self._socket.recv(16) == b"ready", "the fork server could not import kernelmcp"
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._socket.close()
        self._process.wait(DEADLINE)

    def fork(self, standard: list[int], request: dict[str, Any]) -> int:
        """The process id of a new server with these three descriptors."""
        with self._lock:
            send(self._socket, request, standard)
            answer = self._socket.recv(1024)
        assert answer.isdigit(), f"no fork: {answer.decode() or 'the fork server has ended'}"
        return int(answer)


@functools.cache
def fork_server() -> ForkServer:
    """The worker's."""
    return ForkServer()


class Forked(subprocess.Popen[Any]):
    """A server that is a fork. All else is Popen's: pipes, communicate(), signals, the exit status."""

    def _execute_child(  # type: ignore[override]
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
        errread: int, errwrite: int, *rest: Any,
    ) -> None:  # fmt: skip
        sys.audit("subprocess.Popen", args[0], args, cwd, env)
        own = (p2cread, c2pwrite, errwrite)
        request = {
            "args": args,
            "env": env,
            "cwd": os.getcwd() if cwd is None else os.fspath(cwd),
            "session": self.new_session,
            "parent": os.getpid(),
        }
        self.pid = fork_server().fork([number if fd == -1 else fd for number, fd in enumerate(own)], request)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def __init__(self, *arguments: Any, start_new_session: bool = False, **options: Any) -> None:
        self.new_session = start_new_session
        super().__init__(*arguments, **options)


def start_server(
    *arguments: str,
    env: Mapping[str, str],
    stdin: int | IO[Any] | None = subprocess.PIPE,
    stdout: int | IO[Any] | None = subprocess.PIPE,
    **options: Any,
) -> subprocess.Popen[Any]:
    """`python -m kernelmcp` with these arguments; options are Popen's."""
    start = Forked if _can_fork(env, options) else subprocess.Popen
    return start([*COMMAND, *arguments], env=dict(env), stdin=stdin, stdout=stdout, **options)


def server_command() -> list[str]:
    """The command by which somebody else, such as another client, starts a server; it becomes a fork."""
    return _of_others(COMMAND[1:])


def python_command(program: Path, *arguments: str) -> list[str]:
    """The command by which somebody else starts a Python program of the tests; it becomes a fork."""
    return _of_others([str(program), *arguments])


def _of_others(arguments: list[str]) -> list[str]:
    if not _can_fork(os.environ, {}):
        return [sys.executable, *arguments]
    relay = str(Path(__file__).with_name("relay.py"))
    return [sys.executable, "-I", "-S", relay, fork_server().address, *arguments]


def start_python(program: Path, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """The same program, as a child of this process. Options are Popen's."""
    start = Forked if _can_fork(os.environ, options) else subprocess.Popen
    return start([sys.executable, str(program), *arguments], **{"env": dict(os.environ), **options})


@contextmanager
def forked_kernels() -> Iterator[None]:
    """Meanwhile, a kernel process that jupyter_client starts is a fork, where that is possible."""
    popen = launcher.Popen

    def start(arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
        forked = arguments[: len(KERNEL)] == KERNEL and _can_fork(options["env"], options)
        return (Forked if forked else popen)(arguments, **options)

    vars(launcher)["Popen"] = start
    try:
        yield
    finally:
        vars(launcher)["Popen"] = popen


def run_kernelmcp(
    *arguments: str,
    env: Mapping[str, str],
    input: str | None = None,  # noqa: A002  # as subprocess.run has it
    timeout: float | None = 2 * DEADLINE,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """A command of kernelmcp, until it has ended: what it wrote to stdout and stderr, as text."""
    stdin = options.pop("stdin", subprocess.DEVNULL) if input is None else subprocess.PIPE
    pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_server(*arguments, env=env, text=True, **pipes | options) as process:
        try:
            out, error = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def _can_fork(env: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    if cold or sys.platform != "linux" or os.environ.get("KERNELMCP_TESTS_COLD"):
        return False
    return _of_interpreter(env) == _of_interpreter(os.environ) and not options.keys() & {"preexec_fn", "pass_fds"}


def _of_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START) and name != _FORKS_READ}


@functools.cache
def check_each_schema_once() -> None:
    """Each client of the SDK checks the schema of a tool's results at its first call, which takes 10 ms: the same ones
    for each test. What is valid once is valid; what is not is refused each time."""
    import jsonschema.validators

    check, valid = jsonschema.Draft202012Validator.check_schema, set[str]()

    def check_schema(schema: Any, *arguments: Any, **options: Any) -> None:
        if (text := json.dumps(schema)) not in valid:
            check(schema, *arguments, **options)
            valid.add(text)

    vars(jsonschema.validators)["Draft202012Validator"].check_schema = check_schema


@asynccontextmanager
async def over_stdio(*arguments: str, env: Mapping[str, str], program: str | None = None) -> AsyncIterator[Any]:
    """A server's stdin and stdout as the transport of a client: `Client(over_stdio(env=env))`.

    `program`: Python code that is run in place of kernelmcp's command line.

    Its end is the SDK's own (stdin is closed, then the server is waited for), with a longer patience: a server that a
    busy machine keeps from writing its last lines in two seconds would fail a test that is about something else.
    """
    process = start_server(*arguments, env=env) if program is None else _run_python(program, env)
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_send, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    reader, writer = await _pipes(process)
    written = anyio.Event()

    async def read() -> None:
        async with incoming:
            async for line in reader:
                try:
                    await incoming.send(_parsed(line))
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    continue  # the client has gone: what is left must not hold the server up

    async def write() -> None:
        try:
            async with outgoing:
                async for message in outgoing:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(line.encode() + b"\n")
                    await writer.drain()
        except OSError:
            await incoming.aclose()
        finally:
            written.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield received, to_send
        finally:
            with anyio.CancelScope(shield=True):
                received.close()
                to_send.close()
                with anyio.move_on_after(FLUSH_SECONDS):
                    await written.wait()
                writer.close()
                await _end(process)
            tasks.cancel_scope.cancel()


def _run_python(program: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def _pipes(process: subprocess.Popen[bytes]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def _parsed(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        await anyio.to_thread.run_sync(process.wait, DEADLINE)
    finally:
        process.kill()
        process.wait()
