"""Describes how a kernel process has ended."""

import signal

# A shell adds this to the number of the signal that ended a process.
SIGNALLED = 128
# Exit status of our own kernel process when it exceeds its memory limit.
OUT_OF_MEMORY = 71


def how_it_ended(status: int | None, *, own: bool) -> str:
    """Describe the end in a clause for the caller. Our own kernel exits with 128 plus the signal's number only if its
    code has sent it a deadly signal; a real signal came from elsewhere, such as when the system has no memory."""
    if own and status == OUT_OF_MEMORY:
        return "the kernel process was ended because it had used too much memory"
    if own and status is not None and (name := _signal_name(status - SIGNALLED)):
        return f"the code ended its own kernel process with {name}"
    if status is not None and (name := _signal_name(-status)):
        return f"the kernel process ended unexpectedly: {name}"
    return "the kernel process ended unexpectedly" + (f", with status {status}" if status else "")


def _signal_name(number: int) -> str | None:
    return next((each.name for each in signal.Signals if each == number), None)
