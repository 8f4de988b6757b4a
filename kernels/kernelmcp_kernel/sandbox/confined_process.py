"""Turns a policy into a confined child process. Guest processes are started only here.

It must not know the purpose of the child.

Two ways lead to the same `enter`: a process with one thread forks (the fastest way); a process with threads runs
`enter` in a new interpreter, because code between fork and exec is unsafe with other threads. In both cases, the child
starts with its descriptors in place, gives up the rights that the policy denies, and becomes the program.

Imports only the standard library, and little of it: it runs before everything else in a kernel's start.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from kernelmcp_kernel.sandbox import landlock, seatbelt, seccomp
from kernelmcp_kernel.sandbox.enter import OS_LAYERS, POLICY_VARIABLE, encode, enter
from kernelmcp_kernel.sandbox.sandbox_policy import Policy

__all__ = ["OS_LAYERS", "Policy", "command", "layers", "spawn"]


def layers() -> dict[str, bool]:
    """The operating system's layers, and whether this system has each, determined by asking the system."""
    return {
        "landlock": landlock.available() > 0,
        "seccomp": seccomp.available(),
        "seatbelt": seatbelt.available(),
    }


def spawn(policy: Policy) -> int:
    """Start the confined child and return its process id.

    The child is killed when the calling *thread* ends, so call from one that lives as long as the process.
    """
    if threading.active_count() == 1:
        return _fork(policy)
    return _run_fresh(policy)


def _fork(policy: Policy) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        # First move them out of the way of the targets and of each other, then into place.
        above = max(100, *policy.descriptors) + 1
        sources = [_dup_above(fd, above) for fd in policy.descriptors]
        for target, source in enumerate(sources):
            os.dup2(source, target, inheritable=True)
        enter(policy, parent)
    except BaseException:  # noqa: BLE001  # the parent reads it from the pipe that is our stderr
        import traceback

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
        program, environment = command(policy)
        return os.posix_spawn(sys.executable, program, environment, file_actions=actions)
    finally:
        for fd in moved:
            os.close(fd)


def command(policy: Policy) -> tuple[list[str], dict[str, str]]:
    """The command line and environment of a process that confines itself and becomes the program. The caller puts the
    descriptors in place."""
    # Without `-m`, whose own imports take as long as the interpreter's start.
    code = "from kernelmcp_kernel.sandbox.enter import main; main()"
    program = [sys.executable, "-S", "-s", "-P", "-c", code, str(os.getpid())]
    # In the environment, because every user can read a command line, and the URL of an index may contain a password.
    folder = str(Path(__file__).resolve().parents[2])
    return program, {"PYTHONPATH": folder, POLICY_VARIABLE: encode(asdict(policy))}


def _dup_above(fd: int, minimum: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, minimum)
