"""How a kernel process has ended, in words."""

import signal

# What a shell adds to the number of the signal that a process has ended with.
SIGNALLED = 128
# Of our own kernel process, when it has become larger than it may be.
OUT_OF_MEMORY = 71


def how_it_ended(status: int | None, *, own: bool) -> str:
    """A clause for the caller. Our own kernel exits with 128 and the signal's number when its code has sent it a deadly
    signal, and at no other time; a real signal came from elsewhere, as when the system has no memory."""
    if own and status == OUT_OF_MEMORY:
        return "the kernel process was ended because it had used too much memory"
    if own and status is not None and (name := _signal_name(status - SIGNALLED)):
        return f"the code ended its own kernel process with {name}"
    if status is not None and (name := _signal_name(-status)):
        return f"the kernel process ended unexpectedly: {name}"
    return "the kernel process ended unexpectedly" + (f", with status {status}" if status else "")


def _signal_name(number: int) -> str | None:
    return next((each.name for each in signal.Signals if each == number), None)
