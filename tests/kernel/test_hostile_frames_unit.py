"""A guest that owns its process can write what it likes to its pipe. Here the guest is a program that does."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from kernelmcp_kernel.guests.channel import MAX_FRAMES_PER_SECOND, Pace
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, FrameDecoder, FrameError, Room, encode_frame


def packed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def frame(**fields: Any) -> bytes:
    return packed(json.dumps({"type": "stream", "id": "x", "content": {}, **fields}).encode())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", MAX_FRAME_BYTES + 1),
        packed(b"not JSON"),
        packed(b"[]"),
        packed(b"\xff\xfe"),
        packed(b'{"type": 1, "id": "", "content": {}}'),
        packed(b'{"type": "stream", "id": "", "content": []}'),
        packed(b"[" * 100_000),
        packed(b'{"id": "", "type": "stream", "content": {}}'),
        packed(b'{"type": "stream", "id": "", "content": {}, "type": "reply"}'),
        packed(b'{"type": "call", "id": "", "content": {}}'),
        packed(b'{"type": "call", "id": "", "content": {"number": 1, "arguments": {"call": "kill", "call": "fetch"}}}'),
        packed(b'{"type": "stream", "id": "", "content": {"a": }}'),
        packed(b'{"type": "reply", "id": "", "content": {"a": "\xed\xa0\x80"}}'),
    ],
    ids=[
        "too long",
        "not JSON",
        "no object",
        "not UTF-8",
        "type is no text",
        "content is no object",
        "nested deeply",
        "another order",
        "two types",
        "a call without a number",
        "two calls",
        "not JSON behind its beginning",
        "a surrogate in UTF-8",
    ],
)
def test_a_frame_that_breaks_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameDecoder().feed(data))


def test_frames_are_found_however_the_pipe_cuts_them() -> None:
    data = frame(id="1") + frame(id="2")
    for cut in range(len(data)):
        decoder = FrameDecoder()
        found = [*decoder.feed(data[:cut]), *decoder.feed(data[cut:])]
        assert [f.id for f in found] == ["1", "2"]


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (frame(type="nonsense", content={"a": 1}), {}),
        (frame(content={"text": "x" * 5_000_000}), {}),
        (frame(type="files", content={"changed": ["a"] * 60_000}), {}),
        (frame(type="display_data", content={"data": [[]] * 300_000}), {}),
        (frame(type="call", content={"number": 7, "arguments": {"call": "nonsense"}}), {"number": 7}),
        (frame(type="call", content={"number": 7, "arguments": {"call": "kill", "signal": "x" * 5000}}), {"number": 7}),
        (frame(type="reply", content={"a": "\u4e2d" + "x" * 20_000_000}), {}),
    ],
    ids=["unknown type", "bytes", "values", "lists", "unknown call", "call", "wide text"],
)
def test_a_frame_that_is_too_much_is_not_parsed_and_the_next_one_is(data: bytes, content: dict[str, Any]) -> None:
    decoder = FrameDecoder()
    both = data + frame(id="next", content={"text": "x"})
    found = [each for start in range(0, len(both), 100_000) for each in decoder.feed(both[start : start + 100_000])]
    assert [(each.content, bool(each.excess)) for each in found] == [(content, True), ({"text": "x"}, False)]


def test_large_frames_of_several_guests_take_turns() -> None:
    room = Room(3_000_000)
    heard: list[str] = []
    one, other = (FrameDecoder(lambda name=name: heard.append(name), room) for name in ("one", "other"))
    data = frame(type="display_data", content={"data": {"text/plain": "x" * 2_000_000}, "metadata": {}})
    assert list(one.feed(data[:-1])) == []
    assert list(other.feed(data[:300])) == []
    assert (one.is_waiting, other.is_waiting, heard) == (False, True, [])
    assert len(list(one.feed(data[-1:]))) == 1
    assert heard == ["other"]
    assert len(list(other.feed(data[300:]))) == 1
    assert not other.is_waiting


def test_a_guest_that_ends_gives_its_room_back() -> None:
    room = Room(3_000_000)
    heard: list[str] = []
    one, other = FrameDecoder(room=room), FrameDecoder(lambda: heard.append("other"), room)
    data = frame(type="display_data", content={"data": {"text/plain": "x" * 2_000_000}, "metadata": {}})
    assert [*one.feed(data[:300]), *other.feed(data[:300])] == []
    one.close()
    assert heard == ["other"]
    assert len(list(other.feed(data[300:]))) == 1


def test_text_that_no_encoder_takes_is_made_harmless() -> None:
    numbers = b'"b": NaN, "c": [Infinity, 1e999, -1E999, 1e30]'
    body = b'{"type": "stream", "id": "", "content": {"a": "\\ud800", %b, "d": "\\ud83d\\ude80"}}' % numbers
    assert next(FrameDecoder().feed(packed(body))).content == {
        "a": "\\ud800",
        "b": "NaN",
        "c": ["Infinity", "1e999", "-1E999", 1e30],
        "d": "\U0001f680",
    }


def test_numbers_that_python_cannot_hold_stay_text() -> None:
    for text in ("1" + "0" * 250 + "e99", "1" + "0" * 5000, "-" + "7" * 5000):
        body = b'{"type": "stream", "id": "", "content": {"n": %b, "m": 12}}' % text.encode()
        assert next(FrameDecoder().feed(packed(body))).content == {"n": text, "m": 12}


def test_a_request_over_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode_frame({"code": "x" * (MAX_FRAME_BYTES + 1)})


def test_more_frames_than_a_second_may_have_wait_in_the_pipe() -> None:
    pace = Pace()
    assert pace.pause(100) == 0
    assert pace.pause(2 * MAX_FRAMES_PER_SECOND) > 1.5
