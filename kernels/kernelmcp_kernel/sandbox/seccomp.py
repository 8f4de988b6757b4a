"""A seccomp filter: allows only the system calls of Node with Pyodide (or of pip) (Linux, without privileges).

An allow-list, so that future system calls are refused: unknown ones return ENOSYS, as on an old kernel. There are no
sockets of any family (for pip: only IP), no new processes, no new programs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from kernelmcp_kernel.sandbox.syscall_numbers import AARCH64, NETWORK_AARCH64, NETWORK_X86_64, X86_64

TYPE_CHECKING = False  # see enter.py
if TYPE_CHECKING:
    from collections.abc import Callable

# Classic BPF opcodes, and offsets into struct seccomp_data.
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SET_MODE_FILTER, _GET_ACTION_AVAILABLE = 1, 2

_NETWORK = {"x86_64": NETWORK_X86_64, "aarch64": NETWORK_AARCH64}
_ADDRESS_FAMILIES = (2, 10)  # AF_INET, AF_INET6

# CLONE_THREAD, CLONE_FILES, CLONE_FS: a thread that shares the table of descriptors, in which deleted files are found.
_CLONE_FLAGS = (0x10000, 0x400, 0x200)
_CLONE_NEW_NAMESPACES = 0x7E020080
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
# SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU: a process is stopped while its files are counted.
_STOP_SIGNALS = (18, 19, 20, 21, 22)

# machine: numbers, AUDIT_ARCH, the number of seccomp(2)
_MACHINES = {"x86_64": (X86_64, 0xC000003E, 317), "aarch64": (AARCH64, 0xC00000B7, 277)}

# Not covered by Landlock, and Pyodide's file system calls chmod for new files: these return 0 and do nothing.
_PRETENDED = frozenset(
    [
        "chmod",
        "fchmod",
        "fchmodat",
        "fchmodat2",
        "chown",
        "fchown",
        "lchown",
        "fchownat",
        "utime",
        "utimes",
        "futimesat",
        "utimensat",
    ]
)
_O_ACCESS_MODE, _O_TRUNC = os.O_WRONLY | os.O_RDWR, os.O_TRUNC

_TERMINAL_QUERIES = (0x5401, 0x5413, 0x541B, 0x5421, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX
_FCNTL_COMMANDS = (0, 1, 2, 3, 1030)  # duplicate, flags of a descriptor, get those of a file
_F_SETFL = 4
_O_DIRECT = 0x4000 | 0x10000  # of x86-64 and of ARM64; the other one is O_DIRECTORY, which cannot be set
_LOCKS = (5, 6, 7, 36, 37, 38)  # for pip: a guest could lock files that it may only read, and block host programs
_PRCTL_OPTIONS = (15, 16, 0x53564D41)  # set and get a thread's name, name a memory region


def available() -> bool:
    """Return whether this machine has the filter and we know its system calls. Asks the system: a container's own
    filter or an old kernel may refuse."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    action = ctypes.c_uint32(_KILL_PROCESS)
    number = _MACHINES[os.uname().machine][2]
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(number, _GET_ACTION_AVAILABLE, 0, ctypes.byref(action)) == 0


def restrict(program_path: int, *, network: bool = False) -> None:
    """Install the filter for this process, permanently. Raises OSError.

    `network`: allow connections over IP.

    `program_path` is the address of the string that the coming execve will name: no other execve is allowed.
    """
    program = _assemble(program_path, os.getpid(), network=network)
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = _MACHINES[os.uname().machine][2]
    if libc.syscall(number, _SET_MODE_FILTER, 0, description) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


class _Filter:
    """A BPF program under construction."""

    def __init__(self) -> None:
        self._code: list[bytes] = []

    def add(self, opcode: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append(struct.pack("HBBI", opcode, if_true, if_false, value & 0xFFFFFFFF))

    def answer(self, action: int) -> None:
        self.add(_RETURN, action)

    def refuse(self, error: int) -> None:
        self.answer(_ERRNO | error)

    def load_argument(self, index: int, *, high_word: bool = False) -> None:
        self.add(_LOAD, _ARGUMENTS + 8 * index + (4 if high_word else 0))

    def require(self, opcode: int, value: int, error: int) -> None:
        """Continue if the loaded word passes, otherwise refuse."""
        self.add(opcode, value, 1, 0)
        self.refuse(error)

    def for_call(self, number: int, body: Callable[[], None]) -> None:
        """If this is the system call, run `body`, which answers on every path."""
        start = len(self._code)
        self.add(_JUMP_EQUAL, number)
        body()
        self._code[start] = struct.pack("HBBI", _JUMP_EQUAL, 0, len(self._code) - start - 1, number)

    def allow_when_argument(self, index: int, values: tuple[int, ...], otherwise: int) -> None:
        self.load_argument(index)
        for value in values:
            self.add(_JUMP_EQUAL, value, 0, 1)
            self.answer(_ALLOW)
        self.refuse(otherwise)

    def bytes(self) -> bytes:
        return b"".join(self._code)


def _assemble(program_path: int, pid: int, *, network: bool) -> bytes:
    machine = os.uname().machine
    numbers, architecture, _ = _MACHINES[machine]
    if network:
        numbers = numbers | _NETWORK[machine]
    code = _Filter()
    code.add(_LOAD, _ARCHITECTURE)
    code.add(_JUMP_EQUAL, architecture, 1, 0)
    code.answer(_KILL_PROCESS)
    code.add(_LOAD, _NUMBER)
    special = _special_cases(code, numbers, program_path, pid, network=network)
    for name, body in special.items():
        code.for_call(numbers[name], body)
    for name, number in numbers.items():
        if name in special:
            continue
        code.add(_JUMP_EQUAL, number, 0, 1)
        code.answer(_ERRNO if name in _PRETENDED else _ALLOW)
    code.refuse(errno.ENOSYS)
    return code.bytes()


def _special_cases(
    code: _Filter, numbers: dict[str, int], program_path: int, pid: int, *, network: bool
) -> dict[str, Callable[[], None]]:
    """System calls that depend on their arguments."""

    def clone() -> None:  # only threads of this process
        code.load_argument(0)
        code.add(_JUMP_ANY_BIT, _CLONE_NEW_NAMESPACES, 0, 1)
        code.refuse(errno.EPERM)
        for flag in _CLONE_FLAGS:
            code.require(_JUMP_ANY_BIT, flag, errno.EPERM)
        code.answer(_ALLOW)

    def execve() -> None:
        code.load_argument(0)
        code.require(_JUMP_EQUAL, program_path, errno.EPERM)
        code.load_argument(0, high_word=True)
        code.require(_JUMP_EQUAL, program_path >> 32, errno.EPERM)
        code.answer(_ALLOW)

    def prlimit64() -> None:  # read its own limits
        code.load_argument(0)
        code.require(_JUMP_EQUAL, 0, errno.EPERM)
        for high_word in (False, True):
            code.load_argument(2, high_word=high_word)
            code.require(_JUMP_EQUAL, 0, errno.EPERM)
        code.answer(_ALLOW)

    def opening(flags_index: int) -> Callable[[], None]:
        # O_TRUNC empties a file that is opened only for reading, which Landlock before version 3 does not see.
        def body() -> None:
            code.load_argument(flags_index)
            code.add(_JUMP_ANY_BIT, _O_TRUNC, 0, 2)
            code.add(_JUMP_ANY_BIT, _O_ACCESS_MODE, 1, 0)
            code.refuse(errno.EACCES)
            code.answer(_ALLOW)

        return body

    sockets = {"socket": lambda: code.allow_when_argument(0, _ADDRESS_FAMILIES, errno.EAFNOSUPPORT)}
    networked = sockets if "socket" in numbers else {}
    opens = {name: opening(index) for name, index in (("open", 1), ("openat", 2)) if name in numbers}
    return (
        opens
        | networked
        | {
            "clone": clone,
            "clone3": lambda: code.refuse(
                errno.ENOSYS
            ),  # its flags cannot be read by a filter; glibc falls back to clone
            "execve": execve,
            "mmap": lambda: _map(code),
            "kill": lambda: _signal(code, pid, 1),
            "tgkill": lambda: _signal(code, pid, 2),
            "prlimit64": prlimit64,
            # Without a mode: it only allocates within the file, whose size is limited.
            "fallocate": lambda: code.allow_when_argument(1, (0,), errno.EOPNOTSUPP),
            "ioctl": lambda: code.allow_when_argument(1, _TERMINAL_QUERIES, errno.ENOTTY),
            "prctl": lambda: code.allow_when_argument(0, _PRCTL_OPTIONS, errno.EINVAL),
            "fcntl": lambda: _control(code, _FCNTL_COMMANDS + (_LOCKS if network else ())),
            "flock": lambda: code.answer(_ALLOW) if network else code.refuse(errno.ENOLCK),
        }
    )


def _map(code: _Filter) -> None:
    """No shared memory without a file: no limit counts it, and once it is unmapped the process is not seen to hold
    it."""
    code.load_argument(3)
    code.add(_JUMP_ANY_BIT, _MAP_ANONYMOUS, 0, 2)
    code.add(_JUMP_ANY_BIT, _MAP_SHARED, 0, 1)
    code.refuse(errno.EPERM)
    code.answer(_ALLOW)


def _signal(code: _Filter, pid: int, index: int) -> None:
    """A signal to this process, whose number is this argument; none that stops it or lets it go on."""
    code.load_argument(0)
    code.require(_JUMP_EQUAL, pid, errno.EPERM)
    code.load_argument(index)
    for number in _STOP_SIGNALS:
        code.add(_JUMP_EQUAL, number, 0, 1)
        code.refuse(errno.EPERM)
    code.answer(_ALLOW)


def _control(code: _Filter, commands: tuple[int, ...]) -> None:
    """These commands, and to set flags, but not the one by which each byte in a pipe costs its reader a call."""
    code.load_argument(1)
    code.add(_JUMP_EQUAL, _F_SETFL, 0, 4)
    code.load_argument(2)
    code.add(_JUMP_ANY_BIT, _O_DIRECT, 0, 1)
    code.refuse(errno.EINVAL)
    code.answer(_ALLOW)
    code.allow_when_argument(1, commands, errno.EINVAL)
