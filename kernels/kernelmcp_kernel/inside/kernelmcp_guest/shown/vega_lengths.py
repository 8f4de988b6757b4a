"""Vega-Lite bars and areas: marks with a length, side by side or stacked."""

import math
from typing import Any

from kernelmcp_guest.shown.chart import Area, Bars, Line, Mark, NotDrawn, number, stacked, step_of
from kernelmcp_guest.shown.vega_rows import Row
from kernelmcp_guest.shown.vega_scales import categories, category
from kernelmcp_guest.shown.vega_view import View

_BAR = 0.8


def bars(of: View) -> list[Mark]:
    base, length = of.stands_on()
    if length not in of.encoding:
        raise NotDrawn("bars without a length")
    ranged, offset = f"{length}2" in of.encoding, f"{base}Offset"
    how = None if ranged else of.is_stacked(length)
    names = categories([of.layer], offset) if offset in of.encoding else [""]
    others = {name: place for place, name in enumerate(names)}
    made: list[Mark] = []
    ends: dict[tuple[Any, bool], float] = {}
    totals = _totals(of, base, length, offset) if how == "normalize" else None
    for group in reversed(list(of.groups())):
        name, color, rows = group.name, group.color, group.rows
        at = of.where(base, rows) if base in of.encoding else [0.0] * len(rows)
        width = _width(of, base) / len(others)
        if offset in of.encoding:
            slots = [others[category(of.layer, offset, row[offset])] for row in rows]
            at = [each + (slot - (len(others) - 1) / 2) * width for each, slot in zip(at, slots, strict=True)]
        high = of.where(length, rows)
        if totals is not None:
            high = [value / totals[key] if totals[key] else 0.0 for key, value in zip(_keys(at), high, strict=True)]
        low = of.where(f"{length}2", rows) if ranged else [0.0] * len(rows)
        if how:
            low = stacked(_keys(at), high, ends)
            high = [begin + value for begin, value in zip(low, high, strict=True)]
        marks = Bars(at, low, high, [width] * len(at), length == "x", name=name, color=color, values=of.values(rows))
        marks.opacity = of.opacity
        made.append(marks)
    return made[::-1]


def _keys(at: list[float]) -> list[float]:
    return [round(each, 9) for each in at]


def _totals(of: View, base: str, length: str, offset: str) -> dict[float, float]:
    if offset in of.encoding:
        raise NotDrawn("shares of groups")
    found: dict[float, float] = {}
    for at, value in zip(_keys(of.where(base, of.rows)), of.where(length, of.rows), strict=True):
        found[at] = found.get(at, 0.0) + value
    return found


def _width(of: View, base: str) -> float:
    if base not in of.encoding:
        return _BAR
    if of.axis(base).categories is not None:
        return _BAR
    if base in of.layer.table.bins:
        return of.layer.table.bins[base] * 0.95
    return _BAR * step_of(of.where(base, of.rows))


def areas(of: View) -> list[Mark]:
    base, length = of.stands_on()
    if of.layer.mark.get("interpolate", "linear") not in ("linear", "monotone") or of.values([]) is not None:
        raise NotDrawn("areas of that shape")
    ranged = f"{length}2" in of.encoding
    how = None if ranged else of.is_stacked(length)
    made: list[Mark] = []
    under = dict.fromkeys(sorted({at for at in of.where(base, of.rows) if not math.isnan(at)}), 0.0)
    totals = _totals(of, base, length, "") if how == "normalize" else {}
    for group in reversed(list(of.groups())):
        name, color, rows = group.name, group.color, group.rows
        rows = in_order(of, rows)
        at, high = of.where(base, rows), of.where(length, rows)
        low = of.where(f"{length}2", rows) if ranged else [0.0] * len(at)
        if how:
            there = dict(zip(at, high, strict=True))
            if len(there) < len(at):
                raise NotDrawn("an area with two values for one place")
            heights = {key: there.get(key, 0.0) / (totals.get(round(key, 9)) or 1.0) for key in under}
            at, low = list(under), list(under.values())
            under = {key: begin + heights[key] for key, begin in under.items()}
            high = list(under.values())
        opacity = of.opacity if how or "opacity" in of.layer.mark else 0.7
        made.append(Area(at, low, high, base == "y", name=name, color=color, opacity=opacity))
        if of.layer.mark.get("line"):
            x, y = (high, at) if base == "y" else (at, high)
            made.append(Line(x, y, color=color))
    return made[::-1]


def in_order(of: View, rows: list[Row]) -> list[Row]:
    """Rows in order along the axis, as Vega draws them, or in the order of the channel `order`."""
    if "order" in of.encoding:
        return sorted(rows, key=lambda row: number(row["order"]))
    base, _ = of.stands_on()
    at = of.where(base, rows)
    return [
        rows[number] for number in sorted(range(len(rows)), key=lambda number: (math.isnan(at[number]), at[number]))
    ]
