"""The rows of a Vega-Lite chart, transformed by its encoding: bins, units of time, aggregates.

An encoding is a dict from channels (x, y, color ...) to definitions, as in the specification. The resulting rows have
their values by channel, whatever the names of the fields.
"""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kernelmcp_guest.shown.chart import NotDrawn, days, number

Definition = dict[str, Any]
Row = dict[str, Any]

MAX_ROWS = 100_000
_MAX_BINS = {"x": 10, "y": 10}
_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December"]  # fmt: skip
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
_ROUND_THE_CLOCK: dict[str, Callable[[datetime], int]] = {
    "month": lambda at: at.month - 1,
    "day": lambda at: (at.weekday() + 1) % 7,
    "date": lambda at: at.day - 1,
    "hours": lambda at: at.hour,
    "quarter": lambda at: (at.month - 1) // 3,
}
_CUT: dict[str, Callable[[datetime], datetime]] = {
    "year": lambda at: datetime(at.year, 1, 1, tzinfo=UTC),
    "yearquarter": lambda at: datetime(at.year, (at.month - 1) // 3 * 3 + 1, 1, tzinfo=UTC),
    "yearmonth": lambda at: datetime(at.year, at.month, 1, tzinfo=UTC),
    "yearmonthdate": lambda at: datetime(at.year, at.month, at.day, tzinfo=UTC),
    "yearmonthdatehours": lambda at: datetime(at.year, at.month, at.day, at.hour, tzinfo=UTC),
}
_UNIT_NAMES = {"month": _MONTHS, "day": _DAYS, "quarter": ["Q1", "Q2", "Q3", "Q4"]}


@dataclass
class Table:
    """Rows by channel, and the results of transformations."""

    rows: list[Row]
    bins: dict[str, float] = field(default_factory=dict[str, float])
    """Their widths; a row has the beginning of its bin."""
    units: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The names of recurring units; rows have their positions."""


def _quantile(share: float) -> Callable[[list[float]], float]:
    def found(values: list[float]) -> float:
        values = sorted(values)
        place = (len(values) - 1) * share
        low = math.floor(place)
        return values[low] + (values[math.ceil(place)] - values[low]) * (place - low)

    return found


_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "mean": statistics.fmean,
    "average": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "q1": _quantile(0.25),
    "q3": _quantile(0.75),
    "stdev": statistics.stdev,
    "variance": statistics.variance,
    "product": math.prod,
}
_COUNTED: dict[str, Callable[[list[Any]], int]] = {
    "count": len,
    "distinct": lambda values: len(set(map(str, values))),
    "valid": lambda values: sum(not is_missing(value) for value in values),
    "missing": lambda values: sum(is_missing(value) for value in values),
}
# Aggregates whose parts add up to the whole.
SUMS = ("count", "sum", "distinct", "valid", "missing")


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def kind_of(definition: Definition) -> str:
    """The type of a channel, or its default if it is not given."""
    if "type" in definition:
        return definition["type"]
    if definition.get("aggregate") or definition.get("bin"):
        return "quantitative"
    if definition.get("timeUnit"):
        return "temporal"
    if "datum" in definition:
        return "quantitative" if isinstance(definition["datum"], int | float) else "nominal"
    return "nominal"


def aggregate(values: list[Any], name: str) -> float:
    if name in _COUNTED:
        return float(_COUNTED[name](values))
    if name not in _AGGREGATES:
        raise NotDrawn(f"the aggregate {name}")
    found = [number(value) for value in values if not is_missing(value)]
    try:
        return _AGGREGATES[name](found) if found else math.nan
    except statistics.StatisticsError:
        return math.nan


def transformed(rows: list[Row], encoding: dict[str, Definition]) -> Table:
    """The value of each channel for each row, or for each group of rows if something is aggregated."""
    table = Table([{} for _ in rows])
    for channel, definition in encoding.items():
        for row, value in zip(table.rows, _column(rows, channel, definition, table), strict=True):
            row[channel] = value
    sums = {channel: found["aggregate"] for channel, found in encoding.items() if found.get("aggregate")}
    if any(not isinstance(name, str) for name in sums.values()):
        raise NotDrawn("the row with the least or the most")
    if sums:
        keys = [channel for channel in encoding if channel not in sums]
        table.rows = [_together(group, keys, sums) for group in grouped(table.rows, keys)]
    return table


def grouped(rows: Iterable[Row], channels: list[str]) -> list[list[Row]]:
    """Groups of rows with the same values in these channels, ordered by their first rows."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(map(_as_key, map(row.get, channels))), []).append(row)
    return list(found.values())


def _as_key(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else None if is_missing(value) else value


def _together(group: list[Row], keys: list[str], sums: dict[str, str]) -> Row:
    found: Row = {key: group[0][key] for key in keys}
    return found | {channel: aggregate([row[channel] for row in group], name) for channel, name in sums.items()}


def _column(rows: list[Row], channel: str, definition: Definition, table: Table) -> list[Any]:
    if "datum" in definition:
        found: list[Any] = [_date_of(definition["datum"])] * len(rows)
    elif definition.get("field") is None:
        return [None] * len(rows)  # a count needs no field
    else:
        name = definition["field"]
        if not isinstance(name, str):
            raise NotDrawn("a field of a repeated chart")
        plain = name.replace("\\", "")
        found = [row.get(plain, row.get(name)) for row in rows]
    if definition.get("timeUnit"):
        return _units(found, channel, definition["timeUnit"], table)
    if definition.get("bin"):
        return _binned(found, channel, definition["bin"], table)
    if kind_of(definition) == "temporal":
        return [_moment(value) for value in found]
    return found


def _date_of(value: Any) -> Any:
    """Convert Vega's form of a date, a dict."""
    if not isinstance(value, dict):
        return value
    try:
        return datetime(value["year"], value.get("month", 1), value.get("date", 1), tzinfo=UTC).isoformat()
    except (KeyError, TypeError, ValueError):
        raise NotDrawn("a date that is written in another way") from None


def _moment(value: Any) -> float:
    """Days since 1970; a number means milliseconds since then."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) / 86_400_000
    return days(value)


def _units(values: list[Any], channel: str, unit: Any, table: Table) -> list[Any]:
    name = unit.get("unit") if isinstance(unit, dict) and set(unit) <= {"unit", "utc"} else unit
    name = str(name).removeprefix("utc")
    moments = [_moment(value) for value in values]
    found = [None if math.isnan(at) else datetime.fromtimestamp(at * 86_400, UTC) for at in moments]
    if name in _CUT:
        return [math.nan if at is None else days(_CUT[name](at)) for at in found]
    if name not in _ROUND_THE_CLOCK:
        raise NotDrawn(f"the unit of time {name}")
    places = [None if at is None else _ROUND_THE_CLOCK[name](at) for at in found]
    last = max((place for place in places if place is not None), default=0)
    names = _UNIT_NAMES.get(name) or [str(place + (name == "date")) for place in range(last + 1)]
    table.units[channel] = names
    return places


def _binned(values: list[Any], channel: str, wish: Any, table: Table) -> list[float]:
    """The beginning of each value's bin, by Vega's rule for nice bins."""
    if wish == "binned":
        raise NotDrawn("bins that were made before")
    options: dict[str, Any] = wish if isinstance(wish, dict) else {}
    if set(options) - {"maxbins", "step", "nice", "extent"} or options.get("nice") is False:
        raise NotDrawn("bins that are chosen in another way")
    found = [number(value) for value in values]
    there = [value for value in found if not math.isnan(value)]
    extent = options.get("extent") or [min(there, default=0.0), max(there, default=0.0)]
    low, high = (number(value) for value in extent)
    most = options.get("maxbins") or _MAX_BINS.get(channel, 6)
    step = number(options["step"]) if "step" in options else _nice_step(low, high, most)
    start = math.floor(low / step + 1e-9) * step
    last = max(0, math.ceil(high / step - 1e-9) - round(start / step) - 1)
    table.bins[channel] = step

    def begin(value: float) -> float:
        if math.isnan(value):
            return math.nan
        return start + min(last, math.floor((value - start) / step + 1e-9)) * step

    return [begin(value) for value in found]


def _nice_step(low: float, high: float, most: int) -> float:
    span = (high - low) or abs(low) or 1.0
    step = 10.0 ** (round(math.log10(span)) - math.ceil(math.log10(most)))
    while math.ceil(span / step) > most:
        step *= 10
    for divisor in (5, 2):
        if span / (step / divisor) <= most:
            step /= divisor
    return step
