"""Looking at processes that may end at any moment."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

FORK_SERVER = "kernelmcp-fork-server"  # what it calls itself


def child_pids(pid: int) -> Iterator[int]:
    """Its children. Linux lists them; elsewhere psutil looks at every process there is, which takes milliseconds."""
    if sys.platform != "linux":
        with suppress(psutil.NoSuchProcess):
            yield from (child.pid for child in psutil.Process(pid).children())
        return
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def descendant_pids(pid: int) -> Iterator[int]:
    for child in child_pids(pid):
        yield child
        yield from descendant_pids(child)


def children(pid: int) -> list[psutil.Process]:
    """As psutil's `children`, but none when the process has ended."""
    return _processes(child_pids(pid))


def descendants(pid: int) -> list[psutil.Process]:
    """With their own children, and so on."""
    return _processes(descendant_pids(pid))


def _processes(pids: Iterator[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def command_line(process: psutil.Process) -> list[str]:
    """Its arguments, none when it has ended, also when nobody has waited for it yet."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def children_of(server: psutil.Process) -> list[psutil.Process]:
    """Its children, without the one that forks kernel processes."""
    return [child for child in children(server.pid) if command_line(child)[:1] != [FORK_SERVER]]


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
