"""The rules of CONTRIBUTING.md about tiers, and the account that holds tests to them."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from .accounting import LIMITS, MOST_OF_ONE_TEST_SECONDS, YARDSTICK_SECONDS, Account, ProcessCount

CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")


def report(when: str = "teardown", cpu: float = 1.0, processes: int = 0) -> pytest.TestReport:
    properties = [("cpu", cpu), ("processes", processes)] if when == "teardown" else []
    found = SimpleNamespace(when=when, duration=0.5, user_properties=properties, nodeid="a/test_b.py::test_c")
    return cast("pytest.TestReport", cast("Any", found))


def test_where_no_process_may_start_one_that_does_fails() -> None:
    count = ProcessCount()
    count.watch()
    count.forbidden = True
    try:
        with pytest.raises(AssertionError, match="recorded as fast starts a process"):
            subprocess.run([sys.executable, "--version"], check=False)
    finally:
        count.forbidden = False
    assert count.count == 1


def test_costs_are_those_of_all_phases_of_a_test() -> None:
    account = Account()
    for when in ("setup", "call", "teardown"):
        account.add(report(when, cpu=2.0), "a/test_b.py", "real")
    account.add(report(cpu=3.0, processes=2), "a/test_b.py", "slow")
    assert account.durations({"old.py": {"fast": {"wall": 1.0, "cpu": 1.0}}}) == {
        "a/test_b.py": {"real": {"wall": 1.5, "cpu": 2.0}, "slow": {"wall": 0.5, "cpu": 3.0}},
        "old.py": {"fast": {"wall": 1.0, "cpu": 1.0}},
    }


def test_a_file_that_starts_no_process_is_recorded_as_fast_and_another_one_is_not() -> None:
    account = Account()
    account.add(report(processes=0), "starts_none.py", "real")
    account.add(report(processes=1), "was_fast.py", "fast")
    recorded = account.durations({"was_fast.py": {"fast": {"wall": 1.0, "cpu": 1.0}}})
    assert {file: list(tiers) for file, tiers in recorded.items()} == {
        "starts_none.py": ["fast"],
        "was_fast.py": ["real"],
    }


@pytest.mark.parametrize("slower", [1, 3])
def test_a_test_or_a_tier_over_its_limit_is_said_however_slow_the_machine_is(slower: int) -> None:
    account = Account()
    account.yardsticks += [YARDSTICK_SECONDS * slower]
    account.add(report(cpu=MOST_OF_ONE_TEST_SECONDS * slower * 0.9), "file.py", "real")
    account.add(report(cpu=MOST_OF_ONE_TEST_SECONDS * slower * 9), "file.py", "slow")
    assert list(account.excesses()) == []
    account.add(report(cpu=MOST_OF_ONE_TEST_SECONDS * slower * 1.1), "file.py", "real")
    assert list(account.excesses()) == []
    assert "needs the mark slow" in list(account.table())[-1]
    account.add(report(cpu=MOST_OF_ONE_TEST_SECONDS * slower * 2.1), "file.py", "real")
    assert len(list(account.excesses())) == 1
    account.add(report(cpu=LIMITS["real"] * slower), "file.py", "slow")
    account.add(report(cpu=LIMITS["real"] * slower), "file.py", "real")
    assert len(list(account.excesses())) == 4


def test_the_limits_are_in_contributing() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) s \|", CONTRIBUTING, re.MULTILINE)
    assert {tier: float(limit) for tier, limit in rows} == LIMITS
