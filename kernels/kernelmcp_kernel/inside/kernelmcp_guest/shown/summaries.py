"""How a large list, tuple, dict or set is shown as a result: how many items it has, the first and the last of them.

IPython alone shows the first thousand, one per line. Arrays (numpy) do this by themselves; tables: tables.py.
`print(x)` shows all of it.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from IPython.lib.pretty import RepresentationPrinter

# More items than this are summarised, and so many of each end are shown.
MANY, SHOWN = 500, 10
# The same in what a summary shows.
NESTED_MANY, NESTED_SHOWN = 12, 3
# Summaries in summaries: each is six times as much.
MAX_DEPTH = 3

Printer = Callable[[Any, RepresentationPrinter, bool], None]


def install(shell: Any) -> None:
    """Teach the formatter of plain text."""
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
    # A set has no order, so no last ones.
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
