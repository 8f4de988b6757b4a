"""Charts of altair, as Vega-Lite specifications: what a line of text says about one, and its picture, drawn by Vega."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
from collections.abc import Callable, Iterator, Sequence
from math import inf, prod
from typing import Any, cast

from pyodide.ffi import JsException

from kernelmcp_guest.bridge import bridge
from kernelmcp_guest.shown.chart_model import Described, NotDrawn, text

_Spec = dict[str, Any]

_PARTS = ("layer", "hconcat", "vconcat", "concat")
_MAX_PARTS = 1_000
# Vega draws 20,000 points in a second, with 110 of the 256 MB that JavaScript has in a guest. It cannot be interrupted.
_MAX_ROWS = 20_000
_MAX_CHARS = 8 * 1024 * 1024
_MAX_REASON_CHARS = 200


def describe(spec: _Spec) -> Described:
    parts = [part for part, _ in _parts(spec)]
    kinds = [_mark(part) for part in parts if "mark" in part]
    title = next(filter(None, map(_title, parts)), "")
    rows = sum(map(len, spec.get("datasets", {}).values()))
    return Described("altair chart", kinds, text(title), f"{rows:,} rows" if rows else "")


def picture(spec: _Spec) -> str:
    """The chart as SVG. Raises NotDrawn."""
    rows = sum(count for part, count in _parts(spec) if "mark" in part)
    if rows > _MAX_ROWS:
        raise NotDrawn(f"{rows:,.0f} rows, more than {_MAX_ROWS:,}" if rows < inf else f"more than {_MAX_ROWS:,} rows")
    written = json.dumps(spec)
    if len(written) > _MAX_CHARS:
        raise NotDrawn(f"{len(written) / 1e6:,.0f} MB of data, more than {_MAX_CHARS / 1e6:,.0f}")
    try:
        drawn = bridge.draw_chart(written)
    except JsException as error:
        raise NotDrawn(str(error).removeprefix("Error: ")[:_MAX_REASON_CHARS]) from None
    if len(drawn) > _MAX_CHARS:
        raise NotDrawn(f"a picture of {len(drawn) / 1e6:,.0f} MB, more than {_MAX_CHARS / 1e6:,.0f}")
    return drawn


def _title(spec: _Spec) -> Any:
    title = spec.get("title")
    return title.get("text") if isinstance(title, dict) else title


def _mark(spec: _Spec) -> str:
    mark = spec["mark"]
    return str(cast("_Spec", mark)["type"] if isinstance(mark, dict) else mark)


def _parts(spec: _Spec) -> Iterator[tuple[_Spec, float]]:
    """A specification and its parts, and the rows that each draws at most, counted again for each repetition; infinite
    if that is not known. Up to a limit, since a specification could contain itself."""
    datasets: dict[str, list[Any]] = spec.get("datasets", {})
    waiting: list[tuple[_Spec, float, int, list[Any]]] = [(spec, 0, 1, [])]
    for part, rows, times, values in waiting:
        data = part.get("data")
        if isinstance(data, dict):
            found = data["values"] if "values" in data else datasets.get(data.get("name", ""))
            values = found if isinstance(found, list) else []
            rows = _generated(data) or len(values)
        encoding = part.get("encoding")
        channels = encoding.values() if isinstance(encoding, dict) else ()
        for transform in (*part.get("transform", ()), *channels):
            rows = _after(transform, rows, values)
        repeated = part.get("repeat", ())
        times *= prod(map(len, repeated.values())) if isinstance(repeated, dict) else max(1, len(repeated))
        yield part, rows * times
        inner = [each for name in _PARTS for each in part.get(name, ())]
        inner += [part["spec"]] if isinstance(part.get("spec"), dict) else []
        waiting += [(each, rows, times, values) for each in inner[: _MAX_PARTS - len(waiting)]]


def _counted(count: Callable[..., float]) -> Callable[..., float]:
    """With a result of at least 0; infinite if it cannot be computed."""

    def counted(*given: Any) -> float:
        try:
            return max(0, found) if (found := count(*given)) == found else inf
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return inf

    return counted


@_counted
def _generated(data: _Spec) -> float:
    """The rows of data that Vega makes itself: numbers, or points of the lines of a map."""
    if (sequence := data.get("sequence")) is not None:
        return _steps(sequence)
    if isinstance(lines := data.get("graticule"), dict):
        step = min(float(each) for name in ("step", "stepMajor", "stepMinor") for each in lines.get(name, (10, 10)))
        return 540 / step * (180 / float(lines.get("precision", 2.5)))
    return 0


@_counted
def _after(transform: Any, rows: float, values: list[Any]) -> float:
    """The rows that a transform, or a channel, makes of these. `values`: the data that they began as."""
    if not isinstance(transform, dict):
        return rows
    groups = transform.get("groupby", ())
    if "fold" in transform:
        return rows * len(transform["fold"])
    if "flatten" in transform:
        fields = transform["flatten"]
        return max(rows, sum(max(len(row.get(field) or ()) for field in fields) for row in values))
    if "density" in transform:
        return max(200, *(float(transform.get(name) or 0) for name in ("steps", "maxsteps"))) * _groups(values, groups)
    if "quantile" in transform:
        most = max(1 / float(transform.get("step") or 0.01), len(transform.get("probs", ())))
        return most * _groups(values, groups)
    if "impute" in transform:
        given = transform["impute"] if isinstance(transform["impute"], dict) else transform
        keys = given.get("keyvals", ())
        added = _steps(keys) if isinstance(keys, dict) else len(keys)
        own = _groups(values, [transform["key"]]) if "key" in transform else len(values) or 1
        return (own + added) * (_groups(values, groups) if groups else 1) if added or "key" in transform else rows
    return rows


def _steps(sequence: _Spec) -> float:
    start, stop, step = (float(sequence.get(name, least)) for name, least in (("start", 0), ("stop", 0), ("step", 1)))
    return (stop - start) / step


def _groups(values: list[Any], fields: Sequence[str]) -> int:
    return len({tuple(str(row.get(field)) for field in fields) for row in values}) or 1
