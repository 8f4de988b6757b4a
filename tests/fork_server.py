"""A process that has imported kernelmcp, and forks a server for each request: a start without its imports.

Run as a program by `starting.py`, which sends requests over a socket; must not import anything of the tests. A fork is
a child of who asked (a subreaper: the process between them ends at once) and has the pipes, environment, working
directory and arguments that were asked for. It differs from a start in three ways: modules were imported before the
environment was set, all forks of one process share a hash seed, and `/proc/PID/environ` is not its own.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

# What a server has imported after its first calls over stdio or HTTP.
PRELOADED = (
    "kernelmcp.cli",
    "kernelmcp.server",
    "kernelmcp.mcp_server.assemble",
    "kernelmcp.stdio.serve",
    "kernelmcp.http.asgi",
    "kernelmcp.http.listener",
    "kernelmcp.http.tokens",
    "kernelmcp.upstreams.upstreams",
    "kernelmcp.code_mode.code_mode",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)
POLL_SECONDS = 0.0005


def main() -> NoReturn:
    wire = socket.socket(fileno=int(sys.argv[1]))
    wire.set_inheritable(False)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wire.send(b"ready")
    while message := _receive(wire):
        _fork(wire, *message)
    sys.exit()


def _receive(wire: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request, with stdin, stdout and stderr of the server; None when nobody is left who could ask."""
    body, rights, _, _ = wire.recvmsg(16, socket.CMSG_SPACE(4 * array.array("i").itemsize))
    if not body:
        return None
    *standard, file = array.array("i", rights[0][2])
    with os.fdopen(file, "rb") as request:
        request.seek(0)
        return json.loads(request.read().decode("utf-8", "surrogateescape")), standard


def _fork(wire: socket.socket, request: dict[str, Any], standard: list[int]) -> None:
    if (between := os.fork()) == 0:
        if os.fork() != 0:
            os._exit(0)
        try:
            _become(wire, request, standard)
        except Exception as error:  # noqa: BLE001  # whatever it is, who asked waits for an answer
            wire.send(repr(error).encode())
            os._exit(1)
        _run(request["args"])
    for fd in standard:
        os.close(fd)
    os.waitpid(between, 0)


def _become(wire: socket.socket, request: dict[str, Any], standard: list[int]) -> None:
    """Take on all that was asked for, and say so."""
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    for fd in standard:
        if fd > 2:
            os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = _output(1)
    sys.stderr = sys.__stderr__ = _output(2)
    _set_command_line(request["args"])
    while os.getppid() != request["parent"]:
        time.sleep(POLL_SECONDS)  # until the process between has ended
    wire.send(str(os.getpid()).encode())
    wire.close()


def _run(arguments: list[str]) -> NoReturn:
    """The program itself."""
    import kernelmcp.__main__
    import kernelmcp.cli

    sys.argv = [str(kernelmcp.__main__.__file__), *arguments[3:]]
    sys.exit(kernelmcp.cli.main())


def _output(fd: int) -> io.TextIOWrapper:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = os.fdopen(fd, "wb", 0 if unbuffered else -1, closefd=False)
    errors = "backslashreplace" if fd == 2 else "strict"
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=fd == 2 or os.isatty(fd), write_through=unbuffered)


def _set_command_line(arguments: list[str]) -> None:
    """What ps and psutil show; written over this process's own, which was made long enough."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    text = b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, min(len(text), end - start))


if __name__ == "__main__":
    main()
