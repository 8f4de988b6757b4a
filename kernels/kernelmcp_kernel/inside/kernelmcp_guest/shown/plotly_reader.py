"""Reads a plotly figure: the trace types that most figures consist of, on one pair of axes.

plotly detects the type of an axis from the data: numbers, dates or categories.
"""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from kernelmcp_guest.shown import drawing
from kernelmcp_guest.shown.chart_model import (
    Area,
    Axis,
    Bars,
    BoxPlot,
    Chart,
    Described,
    Grid,
    Histogram,
    Line,
    Mark,
    NotDrawn,
    Pie,
    Points,
    Rules,
    Texts,
    days,
    is_date,
    looks_like_dates,
    number,
    numbers,
    stacked,
    step_of,
    text,
)

# Properties that would change the picture.
_LEFT_OUT = ("base", "connectgaps", "histnorm", "stackgroup", "transpose")
_DASHES = {"dash": "--", "dot": ":", "dashdot": "-.", "longdash": "--", "longdashdot": "-."}
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "cross": "P", "x": "X", "triangle-up": "^", "star": "*",
            "triangle-down": "v"}  # fmt: skip
_FEW_POINTS = 20
_MANY_NAMES = 1_000


def describe(figure: Any) -> Described:
    kinds = [trace.type for trace in figure.data]
    return Described("plotly figure", kinds, text(figure.layout.title.text), f"{_count(figure.data):,} marks")


def _count(traces: Iterable[Any]) -> int:
    return sum(map(_count_of, traces))


def _count_of(trace: Any) -> int:
    if trace.type == "heatmap":
        return sum(map(len, trace.z)) if trace.z is not None else 0
    columns = (getattr(trace, name, None) for name in ("y", "x", "values", "z"))
    return next((len(values) for values in columns if values is not None), 0)


def read(figure: Any) -> Chart:
    traces = [trace for trace in figure.data if trace.visible in (None, True)]
    if not traces:
        raise NotDrawn("it is empty")
    for trace in traces:
        _check(trace)
    if (found := _count(traces)) > drawing.MAX_POINTS:
        raise NotDrawn(f"{found:,} marks, more than {drawing.MAX_POINTS:,}")
    if sum(trace.type == "histogram" for trace in traces) > 1:
        raise NotDrawn("several histograms")
    if len(traces) > 1 and any(trace.type == "pie" for trace in traces):
        raise NotDrawn("several charts")
    if figure.frames:
        raise NotDrawn("an animation")
    layout = figure.layout
    if layout.barnorm:
        raise NotDrawn("bars as shares")
    chart = Chart([], text(layout.title.text))
    chart.x, chart.y = _read_axis(layout.xaxis, "x", traces), _read_axis(layout.yaxis, "y", traces)
    _bars(chart, [trace for trace in traces if trace.type == "bar"], layout.barmode)
    for trace in traces:
        before = len(chart.marks)
        _READ[trace.type](chart, trace)
        _fade(chart.marks[before:], trace)
    _add_shapes(chart, layout)
    chart.legend_title = text(layout.legend.title.text)
    chart.legend = len(traces) > 1 and layout.showlegend is not False
    return chart


def _read_axis(layout: Any, name: str, traces: list[Any]) -> Axis:
    """An axis of numbers, dates or categories, depending on the data of the traces."""
    axis = Axis(text(layout.title.text), log=layout.type == "log", reversed=layout.autorange == "reversed")
    kinds = ("bar", "scatter", "scattergl", "histogram", *(("box",) if name == "x" else ()))
    drawn = [trace for trace in traces if trace.type in kinds]
    found = list(chain.from_iterable(_values_of(getattr(trace, name)) for trace in drawn))
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
        axis.categories = _ordered(axis.categories, layout)
    if layout.range is not None:
        low, high = (_limit(end, axis) for end in layout.range)
        axis.limits, axis.reversed = (min(low, high), max(low, high)), low > high
    return axis


def _ordered(names: list[str], layout: Any) -> list[str]:
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


def _places(values: Iterable[Any], axis: Axis) -> list[float]:
    if axis.dates:
        return [days(value) for value in values]
    if axis.categories is not None:
        index = {name: place for place, name in enumerate(axis.categories)}
        return [index[str(value)] if value is not None else float("nan") for value in values]
    return [float(value) if isinstance(value, str) else number(value) for value in values]


def _values_of(values: Any) -> list[Any]:
    found = [] if values is None else list(values)
    if len(found) > drawing.MAX_POINTS:
        raise NotDrawn(f"{len(found):,} marks, more than {drawing.MAX_POINTS:,}")
    return found


def _fade(marks: list[Mark], trace: Any) -> None:
    for given in (trace.opacity, getattr(getattr(trace, "marker", None), "opacity", None)):
        if given is not None and not isinstance(given, int | float):
            raise NotDrawn("opacity by data")
        for mark in marks:
            mark.opacity *= 1.0 if given is None else float(given)


def _check(trace: Any) -> None:
    """Check that a trace has a supported type, the first axes, and no unsupported properties. Raises NotDrawn."""
    if trace.type not in _READ:
        raise NotDrawn(f"{trace.type} is not drawn")
    allowed = {"xaxis": (None, "x"), "yaxis": (None, "y")} | dict.fromkeys(_LEFT_OUT, (None, "", False))
    if not all(getattr(trace, name, None) in values for name, values in allowed.items()):
        raise NotDrawn("several axes" if {trace.xaxis, trace.yaxis} - {None, "x", "y"} else "details of a trace")
    for name in ("x", "y") if trace.type != "box" else ():  # a box of plotly.express has an x0 that says nothing
        counted = any(getattr(trace, each, None) for each in (f"{name}0", f"d{name}"))
        if counted and getattr(trace, name, None) is None:
            raise NotDrawn("places counted from a start")
    bars_of_errors = [getattr(trace, name, None) for name in ("error_x", "error_y")]
    if any(bar is not None and bar.to_plotly_json() for bar in bars_of_errors):
        raise NotDrawn("bars of errors")
    if trace.type == "histogram" and trace.cumulative.enabled:
        raise NotDrawn("a histogram of sums")
    if trace.type == "histogram" and (trace.xbins.to_plotly_json() or trace.ybins.to_plotly_json()):
        raise NotDrawn("a histogram whose bins are given")
    if trace.type == "histogram" and trace.x is not None and trace.y is not None:
        raise NotDrawn("a histogram of sums")


def _add_shapes(chart: Chart, layout: Any) -> None:
    """Lines across the whole picture, as `add_hline` makes them; texts at a point."""
    for shape in (each for each in layout.shapes if each.visible in (None, True)):
        level, upright = (
            shape.y0 == shape.y1 and shape.xref == "x domain",
            shape.x0 == shape.x1 and shape.yref == "y domain",
        )
        if shape.type != "line" or not (level or upright):
            raise NotDrawn("shapes")
        at = _places([shape.x0 if upright else shape.y0], chart.x if upright else chart.y)
        style, color = _DASHES.get(shape.line.dash or "", "-"), drawing.color(shape.line.color)
        chart.marks.append(Rules(at, upright, style, color=color))
    for note in layout.annotations:
        if note.visible is not False and note.xref in (None, "x") and note.yref in (None, "y"):
            place = _place_of_note(note.x, chart.x), _place_of_note(note.y, chart.y)
            chart.marks.append(Texts(*place, [text(note.text)]))


def _place_of_note(value: Any, axis: Axis) -> list[float]:
    """On an axis of logarithms an annotation has one, other than a shape."""
    return [10.0**place if axis.log else place for place in _places([value], axis)]


def _colors(value: Any) -> tuple[Any, list[float] | None]:
    """One colour or one per mark, or numbers for a colour scale."""
    if value is None or isinstance(value, str):
        return drawing.color(value), None
    found = _values_of(value)
    if found and not any(isinstance(each, str) for each in found):
        return None, numbers(found)
    return [drawing.color(each) for each in found], None


def _bars(chart: Chart, traces: list[Any], mode: str | None) -> None:
    """Bars side by side, or stacked, depending on `barmode`."""
    if any(trace.width is not None or trace.offset is not None for trace in traces):
        raise NotDrawn("bars whose widths or places are given")
    grouped = mode in (None, "group") and len(traces) > 1
    across = any(trace.orientation == "h" for trace in traces)
    if any((trace.orientation == "h") != across for trace in traces):
        raise NotDrawn("bars in both directions")
    axis = chart.y if across else chart.x
    keys = [_places(_keys(trace, across), axis) for trace in traces]
    step = step_of(list(chain.from_iterable(keys)))
    width = 0.8 * step / (len(traces) if grouped else 1)
    ends: dict[tuple[Any, bool], float] = {}  # ends of the stacked bars, upward and downward
    for place, (trace, at) in enumerate(zip(traces, keys, strict=True)):
        heights = numbers(0 if value is None else value for value in _values_of(trace.x if across else trace.y))
        low = stacked(at, heights, ends) if mode in ("stack", "relative") else [0.0] * len(at)
        shift = (place - (len(traces) - 1) / 2) * width if grouped else 0.0
        color, values = _colors(trace.marker.color)
        shifted = [each + shift for each in at]
        high = [begin + height for begin, height in zip(low, heights, strict=True)]
        bars = Bars(shifted, low, high, [width] * len(at), across, name=_name(trace), color=color, values=values)
        _fade([bars], trace)
        chart.marks.append(bars)
    if mode == "stack" and any(ends.get((key, True)) and ends.get((key, False)) for key, _ in ends):
        raise NotDrawn("stacked bars of both signs")


def _keys(trace: Any, across: bool) -> list[Any]:
    found = _values_of(trace.y if across else trace.x)
    return found or list(range(len(_values_of(trace.x if across else trace.y))))


def _name(trace: Any) -> str | None:
    return None if trace.showlegend is False else text(trace.name) or None


def _scatter(chart: Chart, trace: Any) -> None:
    y = _places(_values_of(trace.y), chart.y)
    x = _places(_values_of(trace.x), chart.x) or [float(place) for place in range(len(y))]
    mode = trace.mode or ("lines+markers" if len(y) < _FEW_POINTS else "lines")
    if set(mode.split("+")) - {"lines", "markers"}:
        raise NotDrawn(f"the mode {mode}")
    color, values = _colors(trace.marker.color)
    name = _name(trace)
    if "lines" not in mode:
        size: Any = trace.marker.size
        marker = _MARKERS.get(trace.marker.symbol or "circle")
        if marker is None:
            raise NotDrawn("points of that shape")
        points = Points(
            x, y, 18.0 if size is None else _sizes(size, trace), marker, name=name, color=color, values=values
        )
        chart.marks.append(points)
        if values is not None:
            chart.values_title = text(trace.marker.colorbar.title.text) or chart.values_title
        return
    one = drawing.color(trace.line.color) or (color if isinstance(color, str) else None)
    if trace.fill == "tozeroy":
        filled = drawing.color(trace.fillcolor)
        chart.marks.append(Area(x, [0.0] * len(y), y, color=filled or one, opacity=1.0 if filled else 0.3))
    elif trace.fill not in (None, "none"):
        raise NotDrawn(f"the fill {trace.fill}")
    if trace.line.shape not in (None, "linear"):
        raise NotDrawn(f"lines of the shape {trace.line.shape}")
    if trace.line.width == 0:
        raise NotDrawn("lines without a width")
    style = _DASHES.get(trace.line.dash or "", "-")
    chart.marks.append(Line(x, y, style, markers="markers" in mode, name=name, color=one))


def _sizes(size: Any, trace: Any) -> float | list[float]:
    """In square points: from a diameter in pixels, or from plotly.express's areas."""
    if isinstance(size, int | float):
        return (0.75 * float(size)) ** 2
    reference = float(trace.marker.sizeref or 1)
    by_area = trace.marker.sizemode == "area"
    found = numbers(_values_of(size))
    return [each / reference * 0.56 if by_area else (0.75 * each / reference) ** 2 for each in found]


def _histogram(chart: Chart, trace: Any) -> None:
    across = trace.x is None
    samples = _values_of(trace.y if across else trace.x)
    axis = chart.y if across else chart.x
    look: dict[str, Any] = {"name": _name(trace), "opacity": 0.8, "color": _colors(trace.marker.color)[0]}
    if axis.categories is None:
        bins = trace.nbinsy if across else trace.nbinsx
        chart.marks.append(Histogram(_places(samples, axis), bins, across, **look))
        return
    found = Counter(_places((sample for sample in samples if sample is not None), axis))
    at, counts = list(found), list(map(float, found.values()))
    chart.marks.append(Bars(at, [0.0] * len(at), counts, [0.8] * len(at), across, **look))


def _box(chart: Chart, trace: Any) -> None:
    groups: dict[Any, list[float]] = {}
    samples = numbers(_values_of(trace.y))
    if trace.y is None or trace.orientation == "h":
        raise NotDrawn("boxes that lie")
    for key, sample in zip(_values_of(trace.x) or [trace.name or ""] * len(samples), samples, strict=False):
        groups.setdefault(str(key), []).append(sample)
    index = {name: float(place) for place, name in enumerate(chart.x.categories or ())}
    at = [index.setdefault(name, float(len(index))) for name in groups]
    chart.x.categories, chart.x.dates = list(index), False
    if any(isinstance(mark, BoxPlot) and not set(mark.at).isdisjoint(at) for mark in chart.marks):
        raise NotDrawn("boxes side by side")
    chart.marks.append(BoxPlot(at, list(groups.values()), name=_name(trace), color=_colors(trace.marker.color)[0]))


def _pie(chart: Chart, trace: Any) -> None:
    shares: dict[str, float] = {}
    for label, value in zip(map(str, _values_of(trace.labels)), _values_of(trace.values), strict=True):
        shares[label] = shares.get(label, 0.0) + number(value)
    colors = _colors(trace.marker.colors)[0]
    chart.marks.append(Pie(list(shares), list(shares.values()), float(trace.hole or 0), color=colors))


def _heatmap(chart: Chart, trace: Any) -> None:
    rows = [numbers(row) for row in _values_of(trace.z)]
    shared = trace.figure.layout[trace.coloraxis] if trace.coloraxis else None
    limits = (trace.zmin, trace.zmax) if shared is None else (shared.cmin, shared.cmax)
    chart.marks.append(Grid(rows, limits))
    for names, axis in ((trace.x, chart.x), (trace.y, chart.y)):
        if names is None:
            continue
        if len(names) > _MANY_NAMES:
            raise NotDrawn(f"{len(names):,} rows or columns, more than {_MANY_NAMES:,}")
        if axis.limits != (None, None):
            raise NotDrawn("a part of a heatmap")
        axis.categories = [str(name) for name in names]


def _with_the_others(chart: Chart, trace: Any) -> None:
    """Does nothing: all bars are read together."""


_READ: dict[str, Callable[[Chart, Any], None]] = {
    "bar": _with_the_others,
    "scatter": _scatter,
    "scattergl": _scatter,
    "histogram": _histogram,
    "box": _box,
    "pie": _pie,
    "heatmap": _heatmap,
}
