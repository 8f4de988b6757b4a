"""Turns a policy into a confined child process. The only place where a guest process is started.

Above: `runtime`, which knows what a guest needs. Below: the operating system. It must not know what the child is.

Two ways lead into the same `enter`: a process that has one thread forks (nothing is faster); a process with threads runs
this file in a fresh interpreter, because code between fork and exec is unsafe beside threads. Either way the child arrives
with its descriptors in place, gives up what the policy says, and becomes the program.

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
from dataclasses import asdict, dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True)
class Policy:
    """What a child may do. The layers that need the operating system's help are added here, none is assumed.

    `program` is the argument vector, `descriptors` the parent's descriptors that become the child's 0, 1, 2, ... Every other
    descriptor is closed. `environment` is the whole environment. `max_open_files` caps its descriptors.
    """

    program: list[str]
    descriptors: list[int]
    environment: dict[str, str]
    max_open_files: int = 256


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
        # First out of the way of the targets, then into place.
        sources = [os.dup2(fd, 100 + index) for index, fd in enumerate(policy.descriptors)]
        for target, source in enumerate(sources):
            os.dup2(source, target, inheritable=True)
        enter(policy)
    finally:
        os._exit(126)


def _run_fresh(policy: Policy) -> int:
    moved: list[int] = []
    try:
        actions: list[tuple[int, ...]] = []
        for target, fd in enumerate(policy.descriptors):
            moved.append(_dup_above(fd, 100))
            actions.append((os.POSIX_SPAWN_DUP2, moved[-1], target))
        program = [sys.executable, "-I", "-S", str(Path(__file__)), json.dumps(asdict(policy))]
        return os.posix_spawn(sys.executable, program, {}, file_actions=actions)
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
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = policy.max_open_files if hard == resource.RLIM_INFINITY else min(policy.max_open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.platform == "linux":
        _die_with(parent)
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.execve(policy.program[0], policy.program, policy.environment)


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_PDEATHSIG, signal.SIGKILL), (_PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, int(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
    if os.getppid() != parent:  # it ended before the kernel knew that we want to end with it
        os._exit(125)


if __name__ == "__main__":
    enter(Policy(**json.loads(sys.argv[1])))
