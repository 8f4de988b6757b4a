"""Bounds on JSON from outside, checked before it is parsed: its size, its depth and the memory that its values take.

A short text can be a large value: a list of empty lists takes thirty times its text. `kernelmcp` and `kernelmcp_kernel`
each have this file, because neither imports the other; a test compares the two.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

# A list, an object and a key each count as this many values. With that, a value takes at most 70 bytes when parsed,
# besides the characters of its text.
WEIGHT = 4

# Deeper values break JSON libraries on their way to a client.
MAX_DEPTH = 100

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_MARKS = bytes(set(range(256)) - set(b",:[{"))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# Filtered at once: a copy of a picture would cost its size.
_PIECE_BYTES = 64 * 1024
# Up to as many, those in strings are counted as well: that takes less time.
_FEW_VALUES = 200
# As signed bytes: what a bracket adds to the depth.
_DEPTHS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


class JsonTooLarge(ValueError):
    """JSON exceeds its bounds. The text says which."""


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """`max_bytes` of text, `max_values` with lists, objects and keys counted `WEIGHT` times, `max_depth` of nesting."""

    max_bytes: int
    max_values: int
    max_depth: int = MAX_DEPTH


def check_json(data: bytes, bounds: JsonBounds) -> None:
    """Check the bounds, and nothing else: text that is not JSON may pass. Raises `JsonTooLarge`.

    Takes time in proportion to the text, and at most once its memory.
    """
    if len(data) > bounds.max_bytes:
        raise JsonTooLarge(f"{len(data):,} bytes; {bounds.max_bytes:,} are allowed")
    # Brackets and commas in strings count here as well: an upper bound, at the cost of reading the text once.
    if _fits(data, bounds):
        return
    outside = _without_strings(data, bounds.max_values)
    if _values(outside) > bounds.max_values:
        raise _too_many(bounds)
    if _opened(outside) > bounds.max_depth and _depth(outside) > bounds.max_depth:
        raise JsonTooLarge(f"nested deeper than {bounds.max_depth}")


def parse_json(data: bytes, bounds: JsonBounds) -> Any:
    """Parse JSON within bounds. Raises `JsonTooLarge`, and another ValueError for what is not JSON."""
    check_json(data, bounds)
    return json.loads(data)


def values_in(data: bytes) -> int:
    """How many values this text has, with lists, objects and keys counted `WEIGHT` times."""
    found = sum(_values(data[start : start + _PIECE_BYTES]) for start in range(0, len(data), _PIECE_BYTES))
    return found if found <= _FEW_VALUES else _values(_without_strings(data, len(data)))


def _fits(data: bytes, bounds: JsonBounds) -> bool:
    values = opened = 0
    for start in range(0, len(data), _PIECE_BYTES):
        marks = data[start : start + _PIECE_BYTES].translate(None, _NO_MARKS)
        values += _values(marks)
        opened += _opened(marks)
    return values <= bounds.max_values and opened <= bounds.max_depth


def _values(data: bytes | bytearray) -> int:
    return data.count(b",") + WEIGHT * (data.count(b":") + _opened(data)) + 1


def _opened(data: bytes | bytearray) -> int:
    return data.count(b"[") + data.count(b"{")


def _without_strings(data: bytes, max_values: int) -> bytearray:
    """Structure outside of strings. Raises `JsonTooLarge` if there is too much of it."""
    outside = bytearray()
    position = strings = 0
    while (quote := data.find(b'"', position)) >= 0:
        outside += data[position:quote]
        found = _STRING.match(data, quote)
        strings += 1
        if found is None:
            raise JsonTooLarge("a string without an end")
        if strings > max_values:
            raise JsonTooLarge(f"more than {max_values:,} values")
        position = found.end()
    outside += data[position:]
    return outside


def _depth(outside: bytearray) -> int:
    brackets = memoryview(outside.translate(_DEPTHS, _NO_BRACKETS)).cast("b")
    return max(itertools.accumulate(brackets), default=0)


def _too_many(bounds: JsonBounds) -> JsonTooLarge:
    return JsonTooLarge(f"more than {bounds.max_values:,} values")
