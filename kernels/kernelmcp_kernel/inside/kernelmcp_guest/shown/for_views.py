"""More forms of an object, for a client whose user sees it in a page: the rows of a table, the data of a chart.

They are added only to a cell whose request asks for them, under one mime type, which the server takes out: results,
notebooks and other clients never have them.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

VIEW_TYPE = "application/vnd.kernelmcp.view+json"
TABLE = "application/vnd.dataresource+json"
# Of a table, the first rows, as many as fit.
MAX_ROWS = 2_000
MAX_TABLE_CHARS = 500_000
MIN_ROWS = 10
MAX_CHART_CHARS = 4_000_000
# pandas' HTML has all of a smaller table.
_HTML_ROWS, _HTML_COLUMNS = 60, 20
# A browser's numbers are exact up to here.
_MAX_EXACT = 2**53
# Of a number in what `to_json` makes.
_JSON_DECIMALS = 10

Bundle = dict[str, Any]


class _Wanted:
    """Whether the running cell's request asks for them."""

    now = False


wanted = _Wanted()


def install(shell: Any) -> None:
    """Register with the formatter of whole bundles: what it gives is added to the other forms."""
    formatter = shell.display_formatter.mimebundle_formatter
    for module in ("pandas", "pandas.core.frame"):  # depends on pandas' version
        formatter.for_type_by_name(module, "DataFrame", _bundle)


def chart(kind: str, make: Callable[[], Any]) -> Bundle:
    """The data of a chart; nothing if they are not wanted, or too many."""
    if not wanted.now:
        return {}
    try:
        data = make()
        fits = len(json.dumps(data)) <= MAX_CHART_CHARS
    except Exception:  # noqa: BLE001  # what a chart holds may be anything, and its picture is there all the same
        return {}
    return {VIEW_TYPE: {kind: data}} if fits else {}


def _bundle(frame: Any) -> tuple[Bundle, Bundle]:
    return _of_frame(frame), {}


def _of_frame(frame: Any) -> Bundle:
    rows, columns = frame.shape
    if not wanted.now or (rows <= _HTML_ROWS and columns <= _HTML_COLUMNS):
        return {}
    count = min(rows, MAX_ROWS)
    try:
        part = _exact(frame.head(count))
        text = _to_json(part)
        while len(text) > MAX_TABLE_CHARS and count > MIN_ROWS:
            count = max(MIN_ROWS, count * MAX_TABLE_CHARS // len(text) - 1)
            text = _to_json(part.head(count))
    except Exception:  # noqa: BLE001  # names that occur twice, whatever an object's text raises: its HTML is there
        return {}
    return {VIEW_TYPE: {TABLE: {**json.loads(text), "rows": rows}}} if len(text) <= MAX_TABLE_CHARS else {}


def _to_json(frame: Any) -> str:
    # Without a default, it walks the attributes of an unknown object, and theirs.
    return frame.to_json(orient="table", date_format="iso", date_unit="us", default_handler=str)


def _exact(frame: Any) -> Any:
    """The frame with text for what JSON does not have, and where it or a browser would round. Raises ValueError for
    names that are the same as text: JSON would have one of their columns."""
    names = [str(name) for name in (*frame.columns, *frame.index.names) if name is not None]
    if len(set(names)) < len(names):
        raise ValueError("names that occur twice")
    found = frame.copy(deep=False)
    for name in frame:
        found[name] = _exact_values(frame[name])
    levels = [_exact_values(frame.index.get_level_values(place).to_series()) for place in range(frame.index.nlevels)]
    found = found.set_index(levels)
    found.index.names = frame.index.names
    return found


def _exact_values(values: Any) -> Any:
    return values if _is_exact(values) else values.astype(object).map(_in_digits)


def _is_exact(values: Any) -> bool:
    pandas = sys.modules["pandas"]
    types, known = pandas.api.types, values.dropna()
    if types.is_integer_dtype(values.dtype):
        return not ((known > _MAX_EXACT) | (known < -_MAX_EXACT)).any()
    if types.is_float_dtype(values.dtype):
        return not ((known.round(_JSON_DECIMALS) != known).any() or (known.abs() == float("inf")).any())
    is_text = isinstance(values.dtype, pandas.StringDtype)
    return is_text or types.is_bool_dtype(values.dtype) or types.is_datetime64_dtype(values.dtype)


def _in_digits(value: Any) -> str | None:
    pandas = sys.modules["pandas"]
    if pandas.api.types.is_scalar(value) and pandas.isna(value):
        return None
    return repr(float(value)) if isinstance(value, float) else str(value)
