"""Draws a chart's surroundings: axes and legend; and determines the edges of the picture."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from importlib import import_module
from typing import Any

from kernelmcp_guest.shown.chart import Axis, Chart

_INCHES = (7.0, 4.5)
_MAX_INCHES_HIGH, _INCHES_A_NAME = 9.0, 0.2
# Maximum size of a picture, including the text around its axes.
_MAX_INCHES = 16.0
_MAX_TICKS, _MAX_TICK_CHARS, MAX_NAME_CHARS = 30, 80, 40
_MAX_IN_LEGEND = 20


def size_of(chart: Chart) -> tuple[float, float]:
    """Size in inches, without the text around the axes."""
    names = min(len(chart.y.categories or ()), 2 * _MAX_TICKS)
    return _INCHES[0], max(_INCHES[1], min(_MAX_INCHES_HIGH, names * _INCHES_A_NAME))


def edges(drawn: Any) -> Any:
    """The edges of everything drawn, except parts far outside."""
    around = drawn.get_tightbbox().padded(0.1)
    wide, high = ((_MAX_INCHES - size) / 2 for size in drawn.get_size_inches())
    box = import_module("matplotlib.transforms").Bbox
    return box.intersection(around, box.from_bounds(-wide, -high, _MAX_INCHES, _MAX_INCHES))


def draw_axis(axes: Any, side: str, axis: Axis, *, across: bool) -> None:
    getattr(axes, f"set_{side}label")(axis.title, parse_math=False)
    drawn = getattr(axes, f"{side}axis")
    if axis.categories is not None:
        names = [name[:MAX_NAME_CHARS] for name in axis.categories]
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


def draw_legend(axes: Any, chart: Chart) -> None:
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
    named = [name[:MAX_NAME_CHARS] for name in shown]
    legend = axes.legend(handles, named, title=chart.legend_title + more or None, loc="upper left",
                         bbox_to_anchor=(beside, 1.0))  # fmt: skip
    for written in (legend.get_title(), *legend.get_texts()):
        written.set_parse_math(False)
