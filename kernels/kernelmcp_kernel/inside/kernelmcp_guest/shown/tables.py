"""Shows a DataFrame as a result: pandas' own text, with as many columns as fit and each row on one line.

pandas itself breaks lines at 80 characters, into blocks that repeat the index, and omits columns after the twentieth;
and it shows sixty rows of any width, the middle of which a result's budget then cuts. If the user sets one of pandas'
options, it applies. Notebooks show the HTML, which is unchanged.
"""

import sys
from typing import Any, cast

from IPython.lib.pretty import RepresentationPrinter

# Character limits for the rows and columns that pandas would show, and for more columns.
MAX_CHARS, MAX_WIDE_CHARS = 7_000, 4_000
# Minimum width of a column with its space: detects tables that are too large without formatting them.
_MIN_COLUMN_CHARS = 4
# pandas' defaults; other values are the user's.
_DEFAULTS = {
    "display.max_rows": 60,
    "display.min_rows": 10,
    "display.max_columns": 20,
    "display.width": 80,
    "display.expand_frame_repr": True,
    "display.large_repr": "truncate",
}
# Rows and columns (None: all), in decreasing order.
_USUAL_COLUMNS = 20
_BETWEEN = " | "
_SHAPES = ((60, None), (60, _USUAL_COLUMNS), (10, None), (10, _USUAL_COLUMNS))


def install(shell: Any) -> None:
    """Register with the plain text formatter."""
    formatter = shell.display_formatter.formatters["text/plain"]
    for module in ("pandas", "pandas.core.frame"):  # depends on pandas' version
        formatter.for_type_by_name(module, "DataFrame", _show)
    formatter.for_type_by_name("pandas.io.formats.style", "Styler", _show_styler)


def _show(frame: Any, printer: RepresentationPrinter, cycle: bool) -> None:
    _print(_text(frame, nested=len(cast("list[int]", printer.stack)) > 1), printer)


def _show_styler(styler: Any, printer: RepresentationPrinter, cycle: bool) -> None:
    _print(_styled_text(styler), printer)


def _print(text: str, printer: RepresentationPrinter) -> None:
    for number, line in enumerate(text.split("\n")):
        if number:
            printer.break_()
        printer.text(line.rstrip())  # a multi-line header has trailing spaces


def _styled_text(styler: Any) -> str:
    """Text with the Styler's formats and caption, but without its colours, which are in the HTML."""
    rows, columns = styler.data.shape
    shown = rows if rows <= _SHAPES[0][0] else 10
    text = styler.to_string(delimiter=_BETWEEN, max_rows=shown, max_columns=_USUAL_COLUMNS)
    if len(text) > MAX_CHARS:
        text, shown = styler.to_string(delimiter=_BETWEEN, max_rows=10, max_columns=10)[:MAX_CHARS], 10
    caption = f"{styler.caption}\n" if isinstance(styler.caption, str) else ""
    whole = shown == rows and columns <= _USUAL_COLUMNS
    return f"{caption}{text.rstrip()}" + ("" if whole else f"\n\n[{rows} rows x {columns} columns]")


def _text(frame: Any, *, nested: bool) -> str:
    pandas = sys.modules["pandas"]
    if nested or any(pandas.get_option(name) != value for name, value in _DEFAULTS.items()):
        return repr(frame)
    rows, columns = frame.shape
    for max_rows, max_columns in _SHAPES:
        limit = MAX_WIDE_CHARS if max_columns is None and columns > _USUAL_COLUMNS else MAX_CHARS
        shown = rows if rows <= max_rows else 10
        if shown * min(columns, max_columns or columns) * _MIN_COLUMN_CHARS <= limit:
            text = _as_shape(pandas, frame, max_rows, max_columns)
            if len(text) <= limit:
                return text
    return _as_shape(pandas, frame, 10, 10)


def _as_shape(pandas: Any, frame: Any, max_rows: int, max_columns: int | None) -> str:
    options = ("display.expand_frame_repr", False, "display.max_rows", max_rows, "display.max_columns", max_columns)
    with pandas.option_context(*options):
        return repr(frame)
