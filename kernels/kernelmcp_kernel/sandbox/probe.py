"""Detects working layers on this machine: a child applies each and tries what it forbids, in milliseconds.

Attempts by a guest itself are tested by doctor.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable

from kernelmcp_kernel.sandbox import landlock, seatbelt, seccomp
from kernelmcp_kernel.sandbox.cgroup import delegated

# Every guest of this kernel has these, on any system: no test is needed.
ALWAYS = frozenset({"wasm", "node-permission", "empty-environment", "closed-descriptors"})

_NO_NEW_PRIVS_SET, _NO_NEW_PRIVS_GET = 38, 39
_TARGET = os.devnull  # readable for everyone, so that only the layer can refuse


def missing(required: Iterable[str]) -> list[str]:
    """The layers of this list that do not work on this machine, in the same order."""
    return [name for name in required if name not in ALWAYS and not holds(name)]


def holds(layer: str) -> bool:
    """Return whether this layer alone stops a child from doing what it otherwise can. False for an unknown name."""
    tried = _TRIALS.get(layer)
    if tried is None:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if tried() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _no_new_privs() -> bool:
    libc = ctypes.CDLL(None)
    if sys.platform != "linux" or libc.prctl(_NO_NEW_PRIVS_SET, 1, 0, 0, 0) != 0:
        return False
    return libc.prctl(_NO_NEW_PRIVS_GET, 0, 0, 0, 0) == 1


def _landlock() -> bool:
    return landlock.available() > 0 and _no_new_privs() and _refused(_opens, lambda: landlock.restrict({}))


def _seccomp() -> bool:
    return seccomp.available() and _no_new_privs() and _refused(_makes_a_socket, lambda: seccomp.restrict(0))


def _seatbelt() -> bool:
    return seatbelt.available() and _refused(_opens, lambda: seatbelt.restrict([], [], []))


_TRIALS: dict[str, Callable[[], bool]] = {
    "no_new_privs": _no_new_privs,
    "landlock": _landlock,
    "seccomp": _seccomp,
    "seatbelt": _seatbelt,
    "cgroup": lambda: delegated() is not None,
}


def _refused(attempt: Callable[[], bool], confine: Callable[[], None]) -> bool:
    """True if the attempt works before and fails after; otherwise a refusal would prove nothing."""
    worked = attempt()
    confine()
    return worked and not attempt()


def _opens() -> bool:
    try:
        os.close(os.open(_TARGET, os.O_RDONLY))
    except OSError:
        return False
    return True


def _makes_a_socket() -> bool:
    unix, stream = 1, 1
    return ctypes.CDLL(None).socket(unix, stream, 0) >= 0


if __name__ == "__main__":
    lacking = missing(sys.argv[1:])
    sys.stdout.write("\n".join(lacking))
    sys.exit(1 if lacking else 0)
