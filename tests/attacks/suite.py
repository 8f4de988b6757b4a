"""Runs the attacks of one kind of attacker under a set of missing layers, and makes the threat model's table of it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .attackers import ATTACKERS, BESIDE, LAYERS, Attacker, ProgramAttacker
from .world import World, surroundings

ALL_OFF = frozenset(LAYERS)
TITLES = {
    "guest": "Python in the guest",
    "javascript": "JavaScript that owns its process",
    "quickjs": "JavaScript in a cell",
    "quickjs node": "JavaScript that owns the Node around QuickJS",
    "native": "Native code that owns its process",
    "pip": "Native code that owns pip",
}


@dataclass(frozen=True)
class Outcome:
    """What one attack came to. `evidence` is empty when it was stopped."""

    title: str
    evidence: tuple[str, ...]
    answer: str
    seconds: float


def run(kind: str, off: frozenset[str] = frozenset(), only: str | None = None) -> list[Outcome]:
    """Every attack of a kind of attacker, one after the other, with these layers left out."""
    return asyncio.run(_run(kind, off, only))


async def _run(kind: str, off: frozenset[str], only: str | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kma-") as folder:
        async with surroundings(Path(folder)) as world:
            attacker = (ATTACKERS | BESIDE)[kind](world, off)
            try:
                titles = await attacker.attempts()
                await _control(world, attacker)
                for title in titles:
                    if only is not None and title != only:
                        continue
                    start = time.monotonic()
                    answer = await attacker.attempt(title)
                    evidence = await world.evidence(answer, attacker.pid)
                    if "BREACH" in answer:
                        evidence.append("it says so")
                    outcomes.append(Outcome(title, tuple(evidence), answer, time.monotonic() - start))
                    if evidence and isinstance(
                        attacker, ProgramAttacker
                    ):  # what it left behind in its process must not count for the next
                        await attacker.close()
                    world.reset()
            finally:
                await attacker.close()
    return outcomes


async def _control(world: World, attacker: Attacker) -> None:
    """What is allowed works, tried as the rest is: an attacker that is dead would look like one that is stopped."""
    answer = await attacker.attempt("control")
    file = world.sandbox.workspace / "control"
    if not file.exists() or file.read_text() != "works":
        raise RuntimeError(f"the control did not work: {answer}")


def table(columns: dict[str, dict[str, list[Outcome]]]) -> str:
    """Markdown: a row for each attack, a column for each set of missing layers; `columns[column][kind]`."""
    lines: list[str] = []
    for kind in ATTACKERS:
        names = [name for name, found in columns.items() if kind in found]
        through = [sum(bool(outcome.evidence) for outcome in columns[name][kind]) for name in names]
        lines += [f"### {TITLES[kind]}", ""]
        lines += ["| attack | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for row, outcome in enumerate(columns[names[0]][kind]):
            cells = ["through" if columns[name][kind][row].evidence else "" for name in names]
            lines.append(f"| {outcome.title} | " + " | ".join(cells) + " |")
        lines += [
            "| **got through, of " + f"{len(columns[names[0]][kind])}** | " + " | ".join(map(str, through)) + " |",
            "",
        ]
    return "\n".join(lines)
