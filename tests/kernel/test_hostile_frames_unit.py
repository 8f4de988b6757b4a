"""A guest that owns its process can write what it likes to its pipe. Here the guest is a program that does."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from kernelmcp_kernel.guests.channel import MAX_FRAMES_PER_SECOND, Pace
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, FrameDecoder, FrameError, encode_frame


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
    ],
    ids=["too long", "not JSON", "no object", "not UTF-8", "type is no text", "content is no object", "nested deeply"],
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


def test_text_that_no_encoder_takes_is_made_harmless() -> None:
    body = b'{"type": "t", "id": "", "content": {"a": "\\ud800", "b": NaN, "c": [Infinity], "d": "\\ud83d\\ude80"}}'
    assert next(FrameDecoder().feed(packed(body))).content == {
        "a": "\\ud800",
        "b": "NaN",
        "c": ["Infinity"],
        "d": "\U0001f680",
    }


def test_a_request_over_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode_frame({"code": "x" * (MAX_FRAME_BYTES + 1)})


def test_more_frames_than_a_second_may_have_wait_in_the_pipe() -> None:
    pace = Pace()
    assert pace.pause(100) == 0
    assert pace.pause(2 * MAX_FRAMES_PER_SECOND) > 1.5
