"""Runs commands: Python programs here, everything else in the session's shell, which is another guest.

The shell may need a Python program meanwhile (`cat x | python y.py`). Since this guest then waits for the shell, the
program arrives as the answer to its request.
"""

import base64
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TextIO

from pyodide.ffi import can_run_sync

from kernelmcp_guest.absent import no_processes
from kernelmcp_guest.blocking import host_call
from kernelmcp_guest.bridge import bridge
from kernelmcp_guest.out_stream import OutStream
from kernelmcp_guest.programs.command_line import is_program, simple_program
from kernelmcp_guest.programs.environment_variables import environment_changes
from kernelmcp_guest.programs.interpreter_state import running_programs
from kernelmcp_guest.programs.output import OutputStream
from kernelmcp_guest.programs.run import Finished, run, run_captured, run_for_shell

_LATE = "kernelmcp: a Python program runs in the session's Python, where a timeout does not end it\n"


class NoShell(OSError):
    """There is no shell here."""


def own_streams() -> tuple[TextIO, TextIO]:
    """The targets of uncaptured output: the running program's stdout and stderr, or the cell's."""
    if running_programs:
        streams = running_programs[-1].streams
        return streams.stdout, streams.stderr
    return sys.stdout, sys.stderr


def write_bytes(stream: TextIO, data: bytes) -> None:
    """Write bytes to one of `own_streams`; code may have put another one there, of text only."""
    if isinstance(stream, (OutStream, OutputStream)):
        stream.buffer.write(data)
    else:
        stream.write(data.decode("utf-8", "replace"))


def run_command(
    command: str | list[str],
    *,
    capture: bool,
    merged: bool = False,
    stdin: bytes | None = None,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Finished:
    """Run a command: a shell line, or words. `merged`: stderr within stdout.

    Raises NoShell, OSError with a reason, KeyboardInterrupt.
    """
    __tracebackhide__ = True
    words = simple_program(command) if isinstance(command, str) else command if is_program(command[0]) else None
    if words is not None:
        variables = dict(environment) if environment is not None else None
        stdout, stderr = own_streams()
        began = time.monotonic()
        try:
            if capture:
                finished = run_captured(words, cwd=cwd, environment=variables, stdin=stdin, merged=merged)
            else:
                streams = (stdout, stdout) if merged else (stdout, stderr)
                finished = Finished(run(words, *streams, cwd=cwd, environment=variables, stdin=stdin))
        finally:
            if timed_out := timeout is not None and time.monotonic() - began > timeout:
                stderr.write(_LATE)
        return replace(finished, timed_out=timed_out)
    line = command if isinstance(command, str) else shlex.join(command)
    seen = own_streams()
    if capture or all(isinstance(stream, OutStream) for stream in seen):
        return _ask_shell(line, capture, merged, stdin, cwd, environment, timeout)
    finished = _ask_shell(line, True, merged, stdin, cwd, environment, timeout)
    for stream, data in zip(seen, (finished.stdout, finished.stderr), strict=True):
        write_bytes(stream, data)
    return replace(finished, stdout=b"", stderr=b"")


def _ask_shell(
    line: str,
    capture: bool,
    merged: bool,
    stdin: bytes | None,
    cwd: str | None,
    environment: Mapping[str, str] | None,
    timeout: float | None,
) -> Finished:
    __tracebackhide__ = True
    if not hasattr(bridge, "ask") or not can_run_sync():
        no_processes(line)
    bridge.flush_streams()
    answer = host_call(
        "run_command",
        command=f"exec 2>&1\n{line}" if merged else line,
        capture=capture,
        cwd=os.path.abspath(cwd or os.curdir),
        **environment_changes(os.environ if environment is None else environment),
        stdin=None if stdin is None else base64.b64encode(stdin).decode(),
        timeout=timeout,
    )
    while "run" in answer:
        result = run_for_shell(**answer["run"], streams=own_streams())
        answer = host_call("ran_program", token=answer["token"], **result)
    if "absent" in answer:
        raise NoShell
    done = answer["done"]
    data = [base64.b64decode(done.get(name, "")) for name in ("stdout", "stderr")]
    return Finished(done["exit_code"], *data, timed_out=done["timed_out"], interrupted=done["interrupted"])
