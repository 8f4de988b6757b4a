"""A control group for each guest, if the system has delegated a part of its tree to us (cgroup v2).

We may only use the directory above our own group, if systemd has marked it as delegated and it contains only groups
(`Delegate=yes` with `DelegateSubgroup=`). Otherwise there is none, and only the rlimits and the watchdog apply.
https://systemd.io/CGROUP_DELEGATION
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_CONTROLLERS = frozenset({"memory", "pids"})
_DELEGATED = ("user.delegate", "trusted.delegate")  # extended attributes that systemd sets

# Threads of a guest: Node has a dozen.
MAX_TASKS = 64

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Group:
    """One guest's control group."""

    path: Path

    def ran_out_of_memory(self) -> bool:
        """Return whether the system has killed a process in it because it ran out of memory."""
        try:
            events = (self.path / "memory.events").read_text("ascii").split()
        except OSError:
            return False
        return dict(zip(events[::2], events[1::2], strict=False)).get("oom_kill", "0") != "0"

    def remove(self) -> None:
        """Delete the group, once its process has ended."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def delegated(mount: Path = _MOUNT, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The directory in which groups for guests may be created, or None."""
    if sys.platform != "linux":
        return None
    try:
        lines = membership.read_text("utf-8").splitlines()
        own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        above = (mount / own).parent
        if not own or not set((above / "cgroup.controllers").read_text("ascii").split()) >= _CONTROLLERS:
            return None
        marks = set(os.listxattr(above)) & set(_DELEGATED)
        if not any(os.getxattr(above, mark) == b"1" for mark in marks):
            return None
        _enable(above)
    except (OSError, StopIteration):
        return None
    return above


def _enable(above: Path) -> None:
    """Allow groups in it to limit memory and tasks. Raises OSError if it also contains processes."""
    control = above / "cgroup.subtree_control"
    if not set(control.read_text("ascii").split()) >= _CONTROLLERS:
        control.write_text(" ".join(f"+{name}" for name in sorted(_CONTROLLERS)))


def confine(above: Path, pid: int, memory_mb: int) -> Group | None:
    """Move a process that has just started into a group with limits; None if the system refuses."""
    group = Group(above / f"kernelmcp-guest-{pid}")
    for old in above.glob("kernelmcp-guest-*"):
        # From a killed kernel. An empty one may be another kernel's, whose guest is just coming.
        if old == group.path or not Path("/proc", old.name.rpartition("-")[2]).exists():
            Group(old).remove()
    try:
        group.path.mkdir()
        (group.path / "memory.max").write_text(str(memory_mb * _MIB))
        (group.path / "pids.max").write_text(str(MAX_TASKS))
        (group.path / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.remove()
        return None
    return group
