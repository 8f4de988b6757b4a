"""Turns a policy into a confined child process. The only place where a guest process is started.

Above: `runtime`, which knows what a guest needs. Below: the operating system. It must not know what the child is.

Two ways lead into the same `enter`: a process that has one thread forks (nothing is faster); a process with threads
runs this module in a fresh interpreter, because code between fork and exec is unsafe beside threads. Either way the
child arrives with its descriptors in place, gives up what the policy says, and becomes the program.

Imports the standard library only, and little of it: it runs before everything else in a kernel's start.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernelmcp_kernel import landlock, seccomp

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True)
class Policy:
    """What a child may do. A layer that this system does not have is left out; `layers` says which it has.

    `program` is the argument vector, `descriptors` the parent's descriptors that become the child's 0, 1, 2, ...
    Every other descriptor is closed. `environment` is the whole environment. `readable`, `writable` and `executable`
    are paths, with all beneath them. `max_open_files` caps its descriptors, `max_data_mb` its private memory and
    `max_file_mb` each file that it writes (0: no cap).
    """

    program: list[str]
    descriptors: list[int]
    environment: dict[str, str]
    readable: list[str] = field(default_factory=list[str])
    writable: list[str] = field(default_factory=list[str])
    executable: list[str] = field(default_factory=list[str])
    max_data_mb: int = 0
    max_file_mb: int = 0
    max_open_files: int = 256


def layers() -> dict[str, bool]:
    """The operating system's layers: which of them this system has."""
    return {"landlock": landlock.available() > 0, "seccomp": seccomp.available()}


def spawn(policy: Policy) -> int:
    """Start the confined child and return its process id.

    The child is killed when the calling *thread* ends, so call from one that lives as long as the process.
    """
    if threading.active_count() == 1:
        return _fork(policy)
    return _run_fresh(policy)


def _fork(policy: Policy) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        # First out of the way of the targets and of each other, then into place.
        above = max(100, *policy.descriptors) + 1
        sources = [_dup_above(fd, above) for fd in policy.descriptors]
        for target, source in enumerate(sources):
            os.dup2(source, target, inheritable=True)
        enter(policy)
    except BaseException:  # noqa: BLE001  # the parent reads it from the pipe that is our stderr
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(126)


def _run_fresh(policy: Policy) -> int:
    moved: list[int] = []
    try:
        actions: list[tuple[int, ...]] = []
        for target, fd in enumerate(policy.descriptors):
            moved.append(_dup_above(fd, 100))
            actions.append((os.POSIX_SPAWN_DUP2, moved[-1], target))
        program = [sys.executable, "-S", "-s", "-P", "-m", "kernelmcp_kernel.confine", json.dumps(asdict(policy))]
        environment = {"PYTHONPATH": str(Path(__file__).parent.parent)}
        return os.posix_spawn(sys.executable, program, environment, file_actions=actions)
    finally:
        for fd in moved:
            os.close(fd)


def _dup_above(fd: int, minimum: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, minimum)


def enter(policy: Policy) -> None:
    """In the child: give up what the policy says and become the program. Returns never; any failure raises."""
    parent = os.getppid()
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    os.closerange(len(policy.descriptors), os.sysconf("SC_OPEN_MAX"))
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, policy.max_open_files)
    if policy.max_data_mb:
        _limit(resource.RLIMIT_DATA, policy.max_data_mb * 1024 * 1024)
    if policy.max_file_mb:
        _limit(resource.RLIMIT_FSIZE, policy.max_file_mb * 1024 * 1024)
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        _die_with(parent)
    path = ctypes.create_string_buffer(os.fsencode(policy.program[0]))
    if landlock.available():
        rights = dict.fromkeys(policy.readable, landlock.READ) | dict.fromkeys(policy.executable, landlock.EXECUTE)
        landlock.restrict(rights | dict.fromkeys(policy.writable, landlock.WRITE))
    if seccomp.available():
        seccomp.restrict(ctypes.addressof(path))
    _execute(path, policy)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _execute(path: ctypes.Array[ctypes.c_char], policy: Policy) -> None:
    """execve with the path at this very address, which is what the filter lets through."""
    arguments = [os.fsencode(argument) for argument in policy.program]
    environment = [os.fsencode(f"{name}={value}") for name, value in policy.environment.items()]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.execve(path, _strings(arguments), _strings(environment))
    raise OSError(ctypes.get_errno(), f"execve {policy.program[0]}")


def _strings(items: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_PDEATHSIG, signal.SIGKILL), (_PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, int(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
    if os.getppid() != parent:  # it ended before the kernel knew that we want to end with it
        os._exit(125)


if __name__ == "__main__":
    enter(Policy(**json.loads(sys.argv[1])))
