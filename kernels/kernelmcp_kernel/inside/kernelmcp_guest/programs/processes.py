"""subprocess, os.system and os.popen, whose commands finish before the call returns.

A process started with Popen has ended before code can check: its output is available as a file. With stdin=PIPE, the
command begins when its input is complete.
"""

# Parts of the standard library are replaced at places that their type stubs do not declare.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

import functools
import io
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from itertools import count
from typing import IO, Any, NoReturn, cast

from kernelmcp_guest.absent import no_processes
from kernelmcp_guest.bridge import bridge
from kernelmcp_guest.programs.command_line import is_program
from kernelmcp_guest.programs.commands import NoShell, own_streams, run_command, write_bytes
from kernelmcp_guest.programs.interpreter_state import running_programs
from kernelmcp_guest.programs.run import Finished

_NOT_FOUND = 127
_SHELLS = ("bash", "sh")  # our bash does not find itself with `command -v`
_PIECE = 65_536
_DEADLY = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)

# Timeout of the subprocess.run or call that creates a Popen, whose command ends before the wait.
_timeout: ContextVar[float | None] = ContextVar("timeout", default=None)
_numbers = count(2)


class Process(subprocess.Popen[Any]):
    """subprocess.Popen."""

    def __init__(
        self,
        args: Any,
        bufsize: int = -1,
        executable: Any = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        preexec_fn: Any = None,
        close_fds: bool = True,
        shell: bool = False,
        cwd: Any = None,
        env: Mapping[str, str] | None = None,
        universal_newlines: bool | None = None,
        startupinfo: Any = None,
        creationflags: int = 0,
        restore_signals: bool = True,
        start_new_session: bool = False,
        pass_fds: Any = (),
        *,
        encoding: str | None = None,
        errors: str | None = None,
        text: bool | None = None,
        **others: Any,
    ) -> None:
        __tracebackhide__ = True
        self.args = args
        self.pid = next(_numbers)
        self.returncode = None
        self.text_mode = bool(text or universal_newlines or encoding or errors)
        self.encoding, self.errors = encoding or "utf-8", errors or "strict"
        self._command = _command(args, shell)
        self._cwd: str | None = None if cwd is None else os.fsdecode(cwd)
        if self._cwd is not None and not os.path.isdir(self._cwd):
            raise FileNotFoundError(2, f"No such file or directory: {self._cwd!r}")
        self._environment = None if env is None else {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}
        self._targets = (_target(stdout), _target(stderr))
        self._time = _timeout.get()
        self._finished: Finished | None = None
        self._waiting = stdin == subprocess.PIPE
        self.stdin = self._wrapped(_PipeInput(self._begin), _PipeTextInput) if self._waiting else None
        self.stdout = self._output(lambda: self._end().stdout) if stdout == subprocess.PIPE else None
        self.stderr = self._output(lambda: self._end().stderr) if stderr == subprocess.PIPE else None
        if not self._waiting:
            self._begin(_read(stdin))

    def _wrapped(self, raw: Any, kind: type[io.TextIOWrapper] = io.TextIOWrapper) -> IO[Any]:
        return kind(raw, self.encoding, self.errors, write_through=True) if self.text_mode else raw

    def _output(self, ended: Callable[[], bytes]) -> IO[Any]:
        return self._wrapped(io.BufferedReader(_PipeOutput(ended)))

    def _begin(self, data: bytes | None) -> None:
        """Run the command; its output is in place when this returns."""
        __tracebackhide__ = True
        if self.returncode is not None:
            return
        self._waiting = False
        out, err = self._targets
        merged = err == subprocess.STDOUT
        capture = out is not None or (err is not None and not merged)
        token = _timeout.set(None)  # it is this command's, and not that of what a program starts
        try:
            finished = run_command(
                self._command,
                capture=capture,
                merged=merged,
                stdin=data,
                cwd=self._cwd,
                environment=self._environment,
                timeout=self._time,
            )
        except NoShell:
            self.returncode = _NOT_FOUND
            no_processes(self.args)
        finally:
            _timeout.reset(token)
        self.returncode = finished.exit_code
        self._finished = finished
        if self._is_missing(finished, capture):
            raise FileNotFoundError(2, f"No such file or directory: {self._command[0]!r}")
        if capture:
            _put(1 if out is None else out, finished.stdout)
            _put(2 if err is None else err, finished.stderr)

    def _is_missing(self, finished: Finished, capture: bool) -> bool:
        """Return whether there was no such program. An existing one with that status has other output."""
        if finished.exit_code != _NOT_FOUND or isinstance(self._command, str):
            return False
        name = self._command[0]
        if capture:
            return f"{name}: command not found".encode() in finished.stdout + finished.stderr
        if "/" in name:  # the shell looks these up only to run them
            if os.path.exists(os.path.join(self._cwd or "", name)):
                return False
            name = os.path.basename(name)
        if name in _SHELLS or is_program(name):
            return False
        look = ["command", "-v", name]
        return run_command(look, capture=True, cwd=self._cwd, environment=self._environment).exit_code != 0

    def _end(self) -> Finished:
        if self._waiting and self.stdin is not None:
            self.stdin.close()
        return self._finished or Finished(_NOT_FOUND)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002  # the name it has
        __tracebackhide__ = True
        if self.stdin is not None and self._waiting:
            self._time = timeout if self._time is None else self._time
            if input:
                self.stdin.write(input)
            self.stdin.close()
        self._check_time(timeout)
        out, err = ((stream.read() if stream is not None else None) for stream in (self.stdout, self.stderr))
        return out, err

    def wait(self, timeout: float | None = None) -> int:
        __tracebackhide__ = True
        self._end()
        self._check_time(timeout)
        return int(self.returncode or 0)

    def poll(self) -> int | None:
        return None if self._waiting else self.returncode

    def _check_time(self, timeout: float | None) -> None:
        if self._finished is not None and self._finished.timed_out:
            limit = self._time or timeout or 0.0
            finished, self._time = self._finished, None
            self._finished = Finished(finished.exit_code, finished.stdout, finished.stderr)
            raise subprocess.TimeoutExpired(self.args, limit, finished.stdout, finished.stderr)

    def send_signal(self, sig: int) -> None:
        """A deadly signal ends a process that waits for its input; others have ended."""
        if self._waiting and sig in _DEADLY:
            self._waiting = False
            self.returncode = -sig
            self._finished = Finished(-sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __del__(self, *_: object) -> None:
        """Does nothing: there is no process to wait for."""


class _PipeInput(io.BytesIO):
    """stdin=PIPE: the command begins when all input is written."""

    def __init__(self, begin: Callable[[bytes], None]) -> None:
        super().__init__()
        self._begin: Callable[[bytes], None] | None = begin

    def close(self) -> None:
        begin, self._begin = self._begin, None
        data = b"" if self.closed else self.getvalue()
        super().close()
        if begin is not None:
            begin(data)

    def __del__(self) -> None:
        """A command that nobody waits for is not started."""


class _PipeTextInput(io.TextIOWrapper):
    def __del__(self) -> None:
        """Same as above."""


class _PipeOutput(io.RawIOBase):
    """stdout=PIPE: the command's output, once it has ended."""

    def __init__(self, ended: Callable[[], bytes]) -> None:
        self._ended = ended
        self._data: io.BytesIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._data = self._data or io.BytesIO(self._ended())
        return self._data.readinto(buffer)


def _command(args: Any, shell: bool) -> str | list[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        text = os.fsdecode(cast("str | bytes", args))
        return text if shell else [text]
    words = [os.fsdecode(word) for word in args]
    return words[0] if shell else words


def _target(where: Any) -> int | None:
    """None: its own target; PIPE, STDOUT, DEVNULL; or a descriptor, of which 1 and 2 are its own."""
    if where is None or isinstance(where, int):
        return where
    if hasattr(where, "flush"):
        where.flush()
    return int(where.fileno())


def _put(target: int, raw: bytes) -> None:
    if target in (1, 2):
        write_bytes(own_streams()[target - 1], raw)
    elif target >= 0:
        view = memoryview(raw)
        while view:
            view = view[os.write(target, view) :]


def _read(where: Any) -> bytes | None:
    """Read everything from the given stdin."""
    if where is None:
        return None
    if where == subprocess.DEVNULL:
        return b""
    pipe = getattr(where, "buffer", where)
    if isinstance(getattr(pipe, "raw", None), _PipeOutput):
        return pipe.read()
    number = where if isinstance(where, int) else where.fileno()
    found = bytearray()
    while piece := os.read(number, _PIECE):
        found += piece
    return bytes(found)


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        token = _timeout.set(timeout)
        try:
            return function(*args, timeout=timeout, **kwargs)
        finally:
            _timeout.reset(token)

    return timed


def system(command: str) -> int:
    """os.system: returns the exit status in the form of wait()."""
    __tracebackhide__ = True
    try:
        return run_command(os.fsdecode(command), capture=False).exit_code << 8
    except NoShell:
        no_processes(command)


class _Pipe:
    """The result of os.popen: a stream whose `close` returns how the command ended."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stream: IO[str] = process.stdout or process.stdin  # pyright: ignore[reportAttributeAccessIssue]  # one is

    def close(self) -> int | None:
        self._stream.close()
        return self._process.wait() << 8 or None

    def __enter__(self) -> "_Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def popen(cmd: str, mode: str = "r", buffering: int = -1) -> _Pipe:
    """os.popen."""
    __tracebackhide__ = True
    if mode not in ("r", "w"):
        raise ValueError(f"invalid mode {mode!r}")
    pipe: dict[str, Any] = {"stdout" if mode == "r" else "stdin": subprocess.PIPE}
    process = Process(cmd, shell=True, text=True, **pipe)  # noqa: S604  # as it is everywhere
    return _Pipe(process)


def leave(status: int = 0, /) -> NoReturn:
    """os._exit: for the running program, or for the guest."""
    if running_programs:
        running_programs[-1].at_exit.clear()
        raise SystemExit(status)
    bridge.exit(status)


def install() -> None:
    """Replace functions that start processes."""
    subprocess.Popen = Process
    subprocess.run, subprocess.call = _timed(subprocess.run), _timed(subprocess.call)
    os.system, os.popen, os._exit = system, popen, leave
