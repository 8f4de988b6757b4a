"""How long a guest gets that does not notice an interrupt, by the processor time that it has had meanwhile."""

import pytest

from kernelmcp_kernel.guests.guest import is_starved


@pytest.mark.parametrize(
    ("used", "waited", "starved"),
    [
        (3.0, 3.0, False),  # a long loop in C, on a quiet machine
        (1.0, 3.0, False),
        (0.3, 3.0, True),  # a step of numpy's, on a machine that has ten times as much to do
        (0.9, 4.0, True),
        (0.9, 5.0, False),
        (0.0, 3.0, False),  # it waits for what never comes
    ],
)
def test_only_one_that_computes_and_had_too_little_time_gets_more(used: float, waited: float, starved: bool) -> None:
    assert is_starved(used, waited) is starved
