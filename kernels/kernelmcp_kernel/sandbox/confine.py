"""Turns a policy into a confined child process. The only place where a guest process is started.

It must not know what the child is.

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

from kernelmcp_kernel.sandbox import landlock, seatbelt, seccomp

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLOSE_RANGE = 436  # the same number on every architecture
_CAPABILITY_VERSION_3 = 0x20080522

_MIB = 1024 * 1024

# A thread's stack, and the first one's: Node's own default, which code would otherwise inherit from whoever started us.
_STACK_MB = 8

# The variable in which a fresh interpreter finds its policy.
_POLICY_VARIABLE = "KERNELMCP_POLICY"

# What may be left out of a Policy, by name: for the attack suite, which proves each layer by its absence.
OS_LAYERS = ("descriptors", "limits", "landlock", "seccomp", "seatbelt")


@dataclass(frozen=True)
class Policy:
    """What a child may do. A layer that this system does not have is left out; `layers` says which it has.

    `program` is the argument vector, `descriptors` the parent's descriptors that become the child's 0, 1, 2, ...
    Every other descriptor is closed. `environment` is the whole environment. `readable`, `writable` and `executable`
    are paths, with all beneath them. `max_open_files` caps its descriptors, `max_data_mb` its private memory,
    `max_file_mb` the size of a file that it writes, `max_cpu_seconds` its processor time (0: no cap). `uid`: the user
    and group that a root process becomes.
    """

    program: list[str]
    descriptors: list[int]
    environment: dict[str, str]
    readable: list[str] = field(default_factory=list[str])
    writable: list[str] = field(default_factory=list[str])
    executable: list[str] = field(default_factory=list[str])
    max_data_mb: int = 0
    max_file_mb: int = 0
    max_cpu_seconds: int = 0
    max_open_files: int = 256
    uid: int | None = None
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
    program = [sys.executable, "-S", "-s", "-P", "-m", "kernelmcp_kernel.sandbox.confine"]
    program.append(str(os.getpid()))
    # By the environment, because everybody may read a command line, and an index's address may hold a password.
    folder = str(Path(__file__).resolve().parents[2])
    return program, {"PYTHONPATH": folder, _POLICY_VARIABLE: json.dumps(asdict(policy))}


def _dup_above(fd: int, minimum: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, minimum)


def enter(policy: Policy, parent: int) -> None:
    """In the child of `parent`: give up what the policy says and become the program. Never returns; failure raises."""
    off = frozenset(policy.without)
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if "descriptors" not in off:
        _close_from(len(policy.descriptors))
    if "limits" not in off:
        _apply_limits(policy)
    path = ctypes.create_string_buffer(os.fsencode(policy.program[0]))
    if sys.platform == "linux":
        if off != frozenset(OS_LAYERS):
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" not in off and landlock.available():
            landlock.restrict(_rights(policy), network=policy.network)
        if "limits" not in off:
            _drop_privileges(policy.uid)
        _die_with(parent)
        if "seccomp" not in off and seccomp.available():
            seccomp.restrict(ctypes.addressof(path), network=policy.network)
    elif "seatbelt" not in off and seatbelt.available():
        seatbelt.restrict(policy.readable, policy.writable, policy.executable, network=policy.network)
    _execute(path, policy)


def _rights(policy: Policy) -> dict[str, int]:
    rights = dict.fromkeys(policy.readable, landlock.READ) | dict.fromkeys(policy.executable, landlock.EXECUTE)
    return rights | dict.fromkeys(policy.writable, landlock.WRITE)


def _close_from(first: int) -> None:
    # The system call first: what we inherited may lie above a limit that was lowered since.
    if sys.platform != "linux" or ctypes.CDLL(None).syscall(_CLOSE_RANGE, first, ctypes.c_uint(~0), 0) != 0:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _apply_limits(policy: Policy) -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, policy.max_open_files)
    _limit(resource.RLIMIT_STACK, _STACK_MB * _MIB)
    if policy.max_data_mb:
        _limit(resource.RLIMIT_DATA, policy.max_data_mb * _MIB)
    if policy.max_file_mb:
        _limit(resource.RLIMIT_FSIZE, policy.max_file_mb * _MIB)
    if policy.max_cpu_seconds:
        _limit(resource.RLIMIT_CPU, policy.max_cpu_seconds)


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


def _drop_privileges(uid: int | None) -> None:
    """Become `uid`, or stay root without a root's capabilities. With no_new_privs, execve cannot bring them back."""
    if os.geteuid() != 0:
        return
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends. Call it last: a change of user undoes it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the system knew of our wish; who has us now may be any reaper
        os._exit(125)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, int(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


if __name__ == "__main__":
    enter(Policy(**json.loads(os.environ[_POLICY_VARIABLE])), int(sys.argv[1]))
