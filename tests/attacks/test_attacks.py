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

# On macOS the first tests run with Seatbelt; the documented counts are Linux's.
linux = pytest.mark.skipif(sys.platform != "linux", reason="the threat model's tables are Linux's")

# How many must get through without the layers, so that a suite which attacks nothing is noticed. Not all: some that
# Python's own stand-ins refuse are depth, and some need a root's rights or a system without a container's own filter.
# Code in QuickJS has only the files that it is given, and what the host's links there lead to.
THROUGH_WITHOUT_LAYERS = {"guest": 32, "javascript": 45, "quickjs": 4, "quickjs node": 45, "native": 38, "pip": 35}
ALWAYS_THROUGH = {
    "guest": {"js: fs.readFileSync", "js: process.env", "js: net.connect", "js: process.kill of another process"},
    "javascript": {"read the secret", "read its own environment", "connect by TCP", "signal another process"},
    "quickjs": {"follow a link that the host made", "write through such a link"},
    "quickjs node": {"read the secret", "read its own environment", "connect by TCP", "signal another process"},
    "native": {"open the secret", "its environment", "connect and send", "kill another process", "fork"},
    "pip": {"open the secret", "its environment", "kill another process", "fork"},
}
THREAT_MODEL = Path(__file__).resolve().parents[2] / "docs" / "threat-model.md"


@cache
def confined(kind: str) -> list[Outcome]:
    return suite.run(kind)


@cache
def unconfined(kind: str) -> list[Outcome]:
    return suite.run(kind, ALL_OFF)


def documented(kind: str) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """The threat model's table of an attacker: its columns, the cells of each attack, and those of its last row."""
    section = THREAT_MODEL.read_text("utf-8").split(f"\n### {suite.TITLES[kind]}\n")[1].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    (_, *columns), _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    *attacks, totals = rows
    return columns, {title: cells for title, *cells in attacks}, totals


@pytest.mark.parametrize("kind", ATTACKERS)
def test_no_attack_gets_through(kind: str) -> None:
    """A guest with all layers; JavaScript and native code that own their process, with those of the system alone."""
    assert [outcome for outcome in confined(kind) if outcome.evidence] == []


def test_native_code_in_the_shells_place_gets_no_further() -> None:
    assert [outcome for outcome in suite.run("shell") if outcome.evidence] == []
    without = {outcome.title for outcome in suite.run("shell", ALL_OFF) if outcome.evidence}
    assert without >= ALWAYS_THROUGH["native"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKERS)
def test_without_the_layers_the_same_attacks_get_through(kind: str) -> None:
    through = {outcome.title for outcome in unconfined(kind) if outcome.evidence}
    assert ALWAYS_THROUGH[kind] <= through
    assert len(through) >= THROUGH_WITHOUT_LAYERS[kind], through


@linux
@pytest.mark.parametrize("kind", ATTACKERS)
def test_the_threat_model_has_a_row_for_every_attack_and_counts_them(kind: str) -> None:
    columns, attacks, totals = documented(kind)
    assert list(attacks) == [outcome.title for outcome in confined(kind)]
    assert {len(cells) for cells in attacks.values()} == {len(columns)}
    assert {cell for cells in attacks.values() for cell in cells} == {"", "through"}
    counts = [str(column.count("through")) for column in zip(*attacks.values(), strict=True)]
    assert totals == [f"**got through, of {len(attacks)}**", *counts]


@linux
@pytest.mark.parametrize("kind", ATTACKERS)
def test_the_threat_models_first_and_last_columns_are_what_happens_here(kind: str) -> None:
    """With all layers and with none. Machines differ in what they let through without any: a tenth at most."""
    columns, attacks, _ = documented(kind)
    assert (columns[0], columns[-1]) == ("all on", "none")
    first, last = ([title for title, cells in attacks.items() if cells[column]] for column in (0, -1))
    assert first == [outcome.title for outcome in confined(kind) if outcome.evidence] == []
    different = set(last) ^ {outcome.title for outcome in unconfined(kind) if outcome.evidence}
    assert len(different) <= len(attacks) // 10, different
