"""What upstreams send is charged by the time that it takes to read, and a large event is not joined of small lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kernelmcp.upstreams.http import MAX_SPLIT_BYTES, _Events
from kernelmcp.upstreams.large_results import FIRST_NUMBER, MAX_PARSED_BYTES, LargeResults
from kernelmcp.upstreams.link import BYTES_PER_LINE, SKIPPED_BYTES_PER_LINE, UNREAD_BYTES_PER_LINE, ReadThrottle
from kernelmcp.upstreams.stdio import _Process

pytestmark = pytest.mark.anyio


class Stream:
    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        pass


class Pipe:
    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class Transport:
    def get_pipe_transport(self, fd: int) -> Pipe:
        return Pipe()


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of everything that was read."""
    found: list[float] = []

    def delay(_: ReadThrottle, cost: float = 1.0) -> float:
        found.append(cost)
        return 0.0

    monkeypatch.setattr(ReadThrottle, "delay", delay)
    return found


async def read(*chunks: bytes, large: LargeResults | None = None) -> bytes:
    events = _Events(Stream(*chunks), large or LargeResults(lambda: 1), ReadThrottle(), None)
    return b"".join([piece async for piece in events])


def padded(size: int, **message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "pad": "x" * size, **message}).encode()


async def test_an_event_of_several_lines_is_read_unless_it_is_large(costs: list[float]) -> None:
    small = b'event: message\ndata: {"a":\ndata: 1}\n\n'
    half = b"data: " + b" " * (MAX_SPLIT_BYTES * 2 // 3) + b"\n"
    assert await read(small + half + b"\n" + half + b"\n") == small + half + b"\n" + half + b"\n"
    assert await read(half + b":comment\n" + half + b"\n" + small) == half + b":comment\n"


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: 1\r\rdata: 2\r\n\r\ndata: 3\n\n"],
        [b"data: 1\r", b"\rdata: 2\r", b"\n", b"\r", b"\n", b"data: 3\n\n"],
    ],
)
async def test_carriage_returns_end_lines_too(costs: list[float], chunks: list[bytes]) -> None:
    assert await read(*chunks) == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
    assert costs == [1.0] * 6


async def test_an_event_costs_by_its_size_unless_its_result_is_set_aside(costs: list[float]) -> None:
    large = LargeResults(lambda: 1)
    result = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"x": "y" * 500_000}}).encode()
    with large.expecting(7):
        await read(b"data: " + result + b"\n\n", large=large)
    assert costs == [1.0, 1.0]
    await read(b"data: " + padded(300 * BYTES_PER_LINE, method="ping", id=1) + b"\n\n")
    assert costs[2] >= 300


async def received(large: LargeResults, *lines: bytes) -> int:
    process = _Process(large)
    process.connection_made(Transport())  # pyright: ignore[reportArgumentType]
    process.pipe_data_received(1, b"".join(line + b"\n" for line in lines))
    process.ended.set()
    return len([message async for message in process])


async def test_on_stdio_only_the_answers_that_calls_wait_for_are_free(costs: list[float]) -> None:
    large = LargeResults(lambda: 1)
    forged = [json.dumps({"jsonrpc": "2.0", "id": number, "result": {}}).encode() for number in range(30)]
    failed = b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}'
    with large.expecting(FIRST_NUMBER):
        mine = padded(1_000, id=FIRST_NUMBER, result={})
        assert await received(large, mine) == 1
        assert costs == []
        assert await received(large, *forged, failed, mine) == 32
        assert costs == [1.0] * 31


async def test_on_stdio_what_is_handled_costs_by_its_size(costs: list[float]) -> None:
    large = LargeResults(lambda: 1)
    assert await received(large, padded(300 * BYTES_PER_LINE, method="ping", id=1)) == 1
    assert costs[0] >= 300


async def test_what_has_too_many_values_to_be_parsed_costs_by_its_size(costs: list[float]) -> None:
    dear = b'{"jsonrpc":"2.0","method":"x","params":[' + b"[]," * 300_000 + b"0]}"
    await read(b"data: " + dear + b"\n\n")
    assert await received(LargeResults(lambda: 1), dear) == 0
    assert [cost > len(dear) / UNREAD_BYTES_PER_LINE for cost in costs] == [True, False, True]


@pytest.mark.parametrize(
    ("size", "start"),
    [
        (5_000_000, b'{"jsonrpc":"2.0","method":"'),
        (5_000_000, b'{"jsonrpc":"2.0","id":7,"result":{"x":"'),
        (50_000, b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % FIRST_NUMBER),
        (2 * MAX_PARSED_BYTES, b"{"),
    ],
    ids=["too large to parse", "of no call", "too late", "overlong"],
)
async def test_what_is_read_and_skipped_costs_by_its_size(costs: list[float], size: int, start: bytes) -> None:
    line = start + b"y" * size + b'"}}'
    await read(b"data: " + line + b"\n\n")
    await received(LargeResults(lambda: 1), line)
    assert [cost > len(line) / SKIPPED_BYTES_PER_LINE for cost in (costs[0], costs[-1])] == [True, True]


async def test_a_long_line_without_data_costs_by_its_size(costs: list[float]) -> None:
    await read(b":" + b"y" * 4_000_000 + b"\n")
    assert costs[0] > 4_000_000 / SKIPPED_BYTES_PER_LINE
