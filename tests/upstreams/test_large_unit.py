"""Large answers: whose they are is read from their ends, what is in between is not looked at, and it has bounds."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from kernelmcp.upstreams.large_results import FIRST_NUMBER, LARGE_BYTES, MAX_SKIPPED_BYTES, LargeResults, Lines, TooLong

LONG = "x" * LARGE_BYTES
# What servers make of a response: the order of its members, and spaces.
SHAPES = [
    '{{"jsonrpc":"2.0","id":{id},"result":{result}}}',
    '{{"id":{id},"jsonrpc":"2.0","result":{result}}}',
    '{{"result":{result},"jsonrpc":"2.0","id":{id}}}',
    '{{"result":{result},"id":{id},"jsonrpc":"2.0"}}',
    '{{"jsonrpc":"2.0","result":{result},"id":{id}}}',
    '{{"id":{id},"result":{result},"jsonrpc":"2.0"}}',
    ' {{ "jsonrpc" : "2.0" , "id" : {id} , "result" : {result} }} \r',
]


def shape(number: int, result: str, how: str = SHAPES[0]) -> bytes:
    return how.format(id=number, result=result).encode()


@pytest.mark.parametrize("how", SHAPES)
@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": LONG}]},
        {"text": LONG, "id": 8},
        {"text": LONG + '","jsonrpc":"2.0","id":8}', "isError": True},
        {"a": LONG, "b": '{"jsonrpc":"2.0","id":8,"result":', "c": {"id": 8, "jsonrpc": "2.0"}},
    ],
    ids=["plain", "an id in it", "an end in it", "a beginning in it"],
)
def test_the_text_of_a_large_result_goes_to_the_call_of_its_id(how: str, result: dict[str, Any]) -> None:
    large = LargeResults(lambda: 1)
    with large.expecting(7) as waiting, large.expecting(8) as other:
        small = json.loads(large.shrunk(shape(7, json.dumps(result), how)))
        assert small == {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert waiting.raw is not None
        assert json.loads(waiting.raw) == result
        assert (waiting.is_error, waiting.is_too_large, other.raw) == (result.get("isError", False), False, None)


@pytest.mark.parametrize(
    "line",
    [
        shape(9, json.dumps(LONG)),
        f'{{"jsonrpc":"2.0","id":"7","result":"{LONG}"}}'.encode(),
        f'{{"jsonrpc":"2.0","id":7,"x":1,"result":"{LONG}"}}'.encode(),
        f'{{"jsonrpc":"2.0","id":7,"result":"{LONG}","id":7}}'.encode(),
        f'{{"jsonrpc":"2.0","id":7,"error":{{"code":1,"message":"{LONG}"}}}}'.encode(),
        f'[{{"jsonrpc":"2.0","id":7,"result":"{LONG}"}}]'.encode(),
        LONG.encode(),
    ],
    ids=["another id", "a text", "a member more", "two ids", "an error", "a list", "no JSON"],
)
def test_what_is_not_clear_is_parsed_as_long_as_that_is_cheap(line: bytes) -> None:
    large = LargeResults(lambda: 1)
    with large.expecting(7) as waiting:
        assert large.shrunk(line) == line
        assert waiting.raw is None


def test_an_answer_that_no_call_waits_for_any_more_is_dropped_unread() -> None:
    large = LargeResults(lambda: 1)
    late = shape(FIRST_NUMBER, json.dumps(LONG))
    with large.expecting(FIRST_NUMBER):
        assert large.shrunk(late)
    assert large.shrunk(late) == b""


def test_what_is_not_clear_and_dear_is_refused() -> None:
    large = LargeResults(lambda: 16)
    with large.expecting(7) as waiting:
        assert large.shrunk(b"x" * 5_000_000) == b""
        assert large.shrunk(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}") == b""
        assert json.loads(large.shrunk(shape(9, "[" + "[]," * 200_000 + "0]")))["error"]
        assert waiting.raw is None


@pytest.mark.parametrize("how", SHAPES)
@pytest.mark.parametrize("mb", [2, 30])
def test_a_line_that_is_too_large_fails_its_call_and_the_next_is_read(how: str, mb: int) -> None:
    large = LargeResults(lambda: 1)
    lines = Lines(large)
    data = shape(7, json.dumps("x" * mb * 1_000_000), how) + b"\n" + shape(8, "{}") + b"\n"
    with large.expecting(7) as waiting, large.expecting(8):
        found = [
            line for start in range(0, len(data), 65536) for line in lines.feed(data[start : start + 65536]) if line
        ]
        assert [json.loads(line)["id"] for line in found] == [7, 8]
        assert "error" in json.loads(found[0])
        assert (waiting.raw, waiting.is_too_large) == (None, True)


def test_a_line_without_an_end_is_given_up_and_nothing_of_it_is_kept() -> None:
    lines = Lines(LargeResults(lambda: 1))
    chunk = b"x" * 65536
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            _ = [list(lines.feed(chunk)) for _ in range(MAX_SKIPPED_BYTES // len(chunk) + 200)]
        for _ in range(100):
            with suppress(TooLong):
                list(lines.feed(chunk))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_lines_are_the_same_however_they_arrive() -> None:
    small = [shape(7, json.dumps("x" * size)) for size in (0, 1, 5, 0)]
    data = b"\n".join([*small[:2], shape(7, json.dumps("x" * 70_000)), *small[2:], b""])
    for step in (1, 7, 65536, len(data)):
        large = LargeResults(lambda: 1)
        lines = Lines(large)
        with large.expecting(7) as waiting:
            found = [line for start in range(0, len(data), step) for line in lines.feed(data[start : start + step])]
            assert found[:2] + found[3:] == small
            assert json.loads(found[2])["result"] == {}
            assert waiting.raw == json.dumps("x" * 70_000).encode()
