"""`python -P -m kernelmcp_kernel.fork_server FD ROOM`: has imported what a kernel process needs, and forks one for each
request on the socket FD: a start without its imports, whose memory all forks share.

A request is a JSON object, {arguments, environment}, with the descriptor of standard output and error; standard input
is this process's, which is empty. The answers are two JSON objects: {pid}, and {ready} once the fork has taken all of
it on; {error} instead of either. A fork is a child of this process's parent, which waits for it. This process has one
thread, starts no guest, and ends with its parent. A fork's command line is written over ROOM; a longer one is cut. For
Linux with glibc only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from kernelmcp_kernel import __main__ as program

NAME = "kernelmcp-fork-server"
"""What ps shows."""
_MAX_REQUEST_BYTES = 1 << 20
# The last four are imported by others when they are first used: an event loop, Node's version, ours, a thread.
_OF_A_START = (
    *("kernelmcp_kernel.jupyter.sandbox_kernel", "kernelmcp_kernel.jupyter.launcher"),
    *("tornado.platform.asyncio", "encodings.ascii", "email.parser", "concurrent.futures.thread"),
)
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
    _answer(wire, {})
    serve(wire)
    os._exit(0)


def import_everything() -> None:
    """Import what a kernel process has imported when its guest is ready."""
    program.import_kernelbase()
    for name in _OF_A_START:
        import_module(name)
    for name in ("python.image", "javascript.language"):
        with suppress(Exception):  # whatever is wrong with the installation, each kernel says so itself
            import_module(f"kernelmcp_kernel.languages.{name}").own_build()


def serve(wire: socket.socket) -> None:
    """Fork until nobody is left who could ask. Never returns in a fork."""
    os.chdir("/")
    _set_command_line([NAME])
    while _serve_one(wire):
        pass


def _serve_one(wire: socket.socket) -> bool:
    body, outputs, _, _ = socket.recv_fds(wire, _MAX_REQUEST_BYTES, 1)
    if not body:
        return False
    [output] = outputs
    ready, begun = os.pipe()
    pid = _fork_a_sibling()
    if pid == 0:
        wire.close()
        os.close(ready)
        _become(json.loads(body), output, begun)
        sys.exit(program.main())
    os.close(output)
    os.close(begun)
    _answer(wire, {"pid": pid} if pid > 0 else {"error": os.strerror(-pid)})
    with open(ready, "rb") as told:
        is_ready = told.read() != b""
    if pid > 0:
        _answer(wire, {"ready": True} if is_ready else {"error": "it ended at once"})
    return True


def _answer(wire: socket.socket, answer: dict[str, Any]) -> None:
    wire.send(json.dumps(answer).encode())


def _become(request: Request, output: int, begun: int) -> None:
    """Take on what was asked for, and say so."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
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
    lock that another one holds; OpenSSL looks at the process id itself before it draws random numbers. glibc's own
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
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5); 0 if a system does not tell
    if end - start < 2:
        return
    text = os.fsencode(" ".join(arguments))[: end - start - 2]
    ctypes.memset(start, 0, end - start - 1)
    ctypes.memset(end - 1, ord(" "), 1)
    ctypes.memmove(start, text, len(text))


if __name__ == "__main__":
    main()
