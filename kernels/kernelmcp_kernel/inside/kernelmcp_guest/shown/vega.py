"""Charts of altair, as Vega-Lite specifications: what a line of text says about one, and its picture, drawn by Vega."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
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
        raise NotDrawn(f"{rows:,} rows, more than {_MAX_ROWS:,}")
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


def _parts(spec: _Spec) -> Iterator[tuple[_Spec, int]]:
    """A specification and its parts, and the rows that each draws, counted again for each repetition. Up to a limit,
    since a specification could contain itself."""
    datasets: dict[str, list[Any]] = spec.get("datasets", {})
    waiting: list[tuple[_Spec, float, int, list[Any]]] = [(spec, 0, 1, [])]
    for part, rows, times, values in waiting:
        data = part.get("data")
        if isinstance(data, dict):
            found = data["values"] if "values" in data else datasets.get(data.get("name", ""))
            values = found if isinstance(found, list) else []
            rows = len(values)
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError):  # Vega refuses it as well
            rows = _generated(data) or rows
            for transform in part.get("transform", ()):
                rows = _after(transform, rows, values)
        repeated = part.get("repeat", ())
        times *= prod(map(len, repeated.values())) if isinstance(repeated, dict) else max(1, len(repeated))
        yield part, round(rows * times)
        inner = [each for name in _PARTS for each in part.get(name, ())]
        inner += [part["spec"]] if isinstance(part.get("spec"), dict) else []
        waiting += [(each, rows, times, values) for each in inner[: _MAX_PARTS - len(waiting)]]


def _generated(data: Any) -> float:
    """The rows of data that Vega makes itself; more than may be for lines of a map at steps of their own."""
    if not isinstance(data, dict):
        return 0
    if (sequence := data.get("sequence")) is not None:
        return (sequence["stop"] - sequence["start"]) / (sequence.get("step") or 1)
    return _MAX_ROWS + 1 if isinstance(data.get("graticule"), dict) else 0


def _after(transform: _Spec, rows: float, values: list[Any]) -> float:
    """At most so many rows a transform makes of these. `values`: the data that they began as."""
    if "fold" in transform:
        return rows * len(transform["fold"])
    if "flatten" in transform:
        fields = transform["flatten"]
        return max(rows, sum(max(len(row.get(field) or ()) for field in fields) for row in values))
    if "density" in transform:
        steps = max(transform.get("steps") or 0, transform.get("maxsteps") or 0, 200)
        return steps * _groups(values, transform.get("groupby", ()))
    if "quantile" in transform:
        most = max(1 / (transform.get("step") or 0.01), len(transform.get("probs", ())))
        return most * _groups(values, transform.get("groupby", ()))
    if "impute" in transform:
        return _groups(values, [transform["key"]]) * _groups(values, transform.get("groupby", ()))
    return rows


def _groups(values: list[Any], fields: Sequence[str]) -> int:
    return len({tuple(str(row.get(field)) for field in fields) for row in values}) or 1
