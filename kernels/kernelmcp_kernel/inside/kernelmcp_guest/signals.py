"""Signals sent by code: os.kill, os.killpg and signal.raise_signal.

A program's own handlers run here. A signal that would end the process elsewhere ends the kernel process, as in any
Jupyter kernel, where `os.kill(os.getpid(), 9)` is a common way to restart: the host is asked, because in WebAssembly
alone the guest would crash.
"""

# Parts of the standard library are replaced at places that their type stubs do not declare.
# pyright: reportAttributeAccessIssue=false

import errno
import operator
import os
import signal
from typing import NoReturn

from kernelmcp_guest import interrupts
from kernelmcp_guest.blocking import host_call
from kernelmcp_guest.programs.interpreter_state import running_programs

_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)
_IGNORED = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
_STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# Reserved for us (host/interrupts.mjs); programs see no handler for them.
_OWN_HANDLERS = (interrupts.on_stuck_signal, interrupts.on_background_signal)

_kill = os.kill


def _send(number: int) -> None:
    """Send a signal to this process, the only one."""
    __tracebackhide__ = True
    if number == 0:
        return
    if number not in signal.valid_signals():  # WebAssembly's libc would read beyond its table, and crash
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    handler = signal.getsignal(number)
    if number not in _UNCATCHABLE and handler not in (signal.SIG_DFL, None, *_OWN_HANDLERS):
        _kill(os.getpid(), number)
    elif number not in _IGNORED:
        _end_kernel(number)


def _end_kernel(number: int) -> NoReturn:
    __tracebackhide__ = True
    if running_programs:
        raise SystemExit(128 + number)
    try:
        name = signal.Signals(number).name
    except ValueError:
        text = f"signal {number} would end the kernel process, and has no name: use SIGTERM"
        raise PermissionError(text) from None
    if number in _STOPPING:
        raise PermissionError(f"{name} would stop the kernel process for good: nobody could continue it")
    host_call("kill", signal=name)
    raise AssertionError("the host ends us, or refuses")


def kill(pid: int, number: int, /) -> None:
    """os.kill, for the only process."""
    __tracebackhide__ = True
    pid, number = operator.index(pid), operator.index(number)
    if pid not in (os.getpid(), 0):
        raise ProcessLookupError(f"{pid} is not a process of the sandbox")
    _send(number)


def kill_group(group: int, number: int, /) -> None:
    """os.killpg, for the only group."""
    __tracebackhide__ = True
    group, number = operator.index(group), operator.index(number)
    if group not in (os.getpgrp(), 0):
        raise ProcessLookupError(f"{group} is not a process group of the sandbox")
    _send(number)


def raise_signal(number: int, /) -> None:
    """signal.raise_signal."""
    __tracebackhide__ = True
    _send(operator.index(number))


def install() -> None:
    """Replace the calls that send signals."""
    os.kill, os.killpg, signal.raise_signal = kill, kill_group, raise_signal
