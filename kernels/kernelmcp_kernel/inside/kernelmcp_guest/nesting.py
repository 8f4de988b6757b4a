"""JSON that is nested too deeply raises RecursionError, as in any Python.

CPython's own check uses WebAssembly's stack in memory, which the recursion of the JSON scanner does not use; it uses
V8's, and an overflow there ends the guest.
"""

# The C scanner is private to the json package.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

import json
import json.scanner
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

# Each level takes 160 bytes of a 7 MB stack (runtime/node.py), so this is a quarter of it.
MAX_DEPTH = 10_000

# Brackets are counted in pieces of this many characters: counting is a hundred times faster than examining each.
_PIECE = 4096

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}

Scan = Callable[[str, int], Any]


def _may_be_too_deep(text: str, start: int) -> bool:
    """A quick check of this and all later starts, which is wrong only if strings contain many brackets."""
    depth = lowest = 0
    for at in range(start, len(text), _PIECE):
        end = at + _PIECE
        opened = text.count("[", at, end) + text.count("{", at, end)
        if depth + opened - lowest > MAX_DEPTH:
            return True
        closed = text.count("]", at, end) + text.count("}", at, end)
        lowest = min(lowest, depth - closed)
        depth += opened - closed
    return False


def _is_too_deep(text: str, start: int) -> bool:
    brackets = re.findall(r"[\[\]{}]", _STRING.sub("", text[start:]))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH


def _checked(scan: Scan) -> Scan:
    shallow = (0, 0)  # length and hash of the last text that the quick check has passed,
    shallow_from = 0  # and from where: `raw_decode` reads one text record by record

    def check(text: str, start: int) -> None:
        nonlocal shallow, shallow_from
        if (found := (len(text), hash(text))) == shallow and start >= shallow_from:
            return
        if not _may_be_too_deep(text, start):
            shallow, shallow_from = found, start
        elif _is_too_deep(text, start):
            raise RecursionError("maximum recursion depth exceeded while decoding JSON")

    def scan_once(string: str, idx: int) -> Any:
        if isinstance(string, str) and len(string) - idx > MAX_DEPTH:  # pyright: ignore[reportUnnecessaryIsInstance]  # guest code passes what it likes
            check(string, idx)
        return scan(string, idx)

    return scan_once


def install() -> None:
    """Add the check to every decoder (for the boot image)."""
    stock: Callable[[Any], Scan] = json.scanner.make_scanner

    def make_scanner(decoder: Any) -> Scan:
        return _checked(stock(decoder))

    json.scanner.make_scanner = make_scanner
    decoder: Any = vars(json)["_default_decoder"]
    decoder.scan_once = make_scanner(decoder)
