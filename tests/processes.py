"""Looking at processes that may end at any moment."""

from pathlib import Path

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Its arguments, none when it has ended, also when nobody has waited for it yet."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def children_of(server: psutil.Process) -> list[psutil.Process]:
    """Its children, without the one that a server of the tests has for forking kernel processes (fork_server.py)."""
    return [child for child in server.children() if command_line(child)[:1] != ["forks-kernels"]]


def is_alive(process: psutil.Process) -> bool:
    """Whether it has not ended. One that nobody has waited for yet has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def forget_peak(pid: int) -> None:
    """Let a process's peak begin at what it has now (Linux)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    """The most resident memory that a process has had, MiB (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) / 1024
