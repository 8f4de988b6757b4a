"""Lines of a cell that are commands: `!cmd`, `x = !cmd`, `%ls`, and shell cells that a Python cell runs."""

# IPython declares much of the API used here without types that a checker understands.
# pyright: reportUnknownMemberType=false

import contextlib
import io
import subprocess
import sys
from typing import Any

from IPython.core.error import UsageError

from kernelmcp_guest.absent import NO_SHELL
from kernelmcp_guest.out_stream import OutStream
from kernelmcp_guest.packages import pip_commands
from kernelmcp_guest.programs.commands import NoShell, run_command
from kernelmcp_guest.programs.run import Finished

_NO_RAISE = "--no-raise-error"


def run(shell: Any, line: str) -> None:
    """Run a line; its output goes to the cell, or where the cell's output is redirected to."""
    __tracebackhide__ = True
    if pip_commands.is_pip(line) and pip_commands.is_only_pip(line):
        pip_commands.run_command(line)
        return
    streams = sys.stdout, sys.stderr
    seen = all(isinstance(stream, OutStream) for stream in streams)
    finished = _run(line, capture=not seen)
    if finished is None:
        return
    for stream, data in zip(streams, (finished.stdout, finished.stderr), strict=True):
        if data:
            stream.write(data.decode("utf-8", "replace"))
    shell.user_ns["_exit_code"] = finished.exit_code
    if finished.interrupted:
        raise KeyboardInterrupt


def output_of(line: str) -> str:
    """The output of a line."""
    __tracebackhide__ = True
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if pip_commands.is_pip(line) and pip_commands.is_only_pip(line):
            pip_commands.run_command(line)
        else:
            finished = _run(line, capture=True, merged=True)
            said.write(finished.stdout.decode("utf-8", "replace") if finished else "")
    return said.getvalue()


def shell_magic(line: str, cell: str | None = None) -> None:
    """Run a shell cell inside a Python cell."""
    __tracebackhide__ = True
    if unknown := set(line.split()) - {_NO_RAISE}:
        raise UsageError(f"{' '.join(sorted(unknown))} is known only where the magic begins a cell")
    finished = _run(cell or "", capture=False)
    if finished is not None and finished.interrupted:
        raise KeyboardInterrupt
    if finished is not None and finished.exit_code and _NO_RAISE not in line:
        raise subprocess.CalledProcessError(finished.exit_code, "bash")


def _run(line: str, *, capture: bool, merged: bool = False) -> Finished | None:
    """Run a line. None if there is no shell, and pip was run without it."""
    __tracebackhide__ = True
    try:
        command = pip_commands.without_uv(line) if pip_commands.is_pip(line) else line
        return run_command(command, capture=capture, merged=merged)
    except NoShell:
        if not pip_commands.is_pip(line):
            raise UsageError(NO_SHELL) from None
        pip_commands.run_command(line)
        return None
