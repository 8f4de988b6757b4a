"""The axes of a plotly figure, which detects their type from the data: numbers, dates or categories."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterable
from itertools import chain
from typing import Any

from kernelmcp_guest.shown import drawing
from kernelmcp_guest.shown.chart import Axis, NotDrawn, days, is_date, looks_like_dates, number, text


def read_axis(layout: Any, name: str, traces: list[Any]) -> Axis:
    """An axis of numbers, dates or categories, depending on the data of the traces."""
    axis = Axis(text(layout.title.text), log=layout.type == "log", reversed=layout.autorange == "reversed")
    drawn = [trace for trace in traces if trace.type in ("bar", "scatter", "scattergl", "histogram")]
    found = list(chain.from_iterable(values_of(getattr(trace, name)) for trace in drawn))
    there = [value for value in found if value is not None]
    if layout.type not in (None, "-", "linear", "log", "date", "category"):
        raise NotDrawn(f"an axis of the type {layout.type}")
    if layout.type == "category":
        axis.categories = list(dict.fromkeys(map(str, there)))
    elif any(is_date(value) for value in there) or looks_like_dates(there):
        axis.dates = True
    elif any(isinstance(value, str) for value in there):
        names = list(dict.fromkeys(map(str, there)))
        axis.categories = None if all(map(_is_number, names)) else names  # plotly converts them to numbers
    if axis.categories is not None:
        axis.categories = _in_order(axis.categories, layout)
    if layout.range is not None:
        low, high = (_limit(end, axis) for end in layout.range)
        axis.limits, axis.reversed = (min(low, high), max(low, high)), low > high
    return axis


def _in_order(names: list[str], layout: Any) -> list[str]:
    if layout.categoryorder in (None, "trace"):
        return names
    if layout.categoryorder == "array":
        first = [str(value) for value in layout.categoryarray if value is not None]
        return list(dict.fromkeys([*first, *names]))
    if layout.categoryorder in ("category ascending", "category descending"):
        return sorted(names, reverse=layout.categoryorder.endswith("descending"))
    raise NotDrawn(f"categories in the order {layout.categoryorder}")


def _limit(value: Any, axis: Axis) -> float:
    if axis.dates and not isinstance(value, int | float):
        return days(value)
    return 10.0 ** number(value) if axis.log else number(value)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def places(values: Iterable[Any], axis: Axis) -> list[float]:
    if axis.dates:
        return [days(value) for value in values]
    if axis.categories is not None:
        index = {name: place for place, name in enumerate(axis.categories)}
        return [index[str(value)] if value is not None else float("nan") for value in values]
    return [float(value) if isinstance(value, str) else number(value) for value in values]


def values_of(values: Any) -> list[Any]:
    found = [] if values is None else list(values)
    if len(found) > drawing.MAX_POINTS:
        raise NotDrawn(f"{len(found):,} marks, more than {drawing.MAX_POINTS:,}")
    return found
