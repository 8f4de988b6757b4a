"""How a figure of plotly is shown where nobody can click it: a line of text, and a picture that matplotlib draws.

The interactive figure is the HTML beside it, as plotly makes it. Drawn are the kinds of traces that most figures are
made of, on one pair of axes; of others there is no picture, because a wrong one would be worse than none.
"""

import contextlib
import io
import re
from base64 import b64encode
from collections.abc import Callable
from importlib import import_module
from typing import Any

from IPython.core import display_functions

from kernelmcp_guest.packages import missing_imports

publish: Callable[[dict[str, str]], None] = vars(display_functions)["publish_display_data"]

_INCHES, _DPI = (7, 4.5), 100
_MAX_POINTS = 100_000
_MAX_TITLE_CHARS = 200
_MAX_TICKS, _MAX_TICK_CHARS = 30, 80
# What would make the picture another one.
_LEFT_OUT = ("base", "cumulative_enabled", "histnorm", "stackgroup")
_DASHES = {"dash": "--", "dot": ":", "dashdot": "-.", "longdash": "--"}


def show_by_display(renderers: Any) -> None:
    """For plotly.io._renderers: `figure.show()`, and a figure as a result, which comes here, too."""

    def show(fig: Any, *_: Any, **__: Any) -> None:
        if isinstance(fig, dict):
            fig = import_module("plotly.graph_objects").Figure(fig)
        html = fig.to_html(include_plotlyjs="cdn")
        shown = {"text/plain": _description(fig), "text/html": html, "image/png": picture(fig)}
        publish({mime: data for mime, data in shown.items() if data is not None})

    renderers.show = show


def _description(figure: Any) -> str:
    kinds = [trace.type for trace in figure.data]
    counted = [f"{kinds.count(kind)} x {kind}" if kinds.count(kind) > 1 else kind for kind in dict.fromkeys(kinds)]
    title = _text(figure.layout.title.text)
    named = f", {title!r}" if title else ""
    return f"<plotly figure: {', '.join(counted) or 'empty'}{named}>"


def picture(figure: Any) -> str | None:
    """A PNG of 700 x 450 pixels at most, in base64; None where it cannot be drawn."""
    traces = [trace for trace in figure.data if trace.visible is not False]
    histograms = [trace for trace in traces if trace.type == "histogram"]
    if not traces or not all(map(_is_drawn, traces)) or len(histograms) > 1:
        return None
    if not missing_imports.have("matplotlib"):
        return None
    drawn: Any = import_module("matplotlib.figure").Figure(figsize=_INCHES, dpi=_DPI)
    axes: Any = drawn.add_subplot()
    target = io.BytesIO()
    try:
        _bars(axes, [trace for trace in traces if trace.type == "bar"], figure.layout.barmode)
        for trace in traces:
            _DRAWN[trace.type](axes, trace)
        _label(axes, figure.layout, traces)
        drawn.savefig(target, format="png", bbox_inches="tight")
    except Exception:  # noqa: BLE001  # what a trace holds may be anything, and the figure is there all the same
        return None
    return b64encode(target.getvalue()).decode()


def _is_drawn(trace: Any) -> bool:
    """Of a kind that is drawn, on the first axes, and without what would be left out."""
    if trace.type not in _DRAWN or (trace.type == "histogram" and trace.x is not None and trace.y is not None):
        return False
    allowed = {"xaxis": (None, "x"), "yaxis": (None, "y")} | dict.fromkeys(_LEFT_OUT, (None, "", False))
    return all(getattr(trace, name, None) in values for name, values in allowed.items())


def _values(values: Any) -> list[Any]:
    found = [] if values is None else list(values)
    if len(found) > _MAX_POINTS:
        raise ValueError("that is too much for a picture")
    return found


def _color(value: Any) -> str | None:
    """A colour that both know; else matplotlib's own."""
    if isinstance(value, str) and (found := re.fullmatch(r"rgba?\((\d+), ?(\d+), ?(\d+)(?:, ?[\d.]+)?\)", value)):
        return f"#{int(found[1]):02x}{int(found[2]):02x}{int(found[3]):02x}"
    known = isinstance(value, str) and import_module("matplotlib.colors").is_color_like(value)
    return value if known else None


def _name(trace: Any) -> str | None:
    return _text(trace.name) or None


def _text(value: Any) -> str:
    return re.sub(r"<[^>]*>", "", re.sub(r"<br */?>", "\n", str(value or "")))[:_MAX_TITLE_CHARS]


def _bars(axes: Any, traces: list[Any], mode: str | None) -> None:
    """Side by side, or on top of each other, as `barmode` says."""
    grouped = mode in (None, "group") and len(traces) > 1
    stacked = not grouped and mode != "overlay"
    bars = [_bars_of(trace) for trace in traces]
    places = _places([key for keys, _ in bars for key in keys])
    ends: dict[tuple[Any, bool], float] = {}  # of what is stacked already, up and down
    width = 0.8 / len(traces) if grouped else 0.8
    for number, (trace, (keys, heights)) in enumerate(zip(traces, bars, strict=True)):
        under: list[float] = []
        for key, height in zip(keys, heights, strict=True):
            under.append(ends.get((key, height < 0), 0.0) if stacked else 0.0)
            ends[key, height < 0] = under[-1] + height
        shift = (number - (len(traces) - 1) / 2) * width if grouped else 0
        across = trace.orientation == "h"
        draw = axes.barh if across else axes.bar
        options = {"left" if across else "bottom": under, "height" if across else "width": width}
        at = [places[key] + shift for key in keys]
        draw(at, heights, label=_name(trace), color=_color(trace.marker.color), **options)
    if traces:
        every = -(-len(places) // _MAX_TICKS)
        set_ticks = axes.set_yticks if traces[0].orientation == "h" else axes.set_xticks
        names = [str(key) for key in places]
        rotation = 45 if sum(map(len, names[::every])) > _MAX_TICK_CHARS else 0
        set_ticks(list(places.values())[::every], names[::every], rotation=rotation)


def _bars_of(trace: Any) -> tuple[list[Any], list[float]]:
    across = trace.orientation == "h"
    heights = [0.0 if each is None else float(each) for each in _values(trace.x if across else trace.y)]
    return _values(trace.y if across else trace.x) or list(range(len(heights))), heights


def _places(keys: list[Any]) -> dict[Any, int]:
    """Where each category is: in the order in which they come, but numbers and dates in their own."""
    found = list(dict.fromkeys(keys))
    if not any(isinstance(key, str) for key in found):
        found.sort()
    return {key: place for place, key in enumerate(found)}


def _scatter(axes: Any, trace: Any) -> None:
    y = _values(trace.y)
    x = _values(trace.x) or list(range(len(y)))
    mode = trace.mode or ("lines+markers" if len(y) < 20 else "lines")
    color = _color(trace.line.color) or _color(trace.marker.color)
    if "markers" in mode and "lines" not in mode and not isinstance(trace.marker.color, str | None):
        axes.scatter(x, y, c=_values(trace.marker.color), s=18, label=_name(trace))
        return
    axes.plot(
        x,
        y,
        linestyle=_DASHES.get(trace.line.dash or "", "-") if "lines" in mode else "",
        marker="o" if "markers" in mode else "",
        markersize=4,
        color=color,
        label=_name(trace),
    )
    if trace.fill in ("tozeroy", "tonexty"):
        axes.fill_between(x, [float(each) for each in y], alpha=0.3, color=color)


def _histogram(axes: Any, trace: Any) -> None:
    across = trace.x is None
    bins = trace.nbinsy if across else trace.nbinsx
    orientation = "horizontal" if across else "vertical"
    values = _values(trace.y if across else trace.x)
    axes.hist(values, bins=bins or "auto", orientation=orientation, label=_name(trace), alpha=0.8)


def _box(axes: Any, trace: Any) -> None:
    groups: dict[Any, list[Any]] = {}
    values = _values(trace.y)
    for key, value in zip(_values(trace.x) or [trace.name or ""] * len(values), values, strict=False):
        groups.setdefault(key, []).append(value)
    first = round(axes.dataLim.x1) + 1 if axes.lines else 1  # behind those of other traces
    places = range(first, first + len(groups))
    axes.boxplot(list(groups.values()), positions=places, tick_labels=list(map(str, groups)))


def _pie(axes: Any, trace: Any) -> None:
    shares: dict[str, float] = {}
    for label, value in zip(map(str, _values(trace.labels)), _values(trace.values), strict=True):
        shares[label] = shares.get(label, 0.0) + float(value)
    axes.pie(list(shares.values()), labels=list(shares), autopct="%.1f%%")


def _nothing(axes: Any, trace: Any) -> None:
    """Bars are drawn all together."""


def _heatmap(axes: Any, trace: Any) -> None:
    rows = [[float(each) for each in row] for row in _values(trace.z)]
    image = axes.imshow(rows, aspect="auto", origin="lower")
    for names, set_ticks in ((trace.x, axes.set_xticks), (trace.y, axes.set_yticks)):
        if names is not None and len(names) <= 30:
            set_ticks(range(len(names)), [str(name) for name in names])
    axes.figure.colorbar(image)


_DRAWN: dict[str, Callable[[Any, Any], None]] = {
    "bar": _nothing,
    "scatter": _scatter,
    "scattergl": _scatter,
    "histogram": _histogram,
    "box": _box,
    "pie": _pie,
    "heatmap": _heatmap,
}


def _label(axes: Any, layout: Any, traces: list[Any]) -> None:
    axes.set_title(_text(layout.title.text))
    axes.set_xlabel(_text(layout.xaxis.title.text))
    axes.set_ylabel(_text(layout.yaxis.title.text))
    for axis, invert in ((layout.xaxis, axes.invert_xaxis), (layout.yaxis, axes.invert_yaxis)):
        if axis.autorange == "reversed":
            invert()
    if "Date" in type(axes.xaxis.get_major_locator()).__name__:
        axes.figure.autofmt_xdate()
    with contextlib.suppress(ValueError):
        if layout.xaxis.type == "log":
            axes.set_xscale("log")
        if layout.yaxis.type == "log":
            axes.set_yscale("log")
    if any(trace.showlegend is not False and trace.name for trace in traces if trace.type != "pie") and len(traces) > 1:
        axes.legend()
