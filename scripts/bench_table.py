"""Rows of measured figures, and how they are shown: with the machine that they were measured on."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass

import psutil


@dataclass
class Row:
    """One line of the table. `bar` is the largest `ratio` (or, without a native figure, value) that is good enough."""

    what: str
    unit: str
    ours: float
    native: float | None = None
    bar: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.native if self.native else None

    @property
    def held(self) -> bool:
        return self.bar is None or (self.ratio if self.ratio is not None else self.ours) <= self.bar


def p50(values: list[float]) -> float:
    return statistics.median(values)


def table(rows: list[Row]) -> str:
    lines = ["| what | kernelmcp | native ipykernel | ratio | bar | |", "|---|---|---|---|---|---|"]
    for row in rows:
        native = f"{row.native:.1f} {row.unit}" if row.native else ""
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        bar = "" if row.bar is None else (f"{row.bar:g}" if row.ratio is not None else f"{row.bar:g} {row.unit}")
        verdict = row.note if row.held else f"MISSED {row.note}".strip()
        lines.append(f"| {row.what} | {row.ours:.1f} {row.unit} | {native} | {ratio} | {bar} | {verdict} |")
    return "\n".join(lines)


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {system}, Python {platform.python_version()}"
