"""Explains why a guest process ended, from its exit status, its last lines on stderr and its control group."""

from __future__ import annotations

import re
import signal

from kernelmcp_kernel.sandbox.cgroup import Group

# The guest's exit status if no memory is left for another cell (EXIT_OUT_OF_MEMORY in the guest's operations.py).
_EXIT_OUT_OF_MEMORY = 71

_LAST_LINE_CHARS = 300
# V8 writes these lines below its reason: addresses, and the path of Node on this machine.
_STACK = re.compile(r"-----|\s*\d+: 0x")
# What Node ends with; below it are the stack and Node's version.
_ERROR = re.compile(r"\w*Error( \[\w+\])?: ")


class GuestDied(Exception):
    """The guest process has ended; its variables are lost. The text gives the reason, as far as it is known."""

    had_variables = True
    """False if it had none that could be lost."""


def explain(exit_code: int | None, last_words: str, group: Group | None) -> str:
    """The reason, as text to follow "The sandbox process ended: ". `exit_code`: negative for a signal, None if it still
    runs without its pipes."""
    if exit_code is None:
        return "it closed its output pipe while it was still running"
    how = _how(exit_code, last_words, group)
    lines = [line for line in last_words.splitlines() if line.strip() and not _STACK.match(line)]
    errors = [line for line in lines if _ERROR.match(line)]
    last = (errors or lines)[-1][:_LAST_LINE_CHARS] if lines and exit_code else ""
    return f"{how}: {last}" if last else how


def _how(exit_code: int, last_words: str, group: Group | None) -> str:
    if exit_code == _EXIT_OUT_OF_MEMORY:
        return "it ran out of memory"
    if exit_code >= 0:
        return f"it exited with status {exit_code}"
    if group is not None and group.ran_out_of_memory():
        return "it was killed for memory: its control group was full"
    if exit_code == -signal.SIGABRT and "memory" in last_words.lower():
        return "it was killed for memory: it had used all it may have"
    if exit_code == -signal.SIGSEGV:
        return "it crashed (SIGSEGV), most likely in a recursion without end"
    return f"it was killed by {_signal_name(-exit_code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"
