"""A process that has imported kernelmcp and its kernel, and forks a server or a kernel process for each request: a
start without its imports.

Run as a program by `starting.py`, which sends requests over a socket; must not import anything of the tests. A fork is
a child of who asked (a subreaper: the process between them ends at once) and has the pipes, environment, working
directory and arguments that were asked for. It differs from a start in five ways: modules were imported before the
environment was set, all forks of one process share a hash seed, `/proc/PID/environ` is not its own, modules are not
taken apart at the end, and pydantic's models of the tools' arguments have been built.

A forked server has one child from its beginning, which forks the server's kernel processes.
Programs in Python that servers start (upstreams), and servers that others start (examples, other clients), are forks
for `relay.py`, which stands in for them.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import MethodType
from typing import Any, NoReturn

# What a server has imported after its first calls over stdio or HTTP.
PRELOADED = (
    "kernelmcp.cli",
    "kernelmcp.server",
    "kernelmcp.mcp_server.assemble",
    "kernelmcp.observability.logging_setup",
    "kernelmcp.stdio.serve",
    "kernelmcp.stdio.wire",
    "kernelmcp.http.asgi",
    "kernelmcp.http.http_listener",
    "kernelmcp.http.tokens",
    "kernelmcp.upstreams.upstreams",
    "kernelmcp.code_mode.code_mode",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
    "mcp.server.lowlevel.server",
    "mcp.server.sse",
    "mcp.server.stdio",
)
KERNEL = [sys.executable, "-P", "-m", "kernelmcp_kernel"]
POLL_SECONDS = 0.0005


def main() -> NoReturn:
    wire = socket.socket(fileno=int(sys.argv[1]))
    wire.set_inheritable(False)
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("kernelmcp_kernel.fork_server").import_everything()
    _keep_models()
    _build_models()
    _keep_provisioners()
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as relays:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(sys.argv[2])  # of a worker that was killed and had the same process id
        relays.bind(sys.argv[2])
        relays.listen()
        wire.send(b"ready")
        while True:
            ready, _, _ = select.select([wire, relays], [], [])
            if relays in ready:
                _fork_for_a_relay(relays.accept()[0])
            elif (message := _receive(wire)) is None:
                break
            else:
                _fork(wire, *message)
    os.unlink(sys.argv[2])
    sys.exit()


def send(wire: socket.socket, request: dict[str, Any], standard: list[int]) -> None:
    """Ask for a fork with these three descriptors."""
    file = os.memfd_create("request")
    os.write(file, marshal.dumps(request))
    rights = array.array("i", [*standard, file])
    wire.sendmsg([b"fork"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(file)


def _receive(wire: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request, with stdin, stdout and stderr of the server; None when nobody is left who could ask."""
    body, rights, _, _ = wire.recvmsg(16, socket.CMSG_SPACE(4 * array.array("i").itemsize))
    if not body:
        return None
    *standard, file = array.array("i", rights[0][2])
    with os.fdopen(file, "rb") as request:
        request.seek(0)
        return marshal.loads(request.read()), standard  # from a test


def _fork(wire: socket.socket, request: dict[str, Any], standard: list[int]) -> None:
    if (between := os.fork()) == 0:
        if os.fork() != 0:
            os._exit(0)
        try:
            _become(wire, request, standard)
        except Exception as error:  # noqa: BLE001  # whatever it is, who asked waits for an answer
            wire.send(repr(error).encode())
            os._exit(1)
        if request["args"][: len(KERNEL)] == KERNEL:
            _run_kernel(request["args"])
        if request["args"][1:2] != ["-m"]:
            _end_with(partial(_run_program, request["args"][1:]))
        _provide_kernels()
        _run(request["args"])
    for fd in standard:
        os.close(fd)
    os.waitpid(between, 0)


def _fork_for_a_relay(relay: socket.socket) -> None:
    with relay:
        message = _receive(relay)
        if message is None:
            return
        if (between := os.fork()) == 0:
            if os.fork() != 0:
                os._exit(0)
            _run_for(relay, *message)
        for fd in message[1]:
            os.close(fd)
        os.waitpid(between, 0)


def _run_for(relay: socket.socket, request: dict[str, Any], standard: list[int]) -> NoReturn:
    def end_with_it() -> None:
        relay.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    exit_now = os._exit

    def end(status: int) -> NoReturn:
        relay.send(str(status).encode())
        exit_now(status)

    _take_on(request, standard)
    is_server = request["args"][1:2] == ["-m"]
    if is_server:
        _provide_kernels()  # before there is a thread
    threading.Thread(target=end_with_it, daemon=True).start()
    vars(os)["_exit"] = end
    if is_server:
        _run(request["args"])
    status = 0
    try:
        _run_program(request["args"][1:])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    sys.stdout.flush()
    end(status)


def _become(wire: socket.socket, request: dict[str, Any], standard: list[int]) -> None:
    """Take on all that was asked for, and say so."""
    _take_on(request, standard)
    while os.getppid() != request["parent"]:
        time.sleep(POLL_SECONDS)  # until the process between has ended
    wire.send(str(os.getpid()).encode())
    wire.close()


def _take_on(request: dict[str, Any], standard: list[int]) -> None:
    if request["session"]:
        os.setsid()
    if "umask" in request:
        os.umask(request["umask"])
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


# -- what each server builds from the same functions -------------------------------------------------------------------


def _keep_models() -> None:
    """From here on, what the SDK and pydantic make of one function is made once: the models of its arguments and of its
    results, and their JSON schemas. A server spends half of its start on them. What is kept is read or copied, so that
    no server sees what another one made of it."""
    from mcp.server.mcpserver.resources import templates
    from mcp.server.mcpserver.tools import base
    from mcp.server.mcpserver.utilities import func_metadata as module

    made: dict[Hashable, Any] = {}
    build, models = module.func_metadata, module.ArgModelBase
    rebuild, describe = models.model_rebuild.__func__, models.model_json_schema.__func__  # type: ignore[attr-defined]

    def func_metadata(
        func: Callable[..., Any], skip_names: Sequence[str] = (), structured_output: bool | None = None
    ) -> module.FuncMetadata:
        if not isinstance(func, MethodType):
            return build(func, skip_names, structured_output)
        key = func.__func__, *skip_names, structured_output
        if key not in made:
            made[key] = build(func, skip_names, structured_output)
        return made[key].model_copy(update={"output_schema": _copy(made[key].output_schema)})

    def settings_of(model: type) -> Hashable:
        return model, *sorted(model.model_config.items())  # type: ignore[attr-defined]

    def model_rebuild(model: type, *, force: bool = False, **options: Any) -> bool | None:
        key = "rebuilt", settings_of(model), *options.items()
        if not force:
            return rebuild(model, **options)
        if key not in made:
            made[key] = rebuild(model, force=True, **options)
        return made[key]

    def model_json_schema(model: type, by_alias: bool = True, **options: Any) -> dict[str, Any]:
        key = "described", settings_of(model), by_alias, *options.items()
        if key not in made:
            made[key] = describe(model, by_alias, **options)
        return _copy(made[key])

    vars(base)["func_metadata"] = vars(templates)["func_metadata"] = func_metadata
    models.model_rebuild = classmethod(model_rebuild)  # type: ignore[method-assign, assignment]
    models.model_json_schema = classmethod(model_json_schema)  # type: ignore[method-assign, assignment]


def _build_models() -> None:
    """Those of the tools and of the resources, from the functions that have them: none is called."""
    from mcp_types import ToolAnnotations

    from kernelmcp.mcp_server.file_resources import FileResources
    from kernelmcp.mcp_server.resources import Resources, ResourceServer
    from kernelmcp.mcp_server.tools import contract_tool, execution_tools, file_tools, package_tools, session_tools

    nothing: Any = object()
    tools = (
        execution_tools.ExecutionTools,
        session_tools.SessionTools,
        package_tools.PackageTools,
        file_tools.FileTools,
    )
    for name, function in [member for kind in tools for member in vars(kind).items()]:
        if not name.startswith("_") and "CallToolResult" in str(getattr(function, "__annotations__", {}).get("return")):
            contract_tool.contract_tool(MethodType(function, nothing), name, ToolAnnotations())
    server = ResourceServer("nothing")
    Resources(nothing, nothing, nothing).register(server)
    FileResources(nothing, nothing).register(server)


def _keep_provisioners() -> None:
    """jupyter_client looks through all that is installed for them."""
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    found = KernelProvisionerFactory._get_all_provisioners()
    KernelProvisionerFactory._get_all_provisioners = staticmethod(lambda: found)  # type: ignore[method-assign]


def _copy(schema: Any) -> Any:
    return marshal.loads(marshal.dumps(schema))  # what pydantic has just made


# -- the kernel processes of a server ----------------------------------------------------------------------------------


def _provide_kernels() -> None:
    """Give this server, from its beginning, the child that forks its kernel processes: others get it with the third."""
    from kernelmcp.kernel import forks, pool
    from kernelmcp_kernel import fork_server

    if not forks.can_fork():
        return
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        own.close()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)  # who waits for the end of the server's output does not wait for this
        os.close(null)
        fork_server.serve(theirs)
        os._exit(0)  # the server has ended
    theirs.close()
    own.setblocking(False)

    class ForkServer(forks.ForkServer):
        def __init__(self) -> None:
            self.wire = own

        def is_ready(self) -> bool:
            return True

        def end(self) -> None:
            own.shutdown(socket.SHUT_RDWR)

    class Forks(forks.Forks):
        def __init__(self, withheld: frozenset[str] = frozenset()) -> None:
            super().__init__(withheld)
            self._server = ForkServer()

    vars(pool)["Forks"] = Forks


# -- programs ----------------------------------------------------------------------------------------------------------


def _run_kernel(arguments: list[str]) -> NoReturn:
    import kernelmcp_kernel.__main__

    sys.argv = [str(kernelmcp_kernel.__main__.__file__), *arguments[len(KERNEL) :]]
    _end_with(kernelmcp_kernel.__main__.main)


def _run_program(arguments: list[str]) -> None:
    """A file in Python, with its arguments."""
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


def _run(arguments: list[str]) -> NoReturn:
    """A server, or another command of kernelmcp."""
    import kernelmcp.__main__
    import kernelmcp.cli

    sys.argv = [str(kernelmcp.__main__.__file__), *arguments[3:]]
    _end_with(kernelmcp.cli.main)


def _end_with(main: Callable[[], int | None]) -> NoReturn:
    """Run it and end as Python does, except that modules are not taken apart: that would copy all memory of a fork."""
    try:
        status = main()
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        status = error.code
    vars(threading)["_shutdown"]()  # other threads end first, then what is registered for the end
    vars(atexit)["_run_exitfuncs"]()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(status or 0)


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
