"""The host call `kill`: code sends its own process a fatal signal, and the kernel process ends like any Jupyter kernel.

It exits by itself, with the status that a shell reports for the signal. A real signal could write a core dump of this
process, with its secrets, and could not be distinguished from one that the system or a person has sent.
"""

from __future__ import annotations

import signal
from typing import Any

from kernelmcp_kernel.guests.host_calls import HostCallError

# A shell adds this to the number of the signal that ended a process.
_SIGNALLED = 128

# Signal names, because numbers differ between platforms. Their default action is to end the process.
_DEADLY = frozenset(
    {
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1"),
        *("SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGXCPU", "SIGXFSZ", "SIGVTALRM"),
        *("SIGPROF", "SIGIO", "SIGPOLL", "SIGPWR", "SIGSYS"),
    }
)


def exit_status(name: Any) -> int:
    """The exit status of a process that ends itself with this signal. Raises HostCallError if the signal is not fatal,
    or unknown to this platform."""
    number = signal.Signals.__members__.get(name) if isinstance(name, str) and name in _DEADLY else None
    if number is None:
        raise HostCallError("the host knows no deadly signal of that name")
    return _SIGNALLED + number
