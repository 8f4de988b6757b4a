"""Turns a policy into a confined child process. The only place where a guest process is started.

It must not know what the child is.

Two ways lead into the same `enter`: a process that has one thread forks (nothing is faster); a process with threads
runs `enter` in a fresh interpreter, because code between fork and exec is unsafe beside threads. Either way the
child arrives with its descriptors in place, gives up what the policy says, and becomes the program.

Imports the standard library only, and little of it: it runs before everything else in a kernel's start.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernelmcp_kernel.sandbox import landlock, seatbelt, seccomp
from kernelmcp_kernel.sandbox.enter import OS_LAYERS, POLICY_VARIABLE, encode, enter

__all__ = ["OS_LAYERS", "Policy", "command", "layers", "spawn"]


@dataclass(frozen=True)
class Policy:
    """What a child may do. A layer that this system does not have is left out; `layers` says which it has.

    `program` is the argument vector, `descriptors` the parent's descriptors that become the child's 0, 1, 2, ...
    Every other descriptor is closed. `environment` is the whole environment. `readable`, `writable` and `executable`
    are paths, with all beneath them; nothing starts where one of those in `unlinked` leads through a link.
    `max_open_files` caps its descriptors, `max_data_mb` its private memory, `max_file_mb` the size of a file that it
    writes, `max_cpu_seconds` its processor time (0: no cap). `uid`: the user and group that a root process becomes.
    `umask`: of the files that it makes.
    """

    program: list[str]
    descriptors: list[int]
    environment: dict[str, str]
    readable: list[str] = field(default_factory=list[str])
    writable: list[str] = field(default_factory=list[str])
    executable: list[str] = field(default_factory=list[str])
    unlinked: list[str] = field(default_factory=list[str])
    max_data_mb: int = 0
    max_file_mb: int = 0
    max_cpu_seconds: int = 0
    max_open_files: int = 256
    uid: int | None = None
    umask: int = 0o077
    network: bool = False
    """It may open connections. A guest never does; pip must."""
    without: list[str] = field(default_factory=list[str])
    """Names of OS_LAYERS that are left off. No setting leads here: only the attack suite's own Python does."""


def layers() -> dict[str, bool]:
    """The operating system's layers: which of them this system has, found out by asking it."""
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
        # First out of the way of the targets and of each other, then into place.
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
    """The command line and environment of a process that confines itself and becomes the program. Whoever starts it
    puts the descriptors in place."""
    # Not by `-m`, whose own imports take as long as the interpreter's start.
    code = "from kernelmcp_kernel.sandbox.enter import main; main()"
    program = [sys.executable, "-S", "-s", "-P", "-c", code, str(os.getpid())]
    # By the environment, because everybody may read a command line, and an index's address may hold a password.
    folder = str(Path(__file__).resolve().parents[2])
    return program, {"PYTHONPATH": folder, POLICY_VARIABLE: encode(asdict(policy))}


def _dup_above(fd: int, minimum: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, minimum)
