"""Creates marks (chart.py) from a Vega-Lite layer."""

from collections.abc import Callable, Iterator
from typing import Any

from kernelmcp_guest.shown.chart import (
    Bars,
    BoxPlot,
    Chart,
    Line,
    Mark,
    NotDrawn,
    Pie,
    Points,
    Rules,
    Segments,
    Texts,
    number,
)
from kernelmcp_guest.shown.vega_lengths import areas, bars, in_order
from kernelmcp_guest.shown.vega_rows import Row, grouped, is_missing, kind_of
from kernelmcp_guest.shown.vega_scales import (
    Layer,
    category,
    name_of,
    scale_of,
)
from kernelmcp_guest.shown.vega_view import View

COLOR_CHANNELS = ("color", "fill", "stroke")
_STEPS = {"step": "steps-mid", "step-after": "steps-post", "step-before": "steps-pre"}
_STYLES = ["-", "--", ":", "-."]
_MARKERS = {"circle": "o", "square": "s", "cross": "P", "diamond": "D", "triangle-up": "^", "triangle-down": "v",
            "triangle-right": ">", "triangle-left": "<", "triangle": "^", "stroke": "_"}  # fmt: skip
_SIZES = (12.0, 220.0)


def add_marks(chart: Chart, layer: Layer, colors: dict[str, str]) -> None:
    made = _MADE.get(layer.kind)
    if made is None:
        raise NotDrawn(f"the mark {layer.kind}")
    chart.marks += made(View(chart, layer, colors))


def _lines(of: View) -> list[Mark]:
    return list(_each_line(of))


def _each_line(of: View) -> Iterator[Mark]:
    mark = of.layer.mark
    shape = mark.get("interpolate", "linear")
    if shape not in (*_STEPS, "linear", "monotone") or of.values([]) is not None:
        raise NotDrawn("lines of that shape")
    dashed = mark.get("strokeDash") not in (None, [1, 0], [])
    for group in of.groups(*(["detail"] if "detail" in of.encoding else [])):
        rows = in_order(of, group.rows)
        by_style = "strokeDash" in of.encoding and group.number
        style = _STYLES[group.number % len(_STYLES)] if by_style else "--" if dashed else "-"
        width = float(mark.get("strokeWidth", 2)) * 0.75
        x, y = of.where("x", rows), of.where("y", rows)
        line = Line(x, y, style, width, bool(mark.get("point")), _STEPS.get(shape, "default"), opacity=of.opacity)
        line.name, line.color = group.name, group.color
        yield line


def _points(of: View) -> list[Mark]:
    made: list[Mark] = []
    kind = of.layer.kind
    filled = bool(of.layer.mark.get("filled", kind != "point"))
    size = float(of.layer.mark.get("size", 30)) * 0.56
    sizes = _sizes(of)
    for group in of.groups():
        name, color, rows = group.name, group.color, group.rows
        shape = of.layer.mark.get("shape", "square" if kind == "square" else "circle")
        marker = list(_MARKERS.values())[group.number % 5] if "shape" in of.encoding else _MARKERS.get(shape)
        if marker is None:
            raise NotDrawn(f"points of the shape {shape}")
        x = of.where("x", rows) if "x" in of.encoding else [0.0] * len(rows)
        y = of.where("y", rows) if "y" in of.encoding else [0.0] * len(rows)
        points = Points(x, y, sizes(rows) if sizes else size, marker, filled, name=name, color=color)
        points.values, points.opacity = of.values(rows), of.opacity
        if points.values is not None:
            points.color, points.filled = None, True
        made.append(points)
    return made


def _sizes(of: View) -> Callable[[list[Row]], list[float]] | None:
    """Areas by data: from the smallest, or zero, to the largest."""
    definition = of.encoding.get("size", {})
    if not definition or "value" in definition:
        return None if not definition else lambda rows: [float(definition["value"]) * 0.56] * len(rows)
    plain = scale_of(definition).get("type") in (None, "linear") and "size" not in of.layer.table.bins
    if kind_of(definition) != "quantitative" or not plain:
        raise NotDrawn("sizes of that kind")
    found = [number(row["size"]) for row in of.rows]
    low = min([0.0, *found])
    span = (max([0.0, *found]) - low) or 1.0
    return lambda rows: [_SIZES[0] + (number(row["size"]) - low) / span * (_SIZES[1] - _SIZES[0]) for row in rows]


def _ticks(of: View) -> list[Mark]:
    base, _ = of.stands_on()
    made = _points(of)
    for mark in made:
        if isinstance(mark, Points):
            mark.marker, mark.size, mark.filled = ("|" if base == "y" else "_"), 150.0, True
    return made


def _cells(of: View) -> list[Mark]:
    made: list[Mark] = []
    for group in of.groups():
        name, color, rows = group.name, group.color, group.rows
        (left, right), (low, high) = _ends(of, "x", rows), _ends(of, "y", rows)
        middle = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
        wide = [b - a for a, b in zip(left, right, strict=True)]
        made.append(Bars(middle, low, high, wide, name=name, color=color, values=of.values(rows), opacity=of.opacity))
    return made


def _ends(of: View, channel: str, rows: list[Row]) -> tuple[list[float], list[float]]:
    middle = of.where(channel, rows)
    if f"{channel}2" in of.encoding:
        return middle, of.where(f"{channel}2", rows)
    if of.axis(channel).categories is None and channel not in of.layer.table.bins:
        raise NotDrawn("cells without edges")
    half = 0.5 if of.axis(channel).categories is not None else of.layer.table.bins[channel] / 2
    return [place - half for place in middle], [place + half for place in middle]


def _rules(of: View) -> list[Mark]:
    made: list[Mark] = []
    dashed = of.layer.mark.get("strokeDash") not in (None, [1, 0], [])
    for group in of.groups():
        name, color, rows = group.name, group.color, group.rows
        if "x" in of.encoding and "y" in of.encoding:
            x, y = of.where("x", rows), of.where("y", rows)
            x_end = of.where("x2", rows) if "x2" in of.encoding else x
            y_end = of.where("y2", rows) if "y2" in of.encoding else y
            if x_end is x and y_end is y:
                raise NotDrawn("rules without an end")
            made.append(Segments(x, y, x_end, y_end, name=name, color=color))
        elif {"x2", "y2"} & set(of.encoding):
            raise NotDrawn("rules without a place")
        else:
            upright = "x" in of.encoding
            at = list(dict.fromkeys(of.where("x" if upright else "y", rows)))
            made.append(Rules(at, upright, "--" if dashed else "-", name=name, color=color))
    return made


def _texts(of: View) -> list[Mark]:
    look = of.layer.mark
    definition = of.encoding.get("text", {"value": look.get("text")})
    made: list[Mark] = []
    for group in of.groups():
        written = [_written(definition, row.get("text")) for row in group.rows]
        texts = Texts(of.where("x", group.rows), of.where("y", group.rows), written, color=group.color)
        texts.offset = (0.75 * number(look.get("dx", 0)), -0.75 * number(look.get("dy", 0)))
        texts.align = look["align"] if look.get("align") in ("left", "right") else "center"
        texts.baseline = look["baseline"] if look.get("baseline") in ("top", "bottom") else "center"
        made.append(texts)
    return made


def _written(definition: dict[str, Any], value: Any) -> str:
    if "value" in definition:
        return name_of(definition["value"])
    form = str(definition.get("format", ""))
    if is_missing(value) or not form:
        return "" if is_missing(value) else name_of(value)
    try:
        return format(number(value), form.removesuffix("~"))
    except ValueError:
        raise NotDrawn(f"the format {form}") from None


def _boxes(of: View) -> list[Mark]:
    base, length = of.stands_on()
    extent = of.layer.mark.get("extent", 1.5)
    channel = of.by_color()
    if channel and of.encoding[channel].get("field") != of.encoding.get(base, {}).get("field"):
        raise NotDrawn("boxes side by side")
    made: list[Mark] = []
    for rows in grouped(of.rows, [base] if base in of.encoding else []):
        at = of.where(base, rows[:1])[0] if base in of.encoding else 0.0
        color = of.colors.get(category(of.layer, channel, rows[0][channel]), of.one_color) if channel else of.one_color
        whiskers = (0, 100) if extent == "min-max" else float(extent)
        made.append(BoxPlot([at], [of.where(length, rows)], whiskers, length == "x", color=color))
    return made


def _pie(of: View) -> list[Mark]:
    if set(of.encoding) - {"theta", "color", "order"} or "theta" not in of.encoding:
        raise NotDrawn("slices of that kind")
    groups = list(of.groups())
    shares = [sum(number(row["theta"]) for row in group.rows) for group in groups]
    hole = 0.5 if of.layer.mark.get("innerRadius") else 0.0
    colors = [group.color for group in groups]
    of.chart.legend = False
    return [Pie([group.name or "" for group in groups], shares, hole, percent=False, color=colors)]


_MADE: dict[str, Callable[[View], list[Mark]]] = {
    "arc": _pie,
    "area": areas,
    "bar": bars,
    "boxplot": _boxes,
    "circle": _points,
    "line": _lines,
    "point": _points,
    "rect": _cells,
    "rule": _rules,
    "square": _points,
    "text": _texts,
    "tick": _ticks,
}
