"""Every attack fails with all layers on, and gets through without them.

Each kind of attacker runs all of its attacks in one process, so that the whole costs seconds. `scripts/attacks`
leaves out each layer in turn.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from . import suite
from .attackers import ATTACKERS
from .suite import ALL_OFF, Outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the operating system's layers are Linux's")

# How many must get through without the layers, so that a suite which attacks nothing is noticed. Not all: some that
# Python's own stand-ins refuse are depth, and some need a root's rights or a system without a container's own filter.
THROUGH_WITHOUT_LAYERS = {"guest": 32, "javascript": 45, "native": 38, "pip": 35}
ALWAYS_THROUGH = {
    "guest": {"js: fs.readFileSync", "js: process.env", "js: net.connect", "js: process.kill of another process"},
    "javascript": {"read the secret", "read its own environment", "connect by TCP", "signal another process"},
    "native": {"open the secret", "its environment", "connect and send", "kill another process", "fork"},
    "pip": {"open the secret", "its environment", "kill another process", "fork"},
}
THREAT_MODEL = Path(__file__).resolve().parents[2] / "docs" / "threat-model.md"


@cache
def confined(kind: str) -> list[Outcome]:
    return suite.run(kind)


@pytest.mark.parametrize("kind", ATTACKERS)
def test_no_attack_gets_through(kind: str) -> None:
    """A guest with all layers; JavaScript and native code that own their process, with those of the system alone."""
    assert [outcome for outcome in confined(kind) if outcome.evidence] == []


@pytest.mark.parametrize("kind", ATTACKERS)
def test_without_the_layers_the_same_attacks_get_through(kind: str) -> None:
    through = {outcome.title for outcome in suite.run(kind, ALL_OFF) if outcome.evidence}
    assert ALWAYS_THROUGH[kind] <= through
    assert len(through) >= THROUGH_WITHOUT_LAYERS[kind], through


def test_the_threat_model_has_a_row_for_every_attack() -> None:
    text = THREAT_MODEL.read_text("utf-8")
    titles = [outcome.title for kind in ATTACKERS for outcome in confined(kind)]
    assert len(titles) >= 60
    assert [title for title in titles if f"\n| {title} |" not in text] == []
