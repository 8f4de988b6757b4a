"""Many more schedules of the model of servers that share a session."""

from pathlib import Path

import pytest

from .fleet_model import World

pytestmark = pytest.mark.slow
FIRST, SCHEDULES, STEPS = 1_000, 900, 1_200


def test_no_confirmed_cell_is_lost_in_hundreds_of_schedules(tmp_path: Path) -> None:
    takeovers = 0
    for seed in range(FIRST, FIRST + SCHEDULES):
        world = World(tmp_path / str(seed), seed)
        world.run(STEPS)
        takeovers += world.takeovers
    assert takeovers > SCHEDULES / 20
