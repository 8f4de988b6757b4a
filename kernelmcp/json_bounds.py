"""Bounds on JSON from outside, checked before it is parsed: its size, its depth and the memory that its values take.

A short text can be a large value: a list of empty lists takes thirty times its text. `kernelmcp` and `kernelmcp_kernel`
each have this file, because neither imports the other; a test compares the two.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# A list, an object and a key each count as this many values. With that, a value takes at most 70 bytes when parsed,
# besides the characters of its text.
WEIGHT = 4

# Deeper values break JSON libraries on their way to a client.
MAX_DEPTH = 100

_NO_MARKS = bytes(set(range(256)) - set(b",:[{"))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_STRUCTURE = bytes(set(range(256)) - set(b',:[]{}"'))
# Filtered at once: a copy of a picture would cost its size.
_PIECE_BYTES = 64 * 1024
# Up to as many, those in strings are counted as well: that takes less time.
_FEW_MARKS = 50
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

    Takes time in proportion to the text, and little memory.
    """
    if len(data) > bounds.max_bytes:
        raise JsonTooLarge(f"{len(data):,} bytes; {bounds.max_bytes:,} are allowed")
    # Brackets and commas in strings count here as well: an upper bound, at the cost of reading the text once.
    if _fits(data, bounds):
        return
    values, depth = 1, 0
    for piece in _without_strings(data):
        values += _marks(piece)
        if values > bounds.max_values:
            raise JsonTooLarge(f"more than {bounds.max_values:,} values")
        opened = _opened(piece)
        if depth + opened > bounds.max_depth:
            steps = memoryview(piece.translate(_DEPTHS, _NO_BRACKETS)).cast("b")
            if max(itertools.accumulate(steps, initial=depth)) > bounds.max_depth:
                raise JsonTooLarge(f"nested deeper than {bounds.max_depth}")
        depth += opened - piece.count(b"]") - piece.count(b"}")


def parse_json(data: bytes, bounds: JsonBounds) -> Any:
    """Parse JSON within bounds. Raises `JsonTooLarge`, and another ValueError for what is not JSON."""
    check_json(data, bounds)
    return json.loads(data)


def values_in(data: bytes) -> int:
    """How many values this text has, with lists, objects and keys counted `WEIGHT` times. Raises `JsonTooLarge` for
    what is not JSON."""
    marks = data.translate(None, _NO_MARKS)
    return 1 + (_marks(marks) if len(marks) <= _FEW_MARKS else sum(map(_marks, _without_strings(data))))


def _fits(data: bytes, bounds: JsonBounds) -> bool:
    values, opened = 1, 0
    for start in range(0, len(data), _PIECE_BYTES):
        marks = data[start : start + _PIECE_BYTES].translate(None, _NO_MARKS)
        values += _marks(marks)
        opened += _opened(marks)
    return values <= bounds.max_values and opened <= bounds.max_depth


def _marks(data: bytes) -> int:
    return data.count(b",") + WEIGHT * (data.count(b":") + _opened(data))


def _opened(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _without_strings(data: bytes) -> Iterator[bytes]:
    """The structure outside of strings, in pieces. Raises `JsonTooLarge` if the last string has no end."""
    start = is_inside = 0
    while start < len(data):
        piece = data[start : start + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # no cut within an escape
            piece = data[start : start + _PIECE_BYTES + 1]
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.translate(None, _NO_STRUCTURE).replace(b'""', b"").split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside = (is_inside + len(parts) - 1) % 2
    if is_inside:
        raise JsonTooLarge("a string without an end")
