"""For how long kernels are not forked after failures."""

from __future__ import annotations

import time

import pytest

from kernelmcp.kernel import forks
from kernelmcp.kernel.forks import ENOUGH_FORKS, RETRY_SECONDS, Forks

NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Forks:
    monkeypatch.setattr(forks, "can_fork", lambda: True)
    return Forks()


def fail(found: Forks, times: int = 1) -> float:
    """The pause that follows, by its first value."""
    vars(found)["_wanted_from"] = 0.0  # the one before has passed
    for _ in range(times):
        found.give_up(OSError("no memory"))
    return round((vars(found)["_wanted_from"] - time.monotonic()) / RETRY_SECONDS, 1)


def test_kernels_that_fail_together_are_one_failure(found: Forks) -> None:
    assert [fail(found, times=9) for _ in range(3)] == [1, 2, 4]


def test_after_forks_that_worked_a_failure_is_the_first_again(found: Forks) -> None:
    assert [fail(found), fail(found)] == [1, 2]
    for _ in range(ENOUGH_FORKS):
        found.kernel_started({}, NOTHING)  # not forked
        found.kernel_ended()
    assert fail(found) == 4
    for _ in range(ENOUGH_FORKS):
        found.kernel_started({}, NOTHING, is_forked=True)
        found.kernel_ended()
    assert [fail(found), fail(found)] == [1, 2]
