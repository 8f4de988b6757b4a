"""Servers that share a home, without processes: what they see of each other, and who has a session."""

from pathlib import Path

import pytest

from .fleet_model import World

SCHEDULES, STEPS = 150, 600


@pytest.mark.parametrize("first", range(0, SCHEDULES, 30))
def test_no_confirmed_cell_is_lost_whatever_the_order(first: int, tmp_path: Path) -> None:
    takeovers = 0
    for seed in range(first, first + 30):
        world = World(tmp_path / str(seed), seed)
        world.run(STEPS)
        takeovers += world.takeovers
    assert takeovers > 0
