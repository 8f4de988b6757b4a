"""The end of a child process, as the operating system tells it. Must not know kernels."""

import os


def pidfd(pid: int) -> int | None:
    """A descriptor that can be read once the process has ended. None where the platform has no such thing."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None


def has_ended(pid: int) -> bool:
    """Whether a child has ended that nobody has waited for yet. False for what is no child of this process."""
    try:
        return pid > 0 and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
