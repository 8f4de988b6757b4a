"""Reads a Vega-Lite specification, the content of an altair chart: one view, or layers, with their data."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import operator
import re
from collections.abc import Callable
from typing import Any, cast

from kernelmcp_guest.shown.chart import Chart, Described, NotDrawn, text
from kernelmcp_guest.shown.vega_marks import COLOR_CHANNELS, add_marks
from kernelmcp_guest.shown.vega_rows import MAX_ROWS, Definition, Row
from kernelmcp_guest.shown.vega_scales import Layer, axis_of, is_discrete, palette, title_of

_Spec = dict[str, Any]

# Properties of a view besides its content: its size, and mouse actions.
_HARMLESS = {
    "$schema", "autosize", "background", "config", "datasets", "description", "height", "name", "padding", "params",
    "title", "usermeta", "view", "width",
}  # fmt: skip
_CHANNELS = {"x", "y", "x2", "y2", "xOffset", "yOffset", "color", "size", "shape", "opacity", "detail", "text", "theta",
             "order", "strokeDash"}  # fmt: skip
_OF_A_MOUSE = {"tooltip", "href", "url", "key", "description", "cursor"}
_PARTS = ("layer", "hconcat", "vconcat", "concat")
_SEVERAL = {"concat", "facet", "hconcat", "repeat", "vconcat"}
_MAX_LAYERS = 50
_MAX_PARTS = 1_000
# altair's form of `alt.datum.x > 5`.
_COMPARISON = re.compile(
    r"\(?datum(?:\.(\w+)|\['([^'\\]+)'\]) *(===?|!==?|<=?|>=?) *(-?[\d.]+|'[^'\\]*'|true|false)\)?"
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "===": operator.eq, "!=": operator.ne, "!==": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "equal": operator.eq, "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge,
}  # fmt: skip


def describe(spec: _Spec) -> Described:
    parts = _flat(spec)
    kinds = [str(_mark(part)["type"]) for part in parts if "mark" in part]
    rows = [len(found) for found in spec.get("datasets", {}).values()]
    return Described("altair chart", kinds, text(_title(spec)), f"{sum(rows):,} rows" if rows else "")


def _flat(spec: _Spec) -> list[_Spec]:
    """A specification and its parts, up to a limit, since one could contain itself."""
    found = [spec]
    for each in found:
        inner = [part for name in _PARTS for part in each.get(name, ())]
        inner += [each["spec"]] if isinstance(each.get("spec"), dict) else []
        found += inner[: _MAX_PARTS - len(found)]
    return found


def _title(spec: _Spec) -> Any:
    title = spec.get("title")
    return title.get("text") if isinstance(title, dict) else title


def _mark(spec: _Spec) -> dict[str, Any]:
    mark = spec["mark"]
    return cast("dict[str, Any]", mark) if isinstance(mark, dict) else {"type": mark}


def read(spec: _Spec) -> Chart:
    layers = _layers(spec, {}, spec.get("datasets", {}), _selections(spec), None)
    if len(layers) > _MAX_LAYERS:
        raise NotDrawn(f"{len(layers)} layers")
    titles = [_title(each) for each in _flat(spec)]
    chart = Chart([], text(next(filter(None, titles), "")), axis_of(layers, "x"), axis_of(layers, "y"))
    colored = [layer.encoding["color"] for layer in layers if "color" in layer.encoding]
    for definition in colored:
        if is_discrete(definition):
            chart.legend_title = title_of(definition)
        else:
            chart.values_title = title_of(definition)
        chart.legend &= "legend" not in definition or definition["legend"] is not None
    colors = palette(layers, "color")
    for layer in layers:
        add_marks(chart, layer, colors)
    return chart


def _selections(spec: _Spec) -> set[str]:
    """The names of selections that are still empty."""
    params = [param for each in _flat(spec) for param in each.get("params", ())]
    return {param["name"] for param in params if "select" in param and "value" not in param}


def _layers(spec: _Spec, outer: _Spec, data: _Spec, selections: set[str], rows: list[Row] | None) -> list[Layer]:
    strange = set(spec) - _HARMLESS - {"data", "encoding", "layer", "mark", "transform", "resolve"}
    if strange or not {"layer", "mark"} & set(spec):
        raise NotDrawn(", ".join(sorted(strange & _SEVERAL or strange)) or "it has no mark")
    if "independent" in str(spec.get("resolve", "")):
        raise NotDrawn("layers with scales of their own")
    if "data" in spec:
        rows = _rows(spec["data"], data)
    for step in spec.get("transform", ()):
        rows = _filtered(rows or [], step, selections)
    encoding = {**outer, **spec.get("encoding", {})}
    if "layer" in spec:
        return [found for part in spec["layer"] for found in _layers(part, encoding, data, selections, rows)]
    return [Layer(_mark(spec), _channels(encoding, _mark(spec), selections), rows if rows is not None else [{}])]


def _rows(data: Any, datasets: _Spec) -> list[Row]:
    if not isinstance(data, dict) or set(data) - {"name", "values", "format"}:
        raise NotDrawn("data that are not in the chart")
    found = data["values"] if "values" in data else datasets.get(data.get("name", ""))
    if not isinstance(found, list) or data.get("format"):
        raise NotDrawn("data that are not in the chart")
    if len(found) > MAX_ROWS:
        raise NotDrawn(f"{len(found):,} rows, more than {MAX_ROWS:,}")
    return [row if isinstance(row, dict) else {"data": row} for row in found]


def _filtered(rows: list[Row], step: _Spec, selections: set[str]) -> list[Row]:
    if set(step) != {"filter"}:
        raise NotDrawn(f"the transformation {', '.join(sorted(set(step) - {'as', 'groupby'}))}")
    wanted = step["filter"]
    if isinstance(wanted, dict) and wanted.get("param") in selections and wanted.get("empty", True):
        return rows
    keep = _predicate(wanted)
    return [row for row in rows if keep(row)]


def _predicate(wanted: Any) -> Callable[[Row], bool]:
    if isinstance(wanted, str) and (found := _COMPARISON.fullmatch(wanted)):
        field, sign, written = found[1] or found[2], found[3], found[4]
        value: Any = written[1:-1] if written.startswith("'") else {"true": True, "false": False}.get(written)
        value = float(written) if value is None else value
        return lambda row: _holds(_COMPARE[sign], row.get(field), value)
    if isinstance(wanted, dict) and isinstance(wanted.get("field"), str) and len(wanted) == 2:
        field, (name,) = wanted["field"], set(wanted) - {"field"}
        if name == "oneOf":
            return lambda row: row.get(field) in wanted[name]
        if name == "range" and all(isinstance(end, int | float) for end in wanted[name]):
            low, high = wanted[name]
            return lambda row: _holds(operator.ge, row.get(field), low) and _holds(operator.le, row.get(field), high)
        if name in _COMPARE and isinstance(wanted[name], str | int | float):
            return lambda row: _holds(_COMPARE[name], row.get(field), wanted[name])
    raise NotDrawn("a filter of that kind")


def _holds(compare: Callable[[Any, Any], bool], found: Any, value: Any) -> bool:
    try:
        return compare(found, value)
    except TypeError:
        raise NotDrawn("a filter that compares different things") from None


def _channels(encoding: _Spec, mark: _Spec, selections: set[str]) -> dict[str, Definition]:
    """The encoded channels, with colour under one name, in the state without a selection."""
    found: dict[str, Definition] = {}
    for channel, definition in encoding.items():
        if channel in _OF_A_MOUSE or definition is None or (channel == "order" and "value" in definition):
            continue
        name = "color" if channel in COLOR_CHANNELS else channel
        if name not in _CHANNELS or isinstance(definition, list) or name in found:
            raise NotDrawn(f"the channel {channel}")
        if name == "text" and mark["type"] != "text":
            continue
        found[name] = _unconditional(definition, selections)
        if set(found[name]) & {"impute", "band", "bandPosition"}:
            raise NotDrawn(f"details of the channel {channel}")
    return found


def _unconditional(definition: Definition, selections: set[str]) -> Definition:
    condition = definition.get("condition")
    if condition is None:
        return definition
    if not isinstance(condition, dict) or condition.get("param") not in selections:
        raise NotDrawn("a condition")
    if condition.get("empty", True) is False:
        return {key: value for key, value in definition.items() if key != "condition"}
    return {key: value for key, value in condition.items() if key not in ("param", "empty")}
