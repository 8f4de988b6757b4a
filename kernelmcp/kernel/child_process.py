"""Detects the end of a child process through the operating system. Must not know kernels."""

import os


def pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended. None if the platform does not support it."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None


def has_ended(pid: int) -> bool:
    """True if a child has ended that nobody has waited for yet. False if it is not a child of this process."""
    try:
        return pid > 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
