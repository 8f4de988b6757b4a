"""Restricts the decoder before it sees a picture: memory, processor time, files, and on Linux nearly all system calls.
A restriction that a machine lacks is skipped: the process is still killed after seconds, and has nothing but two
pipes."""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from contextlib import suppress

MAX_MEMORY_BYTES = 640 * 2**20
MAX_CPU_SECONDS = 8
MAX_FILES = 16

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 38, 22, 2
# Classic BPF: load a word, jump if equal, return; the offsets of number and architecture in struct seccomp_data.
_LOAD, _JUMP_EQUAL, _RETURN, _NUMBER, _ARCHITECTURE = 0x20, 0x15, 0x06, 0, 4
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

# machine: (AUDIT_ARCH, numbers). Memory, the two pipes, locks, clocks and exit: a decoder needs no more.
_CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "read": 0,
            "write": 1,
            "mmap": 9,
            "mprotect": 10,
            "munmap": 11,
            "brk": 12,
            "rt_sigaction": 13,
            "rt_sigprocmask": 14,
            "rt_sigreturn": 15,
            "mremap": 25,
            "madvise": 28,
            "exit": 60,
            "getcwd": 79,
            "futex": 202,
            "clock_gettime": 228,
            "exit_group": 231,
            "getrandom": 318,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "getcwd": 17,
            "read": 63,
            "write": 64,
            "exit": 93,
            "exit_group": 94,
            "futex": 98,
            "clock_gettime": 113,
            "rt_sigaction": 134,
            "rt_sigprocmask": 135,
            "rt_sigreturn": 139,
            "brk": 214,
            "munmap": 215,
            "mremap": 216,
            "mmap": 222,
            "mprotect": 226,
            "madvise": 233,
            "getrandom": 278,
        },
    ),
}


# Open a file, ask for its size, and map it.
_OPENING = {
    "x86_64": {"close": 3, "fstat": 5, "lseek": 8, "openat": 257},
    "aarch64": {"openat": 56, "close": 57, "lseek": 62, "fstat": 80},
}
# The same on all machines. File access rights of Landlock's first version; later ones add renaming and truncating.
_CREATE_RULESET, _RESTRICT_SELF, _VERSION_FLAG = 444, 446, 1
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}


def _shut_all_files() -> bool:
    """True if this process can no longer read or write any file that has a name in a file system. (It can still find
    out whether a path exists, by O_PATH.)"""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1 or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    rights = struct.pack("Q", _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))])
    ruleset = libc.syscall(_CREATE_RULESET, rights, len(rights), 0)
    return ruleset >= 0 and libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0


def confine(*, opens_font: bool = False) -> None:
    """Give up all possible rights, permanently.

    `opens_font`: a file in memory may be opened by its path, if Landlock blocks all others.
    """
    parent = os.getppid()
    has_filter = sys.platform == "linux" and platform.machine() in _CALLS and struct.calcsize("P") == 8
    opens_font = opens_font and has_filter and _shut_all_files()
    for what, limit in (
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
        (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MAX_FILES if opens_font else 0),
    ):
        with suppress(OSError, ValueError):  # macOS rejects some
            resource.setrlimit(what, (limit, limit))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended just before
            sys.exit()
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if has_filter:
            architecture, calls = _CALLS[platform.machine()]
            program = _filter(architecture, calls | (_OPENING[platform.machine()] if opens_font else {}))
            buffer = ctypes.create_string_buffer(program, len(program))
            description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
            if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, description, 0, 0) != 0:
                with suppress(OSError, ValueError):  # without the filter no descriptor is available
                    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _filter(architecture: int, calls: dict[str, int]) -> bytes:
    """Allow these system calls; return EPERM for others; kill a caller that uses another architecture's numbers."""

    def step(opcode: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", opcode, if_true, if_false, value)

    program = step(_LOAD, _ARCHITECTURE) + step(_JUMP_EQUAL, architecture, 1, 0) + step(_RETURN, _KILL_PROCESS)
    program += step(_LOAD, _NUMBER)
    for number in calls.values():
        program += step(_JUMP_EQUAL, number, 0, 1) + step(_RETURN, _ALLOW)
    return program + step(_RETURN, _ERRNO | errno.EPERM)
