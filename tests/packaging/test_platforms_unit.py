"""Code for Linux alone is where it asks for Linux: no Mac runs these tests."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmcp import cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "kernelmcp", ROOT / "kernels" / "kernelmcp_kernel")
# They run in the guest's Python, or are not ours.
ELSEWHERE = {"inside", "_runtime", "node_modules"}

# What Python on macOS does not have, by module. os.waitid and its flags are there from 3.13 on, which cli.py checks.
LINUX_ONLY = {
    "errno": {"EBADFD", "EHWPOISON", "EREMOTEIO", "ERFKILL"},
    "fcntl": {"F_ADD_SEALS", "F_GETPIPE_SZ", "F_GET_SEALS", "F_NOTIFY", "F_SETPIPE_SZ"},
    "mmap": {"MAP_POPULATE", "MAP_STACK"},
    "os": {
        *("O_DIRECT", "O_NOATIME", "O_PATH", "O_TMPFILE", "SPLICE_F_NONBLOCK", "copy_file_range", "eventfd"),
        *("fdatasync", "getrandom", "getresgid", "getresuid", "getxattr", "listxattr", "memfd_create", "pidfd_open"),
        *("pipe2", "posix_fadvise", "posix_fallocate", "removexattr", "sched_getaffinity", "sched_setaffinity"),
        *("setns", "setresgid", "setresuid", "setxattr", "splice", "timerfd_create", "unshare"),
    },
    "resource": {"RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RUSAGE_THREAD", "prlimit"},
    "select": {"EPOLLIN", "EPOLLOUT", "epoll"},
    "signal": {"SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "pidfd_send_signal", "sigtimedwait", "sigwaitinfo"},
    "socket": {
        *("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("SOCK_SEQPACKET", "SO_DOMAIN", "SO_PEERCRED", "TCP_DEFER_ACCEPT", "TCP_QUICKACK", "TCP_USER_TIMEOUT"),
    },
    "time": {"CLOCK_BOOTTIME", "CLOCK_MONOTONIC_COARSE", "CLOCK_TAI"},
}
# Calls of libc by ctypes that only Linux has.
LINUX_CALLS = {"capset", "prctl", "syscall"}
LINUX_FILES = ("/proc/", "/sys/")
# Functions that use such a thing and do not ask for Linux themselves, with the reason why that is right.
REASONS = {
    "kernelmcp/commands/doctor_attempts.py": {
        "_cgroup",
        "_process_status",
        "_foreign_variables",
    },  # without /proc: unknown
    "kernelmcp/commands/install/clients.py": {"<module>"},  # where WSL's mark would be
    "kernelmcp/kernel/memory_use.py": {"<module>"},  # where control groups would be: without them, unlimited
    "kernelmcp/files/safe_open.py": {"_openat2"},  # _has_openat2 asks
    "kernelmcp/kernel/forks.py": {"__init__"},  # of a fork server: `supported` asks
    "kernels/kernelmcp_kernel/fork_server.py": {"_fork_a_sibling", "_set_command_line"},  # started by that one
    "kernels/kernelmcp_kernel/guests/state_pipes.py": {"_widen"},  # passes over an absent name
    "kernels/kernelmcp_kernel/guests/storage.py": {"_deleted_mappings"},  # _count_deleted asks
    "kernels/kernelmcp_kernel/sandbox/cgroup.py": {"<module>"},
    "kernels/kernelmcp_kernel/sandbox/enter.py": {"_drop_privileges", "_go_first", "_prctl"},  # `enter` asks
    "kernels/kernelmcp_kernel/sandbox/landlock.py": {"restrict", "_allow"},  # `available` asks
    "kernels/kernelmcp_kernel/sandbox/seccomp.py": {"restrict"},  # `available` asks
}


def files() -> Iterator[Path]:
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            if not ELSEWHERE & set(file.relative_to(package).parts):
                yield file


def is_linux_only(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in LINUX_ONLY.get(module, ()):
            return True
        case ast.Call(func=ast.Attribute(attr=name)) if name in LINUX_CALLS:
            return True
        case ast.ImportFrom(module=str(module), names=names):
            return any(each.name in LINUX_ONLY.get(module, ()) for each in names)
        case ast.Constant(value=str(text)):
            return text.startswith(LINUX_FILES)
    return False


def asks_for_linux(function: ast.AST) -> bool:
    """It compares sys.platform, or looks whether the system has something."""
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=ast.Attribute(value=ast.Name(id="sys"), attr="platform")):
                return True
            case ast.Call(func=ast.Name(id="hasattr" | "getattr"), args=[ast.Name(id=module), *_]) if (
                module in LINUX_ONLY
            ):
                return True
    return False


def uses(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The innermost function of each use, and whether it asks for Linux."""
    pending: list[tuple[ast.AST, str, bool]] = [(tree, "<module>", False)]
    while pending:
        node, name, asked = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, asked = node.name, asks_for_linux(node)
        if is_linux_only(node):
            yield name, asked
        pending += ((child, name, asked) for child in ast.iter_child_nodes(node))


def test_what_only_linux_has_is_used_where_linux_is_asked_for() -> None:
    found: dict[str, set[str]] = {}
    asking = 0
    for file in files():
        for name, asked in uses(ast.parse(file.read_text("utf-8"))):
            asking += asked
            if not asked:
                found.setdefault(file.relative_to(ROOT).as_posix(), set()).add(name)
    assert found == REASONS
    assert asking > 10


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.pidfd_open(1)",
        "import os\nFLAGS = os.O_PATH",
        "from os import memfd_create",
        "from signal import sigtimedwait",
        "def f():\n    with open('/proc/self/stat'): pass",
        "def f():\n    libc.prctl(1, 2)",
        "def f():\n    if sys.platform == 'linux':\n        def g():\n            os.splice(1, 2, 3)",
    ],
)
def test_the_check_sees_what_it_is_for(code: str) -> None:
    assert [asked for _, asked in uses(ast.parse(code))] == [False]


def test_an_older_python_on_macos_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """os.waitid came to macOS with Python 3.13."""
    monkeypatch.delattr(os, "waitid")
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == cli.ON_OLD_MACOS
