"""Packages in plain Python that stand in for compiled ones of the distribution: their values, and when they are taken.

The values were compared with those of rpds-py 2026.9, orjson 3.13 and ujson 6.1; what is here is what was the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import pickle
import uuid
from typing import Any

import pytest

from kernelmcp_kernel.packages.standins import orjson, ujson
from kernelmcp_kernel.packages.standins.rpds import HashTrieMap, HashTrieSet, List, Queue


@dataclasses.dataclass
class Point:
    x: int
    y: str = "é"
    _hidden: int = 1


class Kind(enum.Enum):
    ONE = 1


UTC = datetime.UTC


@pytest.mark.parametrize(
    ("value", "option", "text"),
    [
        ([None, True, 1, 1.5, 'é\u2028\x7f\x1f"\\/'], 0, '[null,true,1,1.5,"é\u2028\x7f\\u001f\\"\\\\/"]'),
        ([1e16, 1e-7, 5e-324, -0.0, float("nan")], 0, "[1e+16,1e-7,5e-324,-0.0,null]"),
        ({"b": (1, 2), "a": []}, orjson.OPT_SORT_KEYS, '{"a":[],"b":[1,2]}'),
        ({"a": [1], "b": {}}, orjson.OPT_INDENT_2, '{\n  "a": [\n    1\n  ],\n  "b": {}\n}'),
        ([Point(1), Kind.ONE], 0, '[{"x":1,"y":"é"},1]'),
        ({1: 2, None: 3, Kind.ONE: 4}, orjson.OPT_NON_STR_KEYS, '{"1":2,"null":3,"1":4}'),
        (datetime.datetime(2020, 1, 2, 3, 4, 5, 6, UTC), orjson.OPT_UTC_Z, '"2020-01-02T03:04:05.000006Z"'),
        (
            datetime.datetime(2020, 1, 2, 3, 4, 5, 6, UTC).replace(tzinfo=None),
            orjson.OPT_NAIVE_UTC | 8,
            '"2020-01-02T03:04:05+00:00"',
        ),
        ([uuid.UUID(int=7), datetime.date(2020, 1, 2)], 0, '["00000000-0000-0000-0000-000000000007","2020-01-02"]'),
        ([orjson.Fragment(b'{"a":1}')], orjson.OPT_APPEND_NEWLINE, '[{"a":1}]\n'),
    ],
)
def test_orjson_writes(value: Any, option: int, text: str) -> None:
    assert orjson.dumps(value, option=option).decode() == text


@pytest.mark.parametrize("value", [{1, 2}, b"x", 2**64, -(2**63) - 1, "\ud800", {1: 2}, {Kind.ONE: 1}, object()])
def test_orjson_refuses_to_write(value: Any) -> None:
    with pytest.raises(orjson.JSONEncodeError):
        orjson.dumps([value])
    if not isinstance(value, (int, str, dict)):
        assert orjson.dumps([value], default=lambda _: "D") == b'["D"]'


def test_orjson_is_not_led_on_for_ever() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(TypeError, match="Recursion limit"):
        orjson.dumps(deep)
    with pytest.raises(TypeError, match="recursion limit"):
        orjson.dumps(object(), default=lambda value: value)


@pytest.mark.parametrize(
    "text", ["nul", "[NaN]", b"\xff", "1e400", "[1,]", "", "01", '"\\ud800"', '"\x01"', "[" * 10_000]
)
def test_orjson_refuses_to_read(text: Any) -> None:
    with pytest.raises(orjson.JSONDecodeError) as found:
        orjson.loads(text)
    assert isinstance(found.value, json.JSONDecodeError)


def test_orjson_reads() -> None:
    assert orjson.loads(memoryview(b'{"a":[1,1.5,"\\ud83d\\ude00"]}')) == {"a": [1, 1.5, "😀"]}
    assert orjson.loads("12345678901234567890123") == 1.2345678901234568e22


def test_ujson() -> None:
    assert ujson.dumps({"a": ["é/", 1.5], 1: None}) == '{"a":["\\u00e9\\/",1.5],"1":null}'
    assert ujson.dumps("<é/>", ensure_ascii=False, encode_html_chars=True, escape_forward_slashes=False) == (
        '"\\u003cé/\\u003e"'
    )
    assert ujson.dumps({"a": [1]}, indent=2) == '{\n  "a": [\n    1\n  ]\n}'
    assert ujson.dumps({datetime.date(2020, 1, 2): b"x"}, reject_bytes=False) == '{"2020-01-02":"x"}'
    assert ujson.dumps({1}, default=list) == "[1]"
    for refused in ({1}, b"x", object()):
        with pytest.raises(TypeError):
            ujson.dumps(refused)
    assert ujson.loads(b'[1, "a"]') == [1, "a"]
    with pytest.raises(ujson.JSONDecodeError):
        ujson.loads("[1,]")


def test_rpds() -> None:
    first = HashTrieMap({"a": 1})
    second = first.insert("b", 2).update({"c": 3}, d=4).remove("a").discard("z")
    assert (dict(first), dict(second)) == ({"a": 1}, {"b": 2, "c": 3, "d": 4})
    assert (first == HashTrieMap([("a", 1)]), first == {"a": 1}, first.get("z", 5)) == (True, False, 5)
    assert (repr(first), hash(first), HashTrieMap.convert(first)) == (
        "HashTrieMap({'a': 1})", hash(HashTrieMap(a=1)), first,
    )  # fmt: skip
    assert HashTrieMap.fromkeys("a", 1) == first == pickle.loads(pickle.dumps(first))
    with pytest.raises(KeyError):
        first.remove("z")

    some = HashTrieSet([1]).insert(2)
    assert (some == {1, 2}, 2 in some, some.remove(1) == HashTrieSet([2]), some > HashTrieSet([1])) == (True,) * 4
    assert (some | [3], some & [1], some - [1], some ^ [1, 3]) == ({1, 2, 3}, {1}, {2}, {2, 3})
    with pytest.raises(KeyError):
        some.remove(7)

    row = List([1, 2])
    assert (row.first, list(row.rest), list(row.push_front(0)), list(row.__reversed__())) == (1, [2], [0, 1, 2], [2, 1])
    assert (row == List(1, 2), row == [1, 2], repr(row)) == (True, False, "List([1, 2])")
    queue = Queue([1]).enqueue(2)
    assert (queue.peek(), list(queue.dequeue()), queue.is_empty(), Queue().is_empty()) == (1, [2], False, True)
    for empty in (lambda: List().first, List().drop_first, Queue().peek, Queue().dequeue):
        with pytest.raises(IndexError):
            empty()
