"""Vega-Lite scales: the positions of x and y values, the order of categories, and their colours."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kernelmcp_guest.shown import drawing
from kernelmcp_guest.shown.chart import Axis, NotDrawn, days, number, text
from kernelmcp_guest.shown.vega_rows import Definition, Row, Table, is_missing, kind_of, transformed

# Vega's default palettes: of ten colours; of more.
_PALETTE = ["#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d",
            "#bab0ac"]  # fmt: skip
_PALETTE_OF_20 = [
    "#4c78a8", "#9ecae9", "#f58518", "#ffbf79", "#54a24b", "#88d27a", "#b79a20", "#f2cf5b", "#439894", "#83bcb6",
    "#e45756", "#ff9d98", "#79706e", "#bab0ac", "#d67195", "#fcbfd2", "#b279a2", "#d6a5c9", "#9e765f", "#d8b5a5",
]  # fmt: skip
DEFAULT_COLOR = _PALETTE[0]
_SCALE_KEYS = {
    "type", "domain", "range", "scheme", "zero", "reverse", "nice", "padding", "paddingInner", "paddingOuter", "clamp",
    "interpolate", "round", "rangeMin", "rangeMax",
}  # fmt: skip
_AGGREGATE_NAMES = {"average": "Mean", "stdev": "Standard deviation"}
_UNIT_WORDS = {"yearmonth": "year-month", "yearmonthdate": "year-month-date", "yearquarter": "year-quarter"}
_BOTH = {"x": ("x", "x2"), "y": ("y", "y2")}


@dataclass
class Layer:
    """One mark, its encoding, its rows as given and as drawn."""

    mark: dict[str, Any]
    encoding: dict[str, Definition]
    source: list[Row]
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        for end, start in (("x2", "x"), ("y2", "y")):
            if end in self.encoding and start in self.encoding:
                self.encoding[end] = {"type": kind_of(self.encoding[start]), **self.encoding[end]}
        self.table = transformed(self.source, self.encoding)

    @property
    def kind(self) -> str:
        return str(self.mark["type"])


def is_discrete(definition: Definition) -> bool:
    return kind_of(definition) in ("nominal", "ordinal")


def title_of(definition: Definition) -> str:
    for place in (definition, definition.get("axis") or {}, definition.get("legend") or {}):
        if "title" in place:
            return text(place["title"])
    name = str(definition.get("field") or "")
    if found := definition.get("aggregate"):
        return (
            "Count of Records" if found == "count" else f"{_AGGREGATE_NAMES.get(found, str(found).title())} of {name}"
        )
    if definition.get("bin"):
        return f"{name} (binned)"
    unit = definition.get("timeUnit")
    return f"{name} ({_UNIT_WORDS.get(str(unit), unit)})" if unit else name


def scale_of(definition: Definition) -> dict[str, Any]:
    found = definition.get("scale") or {}
    if set(found) - _SCALE_KEYS:
        raise NotDrawn(f"a scale with {', '.join(sorted(set(found) - _SCALE_KEYS))}")
    return found


def name_of(value: Any) -> str:
    """A value in Vega's notation."""
    if is_missing(value):
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else text(value)


def category(layer: Layer, channel: str, value: Any) -> str:
    """The name of a row's category on a channel."""
    table = layer.table
    if channel in table.units:
        return "null" if is_missing(value) else table.units[channel][int(value)]
    if channel in table.bins:
        return "null" if is_missing(value) else f"{value:g} \N{EN DASH} {value + table.bins[channel]:g}"
    if kind_of(layer.encoding[channel]) == "temporal":
        raise NotDrawn("groups by dates")
    return name_of(value)


def _natural(value: Any) -> tuple[bool, Any]:
    return (True, str(value)) if isinstance(value, str) or is_missing(value) else (False, value)


def categories(layers: list[Layer], channel: str) -> list[str]:
    """The categories of all layers, in order."""
    found: dict[str, Any] = {}
    for layer in layers:
        for row in layer.table.rows:
            found.setdefault(category(layer, channel, row[channel]), row[channel])
    definition = next((layer.encoding[channel] for layer in layers if "sort" in layer.encoding[channel]), None)
    order = definition["sort"] if definition else "ascending"
    if channel in layers[0].table.units:
        names = layers[0].table.units[channel]
        places = [names.index(name) for name in found if name in names]
        return names[min(places) : max(places) + 1] if places else []
    if order is None:
        names = list(found)
    elif isinstance(order, list):
        given = [name_of(value) for value in order]
        rest = sorted(found, key=lambda name: _natural(found[name]))
        names = list(dict.fromkeys([*(name for name in given if name in found), *rest]))
    elif order in ("ascending", "descending"):
        names = sorted(found, key=lambda name: _natural(found[name]), reverse=order == "descending")
    else:
        names = _by_another(layers, channel, order)
    domain = next((wish for each in layers if (wish := scale_of(each.encoding[channel]).get("domain"))), None)
    if domain is None:
        return names
    if not isinstance(domain, list):
        raise NotDrawn("categories that are chosen in another way")
    given = [name_of(value) for value in domain]
    if set(names) - set(given):
        raise NotDrawn("categories outside the scale")
    return given


def _by_another(layers: list[Layer], channel: str, order: Any) -> list[str]:
    """The categories, sorted by another channel, or by a field."""
    layer, *others = layers
    down = str(order).startswith("-") or (isinstance(order, dict) and order.get("order") == "descending")
    other = str(order).removeprefix("-") if isinstance(order, str) else order.get("encoding")
    if others or channel in layer.table.bins:
        raise NotDrawn("that order of several layers")
    if other in layer.encoding:
        by = layer.encoding[other]
    elif isinstance(order, dict) and isinstance(order.get("field"), str):
        by = {"field": order["field"], "aggregate": order.get("op")}
    else:
        raise NotDrawn("that order of categories")
    if not by.get("aggregate"):
        by = by | {"aggregate": "sum" if layer.kind in ("bar", "area") else "min"}
    found = transformed(layer.source, {channel: layer.encoding[channel], "by": by}).rows
    found.sort(key=lambda row: math.inf if math.isnan(row["by"]) else row["by"], reverse=down)
    return [category(layer, channel, row[channel]) for row in found]


def axis_of(layers: list[Layer], name: str) -> Axis:
    """An axis shared by all layers."""
    used = [(layer, channel) for layer in layers for channel in _BOTH[name] if channel in layer.encoding]
    if not used:
        return Axis()
    definitions = [layer.encoding[channel] for layer, channel in used]
    firsts = [layer.encoding[name] for layer in layers if name in layer.encoding]
    titles = dict.fromkeys(title_of(each) for each in firsts if "datum" not in each or "title" in each)
    scales = [scale_of(each) for each in definitions]
    axis = Axis(", ".join(title for title in titles if title))
    axis.reversed = any(scale.get("reverse") for scale in scales)
    if any(is_discrete(each) or name in layer.table.units for (layer, _), each in zip(used, definitions, strict=True)):
        here = [layer for layer, channel in used if channel == name]
        if not all(is_discrete(layer.encoding[name]) or name in layer.table.units for layer in here):
            raise NotDrawn("an axis of categories and of numbers")
        if len(here) < len(used):
            raise NotDrawn("ranges of categories")
        axis.categories = categories(here, name)
        axis.reversed ^= name == "y"  # the first category is at the top
        return axis
    kinds = {kind_of(each) for each in definitions if "datum" not in each} or {kind_of(definitions[0])}
    if not kinds <= {"quantitative", "temporal"} or (len(kinds) > 1 and len(used) == len(firsts)):
        raise NotDrawn("an axis of several kinds")
    axis.dates = "temporal" in kinds
    axis.reversed ^= any(each.get("sort") == "descending" for each in definitions)
    for scale in scales:
        _continuous(axis, scale)
    return axis


def _continuous(axis: Axis, scale: dict[str, Any]) -> None:
    kind = scale.get("type")
    if kind not in (None, "linear", "log", "time", "utc"):
        raise NotDrawn(f"a scale of the type {kind}")
    axis.log |= kind == "log"
    domain = scale.get("domain")
    if isinstance(domain, list) and len(domain) == 2:
        low, high = (days(end) if axis.dates and isinstance(end, str) else number(end) for end in domain)
        axis.limits = (low, high)
    elif domain is not None:
        raise NotDrawn("an axis that is chosen in another way")


def place(layer: Layer, channel: str, axis: Axis, value: Any) -> float:
    if axis.categories is not None:
        return float(axis.index[category(layer, channel, value)])
    return number(value)


def palette(layers: list[Layer], channel: str) -> dict[str, str]:
    """The colours of the categories, in order."""
    here = [layer for layer in layers if channel in layer.encoding and is_discrete(layer.encoding[channel])]
    if not here:
        return {}
    names = categories(here, channel)
    given: Any = next((found for layer in here if (found := scale_of(layer.encoding[channel]).get("range"))), None)
    if given is not None and not (isinstance(given, list) and all(map(drawing.color, given))):
        raise NotDrawn("colours that are chosen in another way")
    colors: list[str] = given or (_PALETTE if len(names) <= len(_PALETTE) else _PALETTE_OF_20)
    return {name: colors[number % len(colors)] for number, name in enumerate(names)}


def places(layer: Layer, channel: str, axis: Axis, rows: Iterable[Row]) -> list[float]:
    return [place(layer, channel, axis, row[channel]) for row in rows]
