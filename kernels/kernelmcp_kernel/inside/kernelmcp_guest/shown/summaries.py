"""Shows a large list, tuple, dict or set as a result: its number of items, the first and the last of them.

IPython alone shows the first thousand, one per line. numpy arrays do this themselves; for tables, see tables.py.
`print(x)` shows everything.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from IPython.lib.pretty import RepresentationPrinter

# Containers with more items than this are summarized, with this many items from each end.
MANY, SHOWN = 500, 10
# The same for containers inside a summary.
NESTED_MANY, NESTED_SHOWN = 12, 3
# Depth of nested summaries: each level is six times as large.
MAX_DEPTH = 3

Printer = Callable[[Any, RepresentationPrinter, bool], None]


def install(shell: Any) -> None:
    """Register with the plain text formatter."""
    formatter = shell.display_formatter.formatters["text/plain"]
    for kind, brackets in ((list, "[]"), (tuple, "()"), (dict, "{}"), (set, "{}"), (frozenset, "{}")):
        usual: Any = formatter.lookup_by_type(kind)
        formatter.for_type(kind, _printer(usual, kind, brackets))


def _printer(usual: Printer, kind: type, brackets: str) -> Printer:
    def show(value: Any, printer: RepresentationPrinter, cycle: bool) -> None:
        depth: int = getattr(printer, "summaries", 0)
        if cycle or len(value) <= (NESTED_MANY if depth else MANY):
            usual(value, printer, cycle)
            return
        if depth == MAX_DEPTH:
            printer.text(f"{brackets[0]}... {len(value):,} items ...{brackets[1]}")
            return
        vars(printer)["summaries"] = depth + 1
        try:
            _summarise(value, printer, kind, brackets, NESTED_SHOWN if depth else SHOWN)
        finally:
            vars(printer)["summaries"] = depth

    return show


def _summarise(value: Any, printer: RepresentationPrinter, kind: type, brackets: str, shown: int) -> None:
    is_dict = kind is dict
    items: Any = value.items() if is_dict else value
    # A set has no order, so it has no last items.
    last: list[Any] = [] if kind in (set, frozenset) else list(islice(reversed(items), shown))[::-1]
    printer.begin_group(1, brackets[0])
    for item in islice(items, shown):
        _show(item, printer, is_dict)
        printer.text(",")
        printer.breakable()
    printer.text(f"... {len(value) - shown - len(last):,} of {len(value):,} items left out ...")
    for item in last:
        printer.text(",")
        printer.breakable()
        _show(item, printer, is_dict)
    printer.end_group(1, brackets[1])


def _show(item: Any, printer: RepresentationPrinter, is_dict: bool) -> None:
    if is_dict:
        printer.pretty(item[0])
        printer.text(": ")
        item = item[1]
    printer.pretty(item)
