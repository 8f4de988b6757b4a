"""The guests of one kernel together hold what its flavor allows, and not a multiple of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from kernelmcp_kernel.guests.by_language import UNCOUNTED_MB

from .conftest import running_kernel
from .driver import Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read as Linux tells it")

MEMORY_MB = 512
PYTHON = "held = bytearray(420 << 20)\nfor at in range(0, len(held), 4096): held[at] = 1\nlen(held) >> 20"
# It goes on until it is ended.
JAVASCRIPT = """%%javascript
var held = []
for (let n = 0; n < 48; n++) held.push(new Uint8Array(10 << 20).fill(1))
await new Promise(() => {})
"""


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with running_kernel(KERNELMCP_MEMORY_MB=str(MEMORY_MB)) as running:
        yield running


def held_mb(kernel: Kernel) -> float:
    """Resident memory of all guests together."""
    return sum(guest.memory_info().rss for guest in kernel.guests()) / 2**20


def test_guests_of_several_languages_share_the_memory_of_the_flavor(kernel: Kernel) -> None:
    for cell in ("1", "%%javascript\n1", "%%bash\necho"):
        assert kernel.run(cell).status == "ok"
    before = held_mb(kernel)
    assert kernel.run(PYTHON).result == "420"
    ran = kernel.run(JAVASCRIPT)
    assert "the languages of this session together" in ran.error
    assert ran.state_lost
    assert held_mb(kernel) - before < MEMORY_MB + UNCOUNTED_MB
    assert kernel.run("len(held) >> 20").result == "420", "the one that grew is ended, and no other"


def test_one_guest_may_use_all_of_it(kernel: Kernel) -> None:
    assert kernel.run("%%javascript\n1 + 1").status == "ok"
    assert kernel.run("%%bash\necho 1").text() == "1\n"
    assert kernel.run(PYTHON).result == "420"
    assert (
        kernel.run("try:\n    more = bytearray(300 << 20)\nexcept MemoryError:\n    print('full')").text() == "full\n"
    )
    assert kernel.run("%%javascript\n1 + 1").status == "ok"
