"""The child's side of a confinement: a process gives up the rights that its policy denies, and becomes the program.

`main` runs in the new interpreter between a process with threads and a confined one. Its imports are part of every
start of a guest, so there are few: `signal`, `json` and `dataclasses` alone would take 15 ms.
"""

from __future__ import annotations

import binascii
import ctypes
import marshal
import os
import resource
import sys
from types import SimpleNamespace

from kernelmcp_kernel.sandbox import landlock, seatbelt, seccomp

TYPE_CHECKING = False  # known to type checkers: `typing` takes as long to import as everything else
if TYPE_CHECKING:
    from typing import Any

    from kernelmcp_kernel.sandbox.sandbox_policy import Policy

_SIGKILL, _SIGPIPE, _SIGINT = 9, 13, 2

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLOSE_RANGE = 436  # the same number on every architecture
_CAPABILITY_VERSION_3 = 0x20080522

_MIB = 1024 * 1024

# Stack of the main and of other threads: Node's default, which would otherwise be inherited from our parent.
_STACK_MB = 8

# The variable that contains the policy for a new interpreter.
POLICY_VARIABLE = "KERNELMCP_POLICY"

# Layers that a Policy may omit: for the attack suite, which proves each layer by its absence.
OS_LAYERS = ("descriptors", "limits", "landlock", "seccomp", "seatbelt")


def encode(policy: dict[str, Any]) -> str:
    """A policy's fields as text, for an interpreter of the same version."""
    return binascii.b2a_base64(marshal.dumps(policy), newline=False).decode()


def _decode(text: str) -> Any:
    return SimpleNamespace(**marshal.loads(binascii.a2b_base64(text)))  # noqa: S302  # our parent's


def enter(policy: Policy, parent: int) -> None:
    """In the child of `parent`: apply the policy and become the program. Never returns; raises on failure."""
    off = frozenset(policy.without)
    os.setsid()
    os.umask(policy.umask)
    os.chdir("/")
    for number in (_SIGINT, _SIGPIPE):  # ignored signals stay ignored in the program
        ctypes.CDLL(None).signal(number, ctypes.c_void_p(0))
    if "descriptors" not in off:
        _close_from(len(policy.descriptors))
    if "limits" not in off:
        _apply_limits(policy)
    path = ctypes.create_string_buffer(os.fsencode(policy.program[0]))
    if sys.platform == "linux":
        _go_first()
        if off != frozenset(OS_LAYERS):
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" not in off and landlock.available():
            landlock.restrict(_rights(policy), unlinked=policy.unlinked, network=policy.network)
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
    if sys.platform == "linux" and ctypes.CDLL(None).syscall(_CLOSE_RANGE, first, ctypes.c_uint(~0), 0) == 0:
        return
    # Not up to the limit: inherited descriptors may be above one that was lowered since, and macOS's may be endless.
    try:
        last = max(int(name) for name in os.listdir("/dev/fd"))
    except OSError:  # a container without /proc
        last = os.sysconf("SC_OPEN_MAX")
    os.closerange(first, last + 1)


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


def _go_first() -> None:
    """When the system is short of memory, it ends this process before others."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:  # no /proc
        return
    os.write(fd, b"1000")
    os.close(fd)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _execute(path: ctypes.Array[ctypes.c_char], policy: Policy) -> None:
    """execve with the path at this exact address, the only one that the filter allows."""
    arguments = [os.fsencode(argument) for argument in policy.program]
    environment = [os.fsencode(f"{name}={value}") for name, value in policy.environment.items()]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.execve(path, _strings(arguments), _strings(environment))
    raise OSError(ctypes.get_errno(), f"execve {policy.program[0]}")


def _strings(items: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _drop_privileges(uid: int | None) -> None:
    """Become `uid`, if this is root, and have no capabilities: neither a root's nor those that a service was given
    (ambient ones, which an execve keeps). With no_new_privs, execve cannot bring them back."""
    if uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _die_with(parent: int) -> None:
    """Make the system kill this process when its parent ends. Call it last: a change of user undoes it."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:  # it ended before the call took effect; the new parent may be any reaper
        os._exit(125)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, int(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def main() -> None:
    """For `confined_process.command`: policy in the environment, parent as the only argument."""
    enter(_decode(os.environ[POLICY_VARIABLE]), int(sys.argv[1]))
