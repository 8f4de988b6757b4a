"""Runs a Python program as a separate process would: with a new `__main__`, its own arguments, streams, folder and
environment. `surroundings` restores everything."""

import base64
import builtins
import importlib.util
import os
import runpy
import shlex
import sys
import traceback
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, TextIO

from kernelmcp_guest import advice, memory
from kernelmcp_guest.bridge import bridge
from kernelmcp_guest.out_stream import end_output
from kernelmcp_guest.packages import PackageError, missing_imports, pip_commands
from kernelmcp_guest.programs.command_line import Program, parse
from kernelmcp_guest.programs.environment_variables import own_variables
from kernelmcp_guest.programs.interpreter_state import Streams, World, put_back, running_programs
from kernelmcp_guest.programs.output import Output, OutputStream, input_stream

# A program that runs itself ends at this depth, before the stack does.
MAX_NESTED = 5

_EXIT_USAGE = 2
_BUSY = "another program runs in this Python already: wait until it has ended"
_NESTED = f"programs that run programs are nested more than {MAX_NESTED} deep"

_within: ContextVar[World | None] = ContextVar("within", default=None)
"""The program that this code belongs to. Only programs started by the newest one can be restored in order."""


@dataclass(frozen=True)
class Finished:
    """The result of a program or a command. The bytes are empty if they were already written."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    interrupted: bool = False


def run_program(
    argv: list[str], cwd: str | None, environment: dict[str, str] | None, stdin: str | None, output: str | None
) -> dict[str, Any]:
    """Handle the kernel process's request, made for the session's shell. Raises KeyboardInterrupt."""
    memory.hold()
    if environment is not None and "PWD" in environment:  # bash exports it, and `env -i` removes it
        environment = own_variables() | environment
    return {"status": "ok", **run_for_shell(argv, cwd, environment, stdin, output, (sys.stdout, sys.stderr))}


def run_for_shell(
    argv: list[str],
    cwd: str | None,
    environment: dict[str, str] | None,
    stdin: str | None,
    output: str | None,
    streams: tuple[TextIO, TextIO],
) -> dict[str, Any]:
    """Run a program; return its exit code and output, with bytes as base64. With an `output`, it writes to the streams
    instead ("merged": all to the first). Raises KeyboardInterrupt."""
    __tracebackhide__ = True
    given = None if stdin is None else base64.b64decode(stdin)
    if output is None:
        finished = run_captured(argv, cwd=cwd, environment=environment, stdin=given)
    else:
        stdout, stderr = streams[0], streams[0 if output == "merged" else 1]
        finished = Finished(run(argv, stdout, stderr, cwd=cwd, environment=environment, stdin=given))
    return {
        "exit_code": finished.exit_code,
        "stdout": base64.b64encode(finished.stdout).decode(),
        "stderr": base64.b64encode(finished.stderr).decode(),
    }


def run_captured(
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    environment: dict[str, str] | None = None,
    stdin: bytes | None = None,
    merged: bool = False,
) -> Finished:
    """Run a program and capture its output; `merged`: stderr within stdout. Raises KeyboardInterrupt."""
    out = Output()
    err = out if merged else Output()
    stdout, stderr = OutputStream(out, 1), OutputStream(err, 2)
    code = run(argv, stdout, stderr, cwd=cwd, environment=environment, stdin=stdin)
    if err is not out:
        out.finish(err)
    err.finish(err)
    return Finished(code, bytes(out.data), b"" if merged else bytes(err.data))


def run(
    argv: Sequence[str],
    stdout: TextIO,
    stderr: TextIO,
    *,
    cwd: str | None = None,
    environment: dict[str, str] | None = None,
    stdin: bytes | None = None,
) -> int:
    """Run a program on these streams; return its exit code. Raises KeyboardInterrupt, like blocking calls in it."""
    __tracebackhide__ = True
    program = parse(argv, stdin is not None)
    if program.kind == "say":
        stdout.write(f"{program.text}\n")
        return 0
    if program.kind == "refuse" or len(running_programs) >= MAX_NESTED:
        stderr.write(f"{argv[0]}: {program.text if program.kind == 'refuse' else _NESTED}\n")
        return _EXIT_USAGE
    folder = cwd or os.getcwd()
    if not os.path.isdir(folder):
        stderr.write(f"{argv[0]}: there is no folder {folder}\n")
        return 1
    if running_programs and _within.get() is not running_programs[-1]:
        stderr.write(f"{argv[0]}: {_BUSY}\n")
        return _EXIT_USAGE
    with put_back(Streams(input_stream(stdin), stdout, stderr), folder, environment) as world:
        own = copy_context()
        own.run(_within.set, world)
        if decimal := sys.modules.get("decimal"):  # its context, which the copy shares, can be changed
            own.run(decimal.setcontext, decimal.DefaultContext)
        code = own.run(_guarded, program, stderr)
        return own.run(_guarded_exit, world.at_exit, stderr, code)


def _guarded(program: Program, stderr: TextIO) -> int:
    """Run the program; any exception ends only the program."""
    __tracebackhide__ = True
    try:
        return _start(program, stderr)
    except SystemExit as leaving:
        end_output()
        return _status(leaving.code, stderr)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # as the interpreter itself does
        memory.release()
        end_output()
        _show(error, stderr)
        memory.forget(error)
        return 1


def _guarded_exit(functions: list[Any], stderr: TextIO, code: int) -> int:
    """Run the functions that the program registered with atexit."""
    while functions:
        function, args, kwargs = functions.pop()
        try:
            function(*args, **kwargs)
        except SystemExit:
            continue
        except Exception as error:  # noqa: BLE001  # the program's
            end_output()
            _show(error, stderr)
    end_output()
    return code


def _start(program: Program, stderr: TextIO) -> int:
    __tracebackhide__ = True
    sys.warnoptions += program.warnings
    vars(warnings)["_processoptions"](program.warnings)
    if program.kind == "pip":
        return _pip(program.arguments, stderr)
    if program.kind == "module":
        return _run_module(program, stderr)
    main = ModuleType("__main__")
    vars(main).update({"__builtins__": builtins, "__file__": "", "__cached__": None})
    name = {"code": "-c", "stdin": program.text, "file": program.text}[program.kind]
    sys.argv[:] = [name, *program.arguments]
    folder = os.path.dirname(os.path.realpath(program.text)) if program.kind == "file" else ""
    if not program.isolated:
        sys.path.insert(0, folder)
    sys.modules["__main__"] = main
    if program.kind == "file":
        path = os.path.abspath(program.text)
        if os.path.isdir(path) or zipfile.is_zipfile(path):
            sys.path[0] = path
            runpy.run_path(path, run_name="__main__")
            return 0
        try:
            with open(path, "rb") as file:
                source: str | bytes = file.read()
        except OSError as error:
            stderr.write(f"python: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
            return _EXIT_USAGE
        vars(main)["__file__"] = path
    else:
        path = "<string>" if program.kind == "code" else "<stdin>"
        source = program.text if program.kind == "code" else sys.stdin.buffer.read()
        del vars(main)["__file__"]
    code = compile(source, path, "exec", dont_inherit=True, optimize=program.optimize)
    bridge.look_soon()
    exec(code, vars(main))  # noqa: S102  # it is what this is for
    return 0


def _run_module(program: Program, stderr: TextIO) -> int:
    __tracebackhide__ = True
    sys.argv[:] = ["-m", *program.arguments]
    if not program.isolated:
        sys.path.insert(0, os.getcwd())
    root = program.text.partition(".")[0]
    if not missing_imports.have(root) or _is_missing(program.text):
        stderr.write(f"python: No module named {program.text}\n")
        _advise(advice.missing_module(program.text), stderr)
        return 1
    runpy.run_module(program.text, run_name="__main__", alter_sys=True)
    return 0


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            return True
        raise


def _pip(arguments: list[str], stderr: TextIO) -> int:
    try:
        pip_commands.pip(shlex.join(arguments), captured=True)
    except (PackageError, OSError) as error:
        stderr.write(f"ERROR: {error}\n")
        return 1
    return 0


def _status(code: object, stderr: TextIO) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    stderr.write(f"{code}\n")
    return 1


def _show(error: BaseException, stderr: TextIO) -> None:
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    with suppress(BrokenPipeError):  # its output is already cut
        _print(error, own, stderr)
        _advise(advice.advice(error), stderr)


def _advise(said: str | None, stderr: TextIO) -> None:
    if said is not None:
        stderr.write(f"kernelmcp: {said}\n")


def _print(error: BaseException, own: TracebackType | None, stderr: TextIO) -> None:
    shown = traceback.TracebackException(type(error), error, own)
    related: list[traceback.TracebackException | None] = [shown]
    while related:
        if (each := related.pop()) is not None:
            each.stack[:] = [frame for frame in each.stack if "/kernelmcp_guest/" not in frame.filename]
            related += [each.__cause__, each.__context__, *(each.exceptions or ())]
    for line in shown.format():
        stderr.write(line)
