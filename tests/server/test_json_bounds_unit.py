"""Bounds on JSON before it is parsed: what passes, what does not, and what that costs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kernelmcp_kernel
from kernelmcp import json_bounds
from kernelmcp.json_bounds import WEIGHT, JsonBounds, JsonTooLarge, check_json, parse_json, values_in

BOUNDS = JsonBounds(max_bytes=1 << 20, max_values=10_000)
MANY = JsonBounds(max_bytes=64 << 20, max_values=1_000_000)

CHARACTERS = '"\\[]{},:é a'


def some_value(random: Random, depth: int) -> Any:
    kind = random.randrange(6 if depth else 4)
    if kind < 4:
        return (None, random.random(), -17, some_text(random))[kind]
    values = [some_value(random, depth - 1) for _ in range(random.randrange(6))]
    return values if kind == 4 else {some_text(random): value for value in values}


def some_text(random: Random) -> str:
    return "".join(random.choices(CHARACTERS, k=random.randrange(9)))


SOME = [some_value(Random(seed), 1 + seed % 7) for seed in range(2000)]


def counted(value: Any) -> int:
    """How many values JSON has, with the weights of lists, objects and keys. What is empty counts as if it had one."""
    if isinstance(value, list):
        return WEIGHT + (sum(map(counted, value)) or 1)
    if isinstance(value, dict):
        return WEIGHT + (sum(WEIGHT + counted(each) for each in value.values()) or 1)
    return 1


def depth(value: Any) -> int:
    below = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else None
    return 0 if below is None else 1 + max(map(depth, below), default=0)


def test_values_are_counted_as_the_bounds_count_them_and_few_at_most_too_many() -> None:
    for each in [*SOME, {"a": ["[{,:" * 100, 1]}]:
        data = json.dumps(each).encode()
        assert values_in(data) >= counted(each) - data.count(b"[]") - data.count(b"{}")
        many = json.dumps([each] * 300).encode()
        assert passes(many, JsonBounds(len(many), values_in(many), max_depth=500))
        assert not passes(many, JsonBounds(len(many), values_in(many) - 1, max_depth=500))


def passes(data: bytes, bounds: JsonBounds) -> bool:
    try:
        check_json(data, bounds)
    except JsonTooLarge:
        return False
    return True


def test_both_packages_have_the_same_bounds() -> None:
    theirs = Path(kernelmcp_kernel.__file__).with_name("json_bounds.py")
    assert theirs.read_bytes() == Path(json_bounds.__file__).read_bytes()


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_bounds_count_values_and_depth_whatever_strings_hold(indent: int | None) -> None:
    for value in SOME:
        text = json.dumps(value, indent=indent).encode()
        assert parse_json(text, JsonBounds(len(text), counted(value), depth(value))) == json.loads(text)
        assert not passes(text, JsonBounds(len(text) - 1, 10_000))
        assert not passes(text, JsonBounds(len(text), counted(value) - 1))
        assert not depth(value) or not passes(text, JsonBounds(len(text), 10_000, depth(value) - 1))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'"' + b"x" * (1 << 20) + b'"', "bytes"),
        (b"[" + b"[]," * 2600 + b"[]]", "values"),
        (b"[" + b"{}," * 2600 + b"{}]", "values"),
        (b"[" + b"1," * 10_000 + b"1]", "values"),
        (b"[" + b'"",' * 10_000 + b'""]', "values"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(2600)) + b"}", "values"),
        (b"[" * 101 + b"]" * 101, "deeper"),
        (b'{"":' * 101 + b"1" + b"}" * 101, "deeper"),
        (b'{"a' * 5000, "values"),
        (b'"' + b'\\",[{:' * 100_000, "without an end"),
    ],
    ids=["bytes", "lists", "objects", "numbers", "strings", "keys", "depth", "depth of objects", "no ends", "no end"],
)
def test_each_bound_refuses_and_says_which(data: bytes, reason: str) -> None:
    with pytest.raises(JsonTooLarge, match=reason):
        check_json(data, BOUNDS)


def test_text_is_one_value_whatever_it_looks_like() -> None:
    rows = '[{"a":1},' * 10_000 + '\n"\\'
    assert parse_json(json.dumps({"text": rows}).encode(), BOUNDS) == {"text": rows}


# Made where they are tested: every worker collects these tests.
HOSTILE = {
    "lists": lambda: b"[" + b"[]," * 10_000_000,
    "strings": lambda: b"[" + b'"",' * 300_000,  # one after the other, up to the bound
    "depth": lambda: b"[" * 30_000_000,
    "escapes": lambda: b'"' + b"\\," * 15_000_000 + b'"',
    "open string": lambda: b'"' + b'\\",' * 10_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_check_costs_no_more_memory_than_the_text_has(name: str) -> None:
    data = HOSTILE[name]()
    tracemalloc.start()
    try:
        passes(data, JsonBounds(max_bytes=64 << 20, max_values=100_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * len(data) + 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        lambda: "[" + ",".join(["[]"] * 190_000) + "]",
        lambda: "[" + ",".join(['{"a":1}'] * 110_000) + "]",
        lambda: "[" + ",".join(['{"":{}}'] * 76_000) + "]",
        lambda: "[" + ",".join(["1.5"] * 990_000) + "]",
        lambda: "[" + ",".join(f'"{n:x}"' for n in range(990_000)) + "]",
        lambda: "{" + ",".join(f'"{n}":1' for n in range(190_000)) + "}",
    ],
    ids=["lists", "objects", "objects in objects", "floats", "texts", "keys"],
)
def test_a_value_takes_at_most_seventy_bytes(text: Callable[[], str]) -> None:
    data = text().encode()
    tracemalloc.start()
    try:
        parse_json(data, MANY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 70 * MANY.max_values + 2 * len(data)
