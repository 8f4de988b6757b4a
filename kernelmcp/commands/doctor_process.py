"""The operating system's data on a guest's process, and its support for confinement."""

import ctypes
import sys
from pathlib import Path

import psutil

LANDLOCK_CREATE_RULESET = 444
LANDLOCK_CREATE_RULESET_VERSION = 1


def guest_pid(kernel_pid: int) -> int:
    """The process that runs the code: the kernel's Node, or the kernel itself if it has none."""
    try:
        children = psutil.Process(kernel_pid).children(recursive=True)
        return next((child.pid for child in children if Path(child.exe()).stem == "node"), kernel_pid)
    except psutil.Error:
        return kernel_pid


def process_status(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty if there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def foreign_variables(pid: int) -> int | None:
    """Number of variables at the start of the process, besides the malloc variable that each guest has; None if that
    cannot be determined."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return sum(bool(each) and not each.startswith(b"MALLOC_TRIM_THRESHOLD_=") for each in variables)


def landlock_abi() -> int:
    """The Landlock version that the machine offers; 0 if none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)))
