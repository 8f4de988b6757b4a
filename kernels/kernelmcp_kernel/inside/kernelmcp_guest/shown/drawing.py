"""Draws a chart (chart_model.py) with matplotlib, as a PNG: its marks, axes and legend."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import io
import math
import statistics
import warnings
from base64 import b64encode
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kernelmcp_guest.shown.chart_model import (
    Area,
    Axis,
    Bars,
    BoxPlot,
    Chart,
    Grid,
    Histogram,
    Line,
    Mark,
    NotDrawn,
    Pie,
    Points,
    Rules,
    Texts,
)

_DPI = 100
MAX_POINTS, MAX_SHAPES = 100_000, 2_000
_COLORED = (Line, Points, Area, Histogram, Bars)
# Mark types that are a single matplotlib object, whatever their size.
_CHEAP = (Line, Points, Area, Grid, Histogram)
_MAX_BINS = 2_000
_INCHES = (7.0, 4.5)
_MAX_INCHES_HIGH, _INCHES_A_NAME = 9.0, 0.2
# Maximum size of a picture, including the text around its axes.
_MAX_INCHES = 16.0
_MAX_TICKS, _MAX_TICK_CHARS, _MAX_NAME_CHARS = 30, 80, 40
_MAX_IN_LEGEND = 20


def picture(chart: Chart) -> str:
    """The picture in base64, with a legend beside it. Raises NotDrawn, and matplotlib's errors for the contents."""
    _check(chart)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would be about our code, for a user who has not called it
        return _drawn(chart)


def _check(chart: Chart) -> None:
    """Check that matplotlib can draw it within seconds. Raises NotDrawn."""
    if not any(mark.count() for mark in chart.marks):
        raise NotDrawn("it is empty")
    cheap = [mark for mark in chart.marks if isinstance(mark, _CHEAP)]
    points = sum(mark.count() for mark in cheap)
    shapes = len(cheap) + sum(mark.count() for mark in chart.marks if not isinstance(mark, _CHEAP))
    bins = max((mark.bins or 0 for mark in chart.marks if isinstance(mark, Histogram)), default=0)
    for found, what, most in (
        (points, "marks of these kinds", MAX_POINTS),
        (shapes, "marks of these kinds", MAX_SHAPES),
        (bins, "bins", _MAX_BINS),
    ):
        if found > most:
            raise NotDrawn(f"{found:,} {what}, more than {most:,}")


def _drawn(chart: Chart) -> str:
    drawn: Any = import_module("matplotlib.figure").Figure(figsize=_size_of(chart), dpi=_DPI)
    axes: Any = drawn.add_subplot()
    for number, mark in enumerate(chart.marks):
        if mark.color is None and isinstance(mark, _COLORED):
            mark.color = f"C{number % 10}"  # matplotlib itself counts lines and bars apart
        _DRAWN[type(mark)](axes, mark, chart)
    axes.set_title(chart.title, parse_math=False)
    for side, axis, across in (("x", chart.x, False), ("y", chart.y, True)):
        _draw_axis(axes, side, axis, across=across)
    if chart.legend:
        _draw_legend(axes, chart)
    target = io.BytesIO()
    drawn.savefig(target, format="png", dpi=_DPI, bbox_inches=_edges(drawn))
    return b64encode(target.getvalue()).decode()


def _size_of(chart: Chart) -> tuple[float, float]:
    """Size in inches, without the text around the axes."""
    names = min(len(chart.y.categories or ()), 2 * _MAX_TICKS)
    return _INCHES[0], max(_INCHES[1], min(_MAX_INCHES_HIGH, names * _INCHES_A_NAME))


def _edges(drawn: Any) -> Any:
    """The edges of everything drawn, except parts far outside."""
    around = drawn.get_tightbbox().padded(0.1)
    wide, high = ((_MAX_INCHES - size) / 2 for size in drawn.get_size_inches())
    box = import_module("matplotlib.transforms").Bbox
    return box.intersection(around, box.from_bounds(-wide, -high, _MAX_INCHES, _MAX_INCHES))


def _draw_axis(axes: Any, side: str, axis: Axis, *, across: bool) -> None:
    getattr(axes, f"set_{side}label")(axis.title, parse_math=False)
    drawn = getattr(axes, f"{side}axis")
    if axis.categories is not None:
        names = [name[:_MAX_NAME_CHARS] for name in axis.categories]
        every = max(1, -(-len(names) // (_MAX_TICKS * (2 if across else 1))))
        rotation = 45 if not across and sum(map(len, names[::every])) > _MAX_TICK_CHARS else 0
        aligned = {"ha": "right", "rotation_mode": "anchor"} if rotation else {}
        drawn.set_ticks(range(0, len(names), every), names[::every], rotation=rotation, parse_math=False, **aligned)
    elif axis.dates:
        getattr(axes, f"{side}axis_date")()
        dates = import_module("matplotlib.dates")
        locator = dates.AutoDateLocator(maxticks=8)
        drawn.set_major_locator(locator)
        drawn.set_major_formatter(dates.ConciseDateFormatter(locator))
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")
    low, high = axis.limits
    if low is not None or high is not None:
        getattr(axes, f"set_{side}lim")(low, high)
    if axis.reversed:
        drawn.set_inverted(True)


def _draw_legend(axes: Any, chart: Chart) -> None:
    """Draw the legend beside the picture, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    first: dict[str, Any] = {}
    for handle, name in zip(handles, names, strict=True):
        first.setdefault(name.removeprefix(" "), handle)
    if not first:
        return
    shown = list(first)[:_MAX_IN_LEGEND]
    more = f" (the first {_MAX_IN_LEGEND} of {len(first)})" if len(shown) < len(first) else ""
    beside = 1.2 if len(axes.figure.axes) > 1 else 1.01
    handles = [first[name] for name in shown]
    named = [name[:_MAX_NAME_CHARS] for name in shown]
    legend = axes.legend(handles, named, title=chart.legend_title + more or None, loc="upper left",
                         bbox_to_anchor=(beside, 1.0))  # fmt: skip
    for written in (legend.get_title(), *legend.get_texts()):
        written.set_parse_math(False)


def color(value: Any) -> str | None:
    """A colour that matplotlib also knows; otherwise None, for one of matplotlib's own."""
    if not isinstance(value, str):
        return None
    inner = value.strip().lower()
    if inner.startswith(("rgb(", "rgba(")) and inner.endswith(")"):
        parts = [float(part) for part in inner.partition("(")[2][:-1].split(",")]
        parts[3:] = [255 * opacity for opacity in parts[3:]]
        return "#" + "".join(f"{min(255, max(0, round(part))):02x}" for part in parts)
    return value if import_module("matplotlib.colors").is_color_like(value) else None


def _label(mark: Mark) -> str | None:
    """The label with a leading space, because matplotlib omits names that begin with an underscore from the legend."""
    return mark.name and f" {mark.name}"


def _options(mark: Mark) -> dict[str, Any]:
    found: dict[str, Any] = {"label": _label(mark)}
    if mark.color is not None:
        found["color"] = _faded(mark.color, mark.opacity)
    elif mark.opacity != 1.0:
        found["alpha"] = mark.opacity
    return found


def _faded(colors: Any, opacity: float) -> Any:
    """Colours, or one, times an opacity: beside `alpha`, matplotlib would ignore the opacity of a colour."""
    if not isinstance(colors, str | None):
        return [_faded(each, opacity) for each in colors]
    red, green, blue, alpha = import_module("matplotlib.colors").to_rgba(colors)
    return red, green, blue, alpha * opacity


def _scale_of_colors(axes: Any, values: list[float], title: str) -> Any:
    """Draw the scale beside the picture; return the mapping from values to colours."""
    low = min((value for value in values if not math.isnan(value)), default=0.0)
    high = max((value for value in values if not math.isnan(value)), default=1.0)
    scale = import_module("matplotlib.cm").ScalarMappable(import_module("matplotlib.colors").Normalize(low, high))
    scale.set_array(values)
    axes.figure.colorbar(scale, ax=axes).ax.set_ylabel(title, parse_math=False)
    return scale


def _bars(axes: Any, mark: Bars, chart: Chart) -> None:
    options = _options(mark)
    if mark.values is not None:
        options["color"] = _scale_of_colors(axes, mark.values, chart.values_title).to_rgba(mark.values, mark.opacity)
    lengths = [high - low for low, high in zip(mark.low, mark.high, strict=True)]
    if mark.across:
        axes.barh(mark.at, lengths, left=mark.low, height=mark.width, **options)
    else:
        axes.bar(mark.at, lengths, bottom=mark.low, width=mark.width, **options)


def _line(axes: Any, mark: Line, _: Chart) -> None:
    markers = "o" if mark.markers else ""
    axes.plot(mark.x, mark.y, linestyle=mark.style, marker=markers, markersize=4, **_options(mark))


def _points(axes: Any, mark: Points, chart: Chart) -> None:
    options = _options(mark)
    if mark.values is not None:
        scale = _scale_of_colors(axes, mark.values, chart.values_title)
        options["color"] = scale.to_rgba(mark.values, mark.opacity)
    axes.scatter(mark.x, mark.y, s=mark.size, marker=mark.marker, linewidths=0.8, **options)


def _area(axes: Any, mark: Area, _: Chart) -> None:
    axes.fill_between(mark.x, mark.low, mark.high, **_options(mark))


def _histogram(axes: Any, mark: Histogram, _: Chart) -> None:
    orientation = "horizontal" if mark.across else "vertical"
    samples = [sample for sample in mark.samples if not math.isnan(sample)]
    bins = min(mark.bins or _bins(samples), _MAX_BINS)
    axes.hist(samples, bins=bins, orientation=orientation, histtype="stepfilled", **_options(mark))


def _bins(samples: list[float]) -> int:
    """A suitable number of bins, by numpy's rule, but limited: a single distant sample would require any number."""
    if len(samples) < 2 or min(samples) == max(samples):
        return 1
    low, _, high = statistics.quantiles(samples)
    width = 2 * (high - low) / len(samples) ** (1 / 3)
    least = math.ceil(math.log2(len(samples)) + 1)
    return max(least, math.ceil(min((max(samples) - min(samples)) / width, _MAX_BINS))) if width else least


def _box_plot(axes: Any, mark: BoxPlot, _: Chart) -> None:
    groups = [[value for value in group if not math.isnan(value)] for group in mark.groups]
    shape = {"facecolor": _faded(mark.color, mark.opacity) if isinstance(mark.color, str) else "none"}
    boxes = axes.boxplot(groups, positions=mark.at, widths=0.5, patch_artist=True, boxprops=shape, manage_ticks=False)
    if mark.name and boxes["boxes"]:
        boxes["boxes"][0].set_label(_label(mark))


def _grid(axes: Any, mark: Grid, chart: Chart) -> None:
    low, high = mark.limits
    image = axes.imshow(mark.rows, aspect="auto", origin="lower", interpolation="nearest", vmin=low, vmax=high)
    axes.figure.colorbar(image).ax.set_ylabel(chart.values_title, parse_math=False)


def _pie(axes: Any, mark: Pie, _: Chart) -> None:
    colors = mark.color if isinstance(mark.color, list) else None
    shape = {"width": 1 - mark.hole} if mark.hole else None
    labels = [label[:_MAX_NAME_CHARS] for label in mark.labels]
    axes.pie(mark.shares, labels=labels, autopct="%.1f%%", colors=colors, wedgeprops=shape, startangle=90,
             counterclock=False, textprops={"parse_math": False})  # fmt: skip


def _rules(axes: Any, mark: Rules, _: Chart) -> None:
    for number, at in enumerate(mark.at):
        options = _options(mark) | ({"label": None} if number else {})
        (axes.axvline if mark.upright else axes.axhline)(at, linestyle=mark.style, **({"color": "black"} | options))


def _texts(axes: Any, mark: Texts, _: Chart) -> None:
    one = mark.color if isinstance(mark.color, str) else "black"
    for x, y, written in zip(mark.x, mark.y, mark.texts, strict=True):
        axes.annotate(
            written[:_MAX_NAME_CHARS], (x, y), xytext=(0.0, 8.0), textcoords="offset points", ha="center",
            va="center", color=one, fontsize=8, parse_math=False, annotation_clip=False,
        )  # fmt: skip
    axes.update_datalim(list(zip(mark.x, mark.y, strict=True)))
    axes.autoscale_view()


_DRAWN: dict[type[Mark], Callable[[Any, Any, Chart], None]] = {
    Area: _area,
    Bars: _bars,
    BoxPlot: _box_plot,
    Grid: _grid,
    Histogram: _histogram,
    Line: _line,
    Pie: _pie,
    Points: _points,
    Rules: _rules,
    Texts: _texts,
}
