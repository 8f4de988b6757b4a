"""Reads a bokeh figure: the glyphs that most figures consist of, on one pair of axes."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

from kernelmcp_guest.shown import drawing
from kernelmcp_guest.shown.bokeh_glyph import MARKERS, Glyph, coordinate, factor_name
from kernelmcp_guest.shown.chart import (
    Area,
    Axis,
    Bars,
    Chart,
    Described,
    Line,
    NotDrawn,
    Points,
    Polygons,
    Rules,
    Segments,
    Texts,
    number,
    text,
)

_STEPS = {"before": "steps-pre", "after": "steps-post", "center": "steps-mid"}
# Parts of the picture other than glyphs.
_FRAME = ("Grid", "Legend", "LinearAxis", "LogAxis", "CategoricalAxis", "DatetimeAxis", "ColorBar", "Title")


def describe(model: Any) -> Described:
    plots = _plots(model)
    renderers = [each for plot in plots for each in plot.renderers if type(each).__name__ == "GlyphRenderer"]
    kinds = [type(each.glyph).__name__ for each in renderers]
    marks = sum(len(next(iter(each.data_source.data.values()), ())) for each in renderers)
    title = next((text(plot.title.text) for plot in plots if plot.title is not None and plot.title.text), "")
    named = "bokeh figure" if len(plots) == 1 else f"bokeh {type(model).__name__} of {len(plots)} figures"
    return Described(named, kinds, title, f"{marks:,} marks")


def _plots(model: Any) -> list[Any]:
    return [each for each in model.references() if hasattr(each, "renderers") and hasattr(each, "x_range")]


def read(model: Any) -> Chart:
    if not hasattr(model, "renderers"):
        raise NotDrawn("a layout of several parts")
    if model.extra_x_ranges or model.extra_y_ranges:
        raise NotDrawn("several axes")
    chart = Chart([], text(model.title.text) if model.title else "")
    shown = [renderer for renderer in model.renderers if renderer.visible]
    if not shown:
        raise NotDrawn("it is empty")
    chart.legend_title = next((text(legend.title) for legend in model.legend if legend.title), "")
    chart.x, chart.y = _axis(model, "x", model.below + model.above), _axis(model, "y", model.left + model.right)
    in_legend = _in_legend(model)
    for renderer in shown:
        glyph = Glyph(chart, renderer, in_legend.get(renderer.id, []))
        made = _READ.get(glyph.kind)
        if made is None:
            raise NotDrawn(f"{glyph.kind} is not drawn")
        made(glyph)
    for each in chain(model.center, model.below, model.above, model.left, model.right):
        _annotation(chart, each)
    return chart


def _axis(model: Any, name: str, sides: list[Any]) -> Axis:
    found, scale = getattr(model, f"{name}_range"), type(getattr(model, f"{name}_scale")).__name__
    title = next((each.axis_label for each in sides if hasattr(each, "axis_label") and each.axis_label), "")
    axis = Axis(text(title) if isinstance(title, str) else "", log=scale == "LogScale")
    axis.dates = any(type(each).__name__ == "DatetimeAxis" for each in sides)
    kind = type(found).__name__
    if kind == "FactorRange":
        axis.categories = [factor_name(factor) for factor in found.factors]
    elif kind == "Range1d":
        start, end = (coordinate(each, axis) for each in (found.start, found.end))
        axis.limits, axis.reversed = (min(start, end), max(start, end)), start > end
    elif kind == "DataRange1d":
        axis.reversed = bool(found.flipped)
        axis.limits = (_limit(found.start, axis), _limit(found.end, axis))
    else:
        raise NotDrawn(f"the range {kind}")
    return axis


def _limit(value: Any, axis: Axis) -> float | None:
    place = math.nan if value is None else coordinate(value, axis)
    return None if math.isnan(place) else place


def _in_legend(model: Any) -> dict[str, list[Any]]:
    """The legend items of each renderer."""
    found: dict[str, list[Any]] = {}
    for item in [item for legend in model.legend if legend.visible for item in legend.items if item.visible]:
        for renderer in item.renderers:
            found.setdefault(renderer.id, []).append(item)
    return found


def _line(of: Glyph) -> None:
    dashes = getattr(of.glyph, "line_dash", [])
    step = {"before": "steps-pre", "after": "steps-post", "center": "steps-mid"}.get(
        getattr(of.glyph, "mode", ""), "default"
    )
    width = float(of.glyph.line_width) if isinstance(of.glyph.line_width, int | float) else 1.0
    style = "--" if dashes else "-"
    of.add(Line(of.places("x"), of.places("y"), style, max(0.75, 0.75 * width), step=step), "line_color", "line_alpha")


def _lines(of: Glyph) -> None:
    colors = of.column("line_color")
    for xs, ys, color in zip(of.lists("xs"), of.lists("ys"), colors, strict=True):
        of.chart.marks.append(Line(xs, ys, color=drawing.color(color), name=of.name))


def _scatter(of: Glyph) -> None:
    markers = set(of.column("marker")) if of.kind == "Scatter" else {"circle"}
    if len(markers) > 1 or not markers <= set(MARKERS):
        raise NotDrawn("markers of that kind")
    if of.kind == "Circle" and len(set(of.column("radius"))) > 1:
        raise NotDrawn("circles of different radius")
    sizes = [(0.75 * number(each)) ** 2 for each in of.column("size")] if of.kind == "Scatter" else 30.0
    filled = any(each is not None for each in of.column("fill_color")) if _plain(of) else True
    points = Points(of.places("x"), of.places("y"), sizes, MARKERS[markers.pop()], filled)
    of.add(points, "fill_color" if filled else "line_color", "fill_alpha" if filled else "line_alpha")


def _plain(of: Glyph) -> bool:
    return type(of.glyph.fill_color).__name__ != "Field"


def _upright_bars(of: Glyph) -> None:
    at, low, high = of.places("x"), of.places("bottom"), of.places("top")
    of.add(Bars(at, low, high, _widths(of, "width", of.chart.x)))


def _lying_bars(of: Glyph) -> None:
    at, low, high = of.places("y"), of.places("left"), of.places("right")
    of.add(Bars(at, low, high, _widths(of, "height", of.chart.y), across=True))


def _widths(of: Glyph, name: str, axis: Axis) -> list[float]:
    """Widths: in milliseconds on an axis of dates, or as timedelta."""
    if getattr(of.glyph, f"{name}_units", "data") != "data":
        raise NotDrawn("widths in pixels")
    found = [
        each.total_seconds() * 1000 if hasattr(each, "total_seconds") else number(each) for each in of.column(name)
    ]
    return [each / 86_400_000 for each in found] if axis.dates else found


def _quads(of: Glyph) -> None:
    left, right = of.places("left"), of.places("right")
    middle = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
    wide = [b - a for a, b in zip(left, right, strict=True)]
    of.add(Bars(middle, of.places("bottom"), of.places("top"), wide))


def _rectangles(of: Glyph) -> None:
    if any(number(angle) for angle in of.column("angle")):
        raise NotDrawn("rectangles at an angle")
    middle = of.places("y")
    halves = [each / 2 for each in _widths(of, "height", of.chart.y)]
    low = [at - half for at, half in zip(middle, halves, strict=True)]
    high = [at + half for at, half in zip(middle, halves, strict=True)]
    of.add(Bars(of.places("x"), low, high, _widths(of, "width", of.chart.x)))


def _area(of: Glyph) -> None:
    across = of.kind == "HArea"
    at, ends = ("y", ("x1", "x2")) if across else ("x", ("y1", "y2"))
    of.add(Area(of.places(at), of.places(ends[0]), of.places(ends[1]), across))


def _patch(of: Glyph) -> None:
    if of.kind == "Patch":
        of.add(Polygons([of.places("x")], [of.places("y")]))
    else:
        of.add(Polygons(of.lists("xs"), of.lists("ys")))


def _segments(of: Glyph) -> None:
    ends = [of.places(name) for name in ("x0", "y0", "x1", "y1")]
    of.add(Segments(*ends), "line_color", "line_alpha")


def _texts(of: Glyph) -> None:
    of.add(
        Texts(of.places("x"), of.places("y"), [text(each) for each in of.column("text")]), "text_color", "text_alpha"
    )


def _spans(of: Glyph) -> None:
    upright = of.kind == "VSpan"
    of.add(Rules(of.places("x" if upright else "y"), upright), "line_color", "line_alpha")


def _annotation(chart: Chart, each: Any) -> None:
    kind = type(each).__name__
    if any(getattr(each, f"{name}_units", "data") != "data" for name in ("location", "x", "y")):
        raise NotDrawn(f"{kind} at a place in pixels")
    if kind == "Span" and each.location is not None:
        upright = each.dimension == "height"
        at = coordinate(each.location, chart.x if upright else chart.y)
        color = drawing.color(each.line_color) if isinstance(each.line_color, str) else None
        chart.marks.append(Rules([at], upright, "--" if each.line_dash else "-", color=color))
    elif kind == "Label":
        at = coordinate(each.x, chart.x), coordinate(each.y, chart.y)
        chart.marks.append(Texts([at[0]], [at[1]], [text(each.text)]))
    elif kind == "ColorBar":
        chart.values_title = text(each.title)
    elif kind not in _FRAME:
        raise NotDrawn(f"{kind} is not drawn")


_READ: dict[str, Callable[[Glyph], None]] = {
    "Circle": _scatter,
    "HArea": _area,
    "HBar": _lying_bars,
    "HSpan": _spans,
    "Line": _line,
    "MultiLine": _lines,
    "Patch": _patch,
    "Patches": _patch,
    "Quad": _quads,
    "Rect": _rectangles,
    "Scatter": _scatter,
    "Segment": _segments,
    "Step": _line,
    "Text": _texts,
    "VArea": _area,
    "VBar": _upright_bars,
    "VSpan": _spans,
}
