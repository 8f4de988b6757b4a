"""The host call `kill`: code sends its own process a deadly signal, and the kernel process ends, as any Jupyter kernel.

It ends by itself, with the exit status that a shell has for the signal. A real one could write a core dump of this
process, with the secrets in it, and could not be told from one that the system or a person has sent.
"""

from __future__ import annotations

import signal
from typing import Any

from kernelmcp_kernel.guests.host_calls import HostCallError

# What a shell adds to the number of the signal that a process has ended with.
_SIGNALLED = 128

# By name, because numbers differ between platforms. Their default action is to end the process.
_DEADLY = frozenset(
    {
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1"),
        *("SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGXCPU", "SIGXFSZ", "SIGVTALRM"),
        *("SIGPROF", "SIGIO", "SIGPOLL", "SIGPWR", "SIGSYS"),
    }
)


def exit_status(name: Any) -> int:
    """The exit status of a process that ends itself by this signal. Raises HostCallError for one that is not deadly, or
    that this platform does not have."""
    number = signal.Signals.__members__.get(name) if isinstance(name, str) and name in _DEADLY else None
    if number is None:
        raise HostCallError("the host knows no deadly signal of that name")
    return _SIGNALLED + number
