"""What tests cost: processor time of everything that they start, and the limits of each tier.

Processor time, not wall-clock, because it hardly depends on what else the machine does. It does a little (two threads
of a core share it) and machines differ, so limits are in units of a yardstick that each worker measures beside its
tests.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .processes import descendant_pids

# Seconds of processor time for the tests of a tier, where the yardstick takes YARDSTICK_SECONDS. Those of October 2026
# and a quarter more: raise one together with the reason. In November states, checkpoints and forks came, whose tests
# start several kernels each, and machines that slow Node down more than the yardstick: real 1,450 to 1,900, slow 900 to
# 1,050. Since guests load machine code, and all kernel processes are forks: 1,700 and 950.
LIMITS = {"fast": 60.0, "real": 1700.0, "slow": 950.0}
# A test that costs more than this needs the mark slow. It fails the run only above twice as much: the yardstick is one
# thread of Python, and a test of a browser took 0.7 of its limit on a quiet machine and 1.1 beside three others.
MOST_OF_ONE_TEST_SECONDS = 10.0
YARDSTICK_SECONDS = 0.18
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"})


class ProcessCount:
    """The processes that this one has started. Where none may be, starting one is an error of the test."""

    def __init__(self) -> None:
        self.count = 0
        self.forbidden = False

    def watch(self) -> None:
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _STARTS:
            return
        self.count += 1
        if self.forbidden:
            raise AssertionError(
                f"a test of a file that is recorded as fast starts a process ({event}). Put it into another file, or "
                "record the file anew: CONTRIBUTING.md, Tiers."
            )


def adopt_orphans() -> None:
    """Become the parent of what a process below this one leaves behind: else nobody could say what it has cost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """Processor time of this process and of all that it has started, also of what still runs."""
    times = os.times()
    ended = times.user + times.system + times.children_user + times.children_system
    return ended + sum(_cpu_seconds_of(pid) for pid in descendant_pids(os.getpid()))


def _cpu_seconds_of(pid: int) -> float:
    """Its own, and that of its children for which it has waited."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime of proc(5)
    return 0.0


def reap_orphans() -> None:
    """Wait for what has ended and has no other parent. Between two files nobody else waits for a process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def yardstick_seconds() -> float:
    """Processor time of a fixed piece of work, now."""
    begun = time.process_time()
    found: dict[int, str] = {}
    for number in range(2_500_000):
        found[number % 1000] = str(number)
    return time.process_time() - begun


class Account:
    """The costs of a run, in the process that reports it."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
        self.processes: dict[str, int] = defaultdict(int)
        self.counts: dict[str, int] = defaultdict(int)
        self.dear: list[tuple[float, str]] = []
        self.yardsticks: list[float] = []
        self._wall: dict[str, float] = defaultdict(float)

    def add(self, report: pytest.TestReport, file: str, tier: str) -> None:
        """One phase of a test; the last one has what all of them cost."""
        costs = self.files[file].setdefault(tier, {"wall": 0.0, "cpu": 0.0})
        costs["wall"] += report.duration
        found: dict[str, Any] = dict(report.user_properties)
        if report.when != "teardown" or "cpu" not in found:
            return
        costs["cpu"] += found["cpu"]
        self.processes[file] += found["processes"]
        self.counts[tier] += 1
        if tier != "slow":
            self.dear.append((found["cpu"], report.nodeid))

    @property
    def scale(self) -> float:
        """How much longer this machine takes, now, than the one that the limits were measured on."""
        measured = sorted(self.yardsticks) or [YARDSTICK_SECONDS]
        return measured[len(measured) // 2] / YARDSTICK_SECONDS

    def cpu(self, tier: str) -> float:
        return sum(costs[tier]["cpu"] for costs in self.files.values() if tier in costs)

    def table(self) -> Iterator[str]:
        for tier, limit in LIMITS.items():
            if self.counts[tier]:
                bound = limit * self.scale
                yield f"{tier}: {self.counts[tier]} tests, {self.cpu(tier):.0f} s of CPU (limit {bound:.0f})"
        yield from self._dear(above=MOST_OF_ONE_TEST_SECONDS)

    def excesses(self) -> Iterator[str]:
        for tier, limit in LIMITS.items():
            if self.cpu(tier) > limit * self.scale:
                yield f"the tier {tier} takes {self.cpu(tier):.0f} s of CPU; its limit is {limit * self.scale:.0f}"
        yield from self._dear(above=2 * MOST_OF_ONE_TEST_SECONDS)

    def _dear(self, above: float) -> Iterator[str]:
        limit = MOST_OF_ONE_TEST_SECONDS * self.scale
        for cost, test in sorted(self.dear, reverse=True):
            if cost > above * self.scale:
                yield f"{test} takes {cost:.1f} s of CPU; above {limit:.1f} a test needs the mark slow"

    def durations(self, old: dict[str, Any]) -> dict[str, Any]:
        """The record: the old one, with the files that have run now. A file that starts no process is fast."""
        new = dict(old)
        for file, tiers in self.files.items():
            rest = "real" if self.processes[file] else "fast"
            named = {"slow" if tier == "slow" else rest: costs for tier, costs in tiers.items()}
            new[file] = {tier: {key: round(value, 1) for key, value in costs.items()} for tier, costs in named.items()}
        return dict(sorted(new.items()))
