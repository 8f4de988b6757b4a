"""`python -P -m kernelmcp_kernel.fork_server FD ROOM`: has imported what a kernel process needs, and forks one for each
request on the socket FD: a start without its imports, which all forks share the memory of.

A request is a JSON object, {arguments, environment}, with the descriptors of standard input, output and error;
the answer is a JSON object, {pid} or {error}, once the fork has taken all of it on. A fork is a child of this process's
parent, which waits for it. This process never has a second thread, runs no guest, and ends with its parent. ROOM is as
long as the longest command line of a fork, which is written over it. Linux only.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import platform
import signal
import socket
import sys
from importlib import import_module
from typing import Any, NoReturn

from kernelmcp_kernel import __main__ as program

NAME = "kernelmcp-fork-server"
"""What ps shows."""
_MAX_REQUEST_BYTES = 1 << 20
# clone(2): its number by machine, and the place of the address of the thread's id among its arguments.
_CLONE = {"x86_64": (56, 3), "aarch64": (220, 4)}
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40

Request = dict[str, Any]


def main() -> NoReturn:
    """Import everything, say so, and serve until the parent ends."""
    wire = socket.socket(fileno=int(sys.argv[1]))
    wire.set_inheritable(False)
    import_everything()
    gc.collect()
    gc.freeze()
    wire.send(b"{}")
    serve(wire)
    os._exit(0)


def import_everything() -> None:
    """Import what a kernel process has imported when its guest is ready."""
    program.import_kernelbase()
    for name in ("kernelmcp_kernel.jupyter.sandbox_kernel", "kernelmcp_kernel.jupyter.launcher"):
        import_module(name)


def serve(wire: socket.socket) -> None:
    """Fork until nobody is left who could ask. Never returns in a fork."""
    os.chdir("/")
    _set_command_line([NAME])
    while (found := _receive(wire)) is not None:
        request, standard = found
        ready, begun = os.pipe()
        pid = _fork_a_sibling()
        if pid == 0:
            wire.close()
            os.close(ready)
            _become(request, standard, begun)
            program.main()
            sys.exit()
        for fd in (*standard, begun):
            os.close(fd)
        with open(ready, "rb") as told:
            is_ready = pid > 0 and told.read() != b""
        error = os.strerror(-pid) if pid < 0 else "it ended at once"
        wire.send(json.dumps({"pid": pid} if is_ready else {"error": error}).encode())


def _receive(wire: socket.socket) -> tuple[Request, list[int]] | None:
    body, rights, _, _ = wire.recvmsg(_MAX_REQUEST_BYTES, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    return (json.loads(body), list(array.array("i", rights[0][2]))) if body else None


def _become(request: Request, standard: list[int], begun: int) -> None:
    """Take on what was asked for, and say so."""
    os.setsid()
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    for fd in standard:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    _set_command_line(request["arguments"])
    sys.orig_argv[:] = request["arguments"]
    sys.argv[:] = [str(program.__file__), *request["arguments"][4:]]
    os.write(begun, b"1")  # fails if nobody reads it any more: then this is nobody's kernel
    os.close(begun)


def _fork_a_sibling() -> int:
    """os.fork, but the new process is a child of this one's parent. Negative: the number of an error.

    It is the bare system call, without the handlers that C libraries have registered: there is one thread, and so no
    lock that another one holds; OpenSSL looks at the process id itself before it draws random numbers. The C library's
    number of the thread is set by the system call.
    """
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    number, place = _CLONE[platform.machine()]
    flags, arguments = _CLONE_PARENT | signal.SIGCHLD, [ctypes.c_void_p(0)] * 5
    address = ctypes.c_void_p()
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) == 0 and address:
        flags |= _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID
        arguments[place] = address
    arguments[0] = ctypes.c_void_p(flags)
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(number, *arguments)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    return pid if pid > 0 else -ctypes.get_errno()


def _set_command_line(arguments: list[str]) -> None:
    """What ps shows; written over this process's own. Linux shows the text up to the first NUL if the area does not end
    with one."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    text = os.fsencode(" ".join(arguments))[: end - start - 2]
    ctypes.memset(start, 0, end - start - 1)
    ctypes.memset(end - 1, ord(" "), 1)
    ctypes.memmove(start, text, len(text))


if __name__ == "__main__":
    main()
