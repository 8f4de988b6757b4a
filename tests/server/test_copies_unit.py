"""A picture's bytes move once: its text is read, recorded and sent with few copies, and encoded again only if it must
be."""

import base64
import binascii
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp_types import JSONRPCResponse

from kernelmcp.atomic import write_at
from kernelmcp.cells import event, line
from kernelmcp.cells.cell import Display, Outputs
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.config.models import Policy
from kernelmcp.output.sanitize import is_readable, parse
from kernelmcp.pictures.for_results import pictures_of

pytestmark = pytest.mark.anyio
PIXELS = 600_000


def png(size: int = PIXELS) -> bytes:
    """A file with the chunks of a PNG of 100 x 100 pixels: nothing here decodes it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100, 100, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", os.urandom(size)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def message(text: str) -> bytes:
    return msgspec.json.encode({"data": {"image/png": text, "text/plain": "<Figure>"}, "metadata": {}})


def peak_of(call: Callable[[], Any]) -> int:
    """The memory that a call takes at most, in bytes."""
    tracemalloc.start()
    try:
        found = call()
        del found
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_message_with_a_picture_is_read_with_one_copy() -> None:
    encoded = message(base64.b64encode(png()).decode())
    assert peak_of(lambda: is_readable(encoded) and parse(encoded)) < 1.2 * len(encoded)


def test_a_picture_is_folded_without_a_copy() -> None:
    content = parse(message(base64.b64encode(png()).decode()))
    fold = Fold(Outputs(), Policy(), DisplayIds())
    assert peak_of(lambda: fold.hear("display_data", content)) < PIXELS / 10
    assert fold.outputs.displays[0].data["image/png"] is content["data"]["image/png"]


def test_a_picture_is_recorded_with_two_copies() -> None:
    text = base64.b64encode(png()).decode()
    outputs = Outputs()
    outputs.apply(["show", "display_data", {"image/png": text}, {}, None])
    assert peak_of(lambda: line.to_line("a" * 16, "plot()", {}, outputs)) < 2.7 * len(text)
    assert peak_of(lambda: event.output("a" * 16, [["show", "display_data", {"image/png": text}]])) < 1.6 * len(text)


async def test_a_picture_is_sent_in_the_words_of_the_guest() -> None:
    text = base64.b64encode(png()).decode()
    display = Display("display_data", {"image/png": text}, {}, None, 0, 1, 0)
    tracemalloc.start()
    try:
        found = await pictures_of([(0, display)], 2 * len(text), "local")
        assert tracemalloc.get_traced_memory()[1] < 1.2 * PIXELS  # decoded once, to look at its structure
    finally:
        tracemalloc.stop()
    assert found.blocks[0].data is text


@pytest.mark.parametrize("broken", ["\n", "%"])
async def test_base64_that_a_client_may_refuse_is_encoded_again(broken: str) -> None:
    picture = png(300)
    text = base64.b64encode(picture).decode()
    for given in (broken.join([text[:76], text[76:]]), text + broken):
        display = Display("display_data", {"image/png": given}, {}, None, 0, 1, 0)
        found = await pictures_of([(0, display)], 100_000, "local")
        assert binascii.a2b_base64(found.blocks[0].data, strict_mode=True) == picture


def test_a_result_is_encoded_as_mcp_encodes_it() -> None:
    from mcp.shared.message import SessionMessage

    from kernelmcp.stdio.wire import _encoded  # pyright: ignore[reportPrivateUsage]

    sent = JSONRPCResponse(jsonrpc="2.0", id=1, result={"content": [{"type": "text", "text": "ä\u2028\n"}], "x": None})
    assert _encoded(SessionMessage(sent)) == sent.model_dump_json(by_alias=True, exclude_unset=True).encode()


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b'{"a": [NaN, 1]}', None),
        (b'{"a": "\\ud800"}', {"a": "\ud800"}),
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
        (b'{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_what_only_python_writes_is_read_as_well(encoded: bytes, expected: Any) -> None:
    found = parse(encoded)
    assert found["a"][1] == 1 if expected is None else found == expected


def test_many_parts_are_written_as_one(tmp_path: Path) -> None:
    parts = [zlib.crc32(b"%d" % n).to_bytes(4, "big") * (n % 5) for n in range(3000)]
    file = tmp_path / "file"
    with file.open("wb") as out:
        out.write(b"head")
        out.flush()
        write_at(out.fileno(), parts, 4)
    assert file.read_bytes() == b"head" + b"".join(parts)


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, cut = os.pwrite, iter([1, 3, 7] * 100)

    def short(fd: int, parts: list[memoryview], position: int) -> int:
        return pwrite(fd, b"".join(parts)[: next(cut)], position)

    monkeypatch.setattr(os, "pwritev", short)
    parts = [bytes([n]) * n for n in range(20)]
    file = tmp_path / "file"
    with file.open("wb") as out:
        write_at(out.fileno(), parts, 0)
    assert file.read_bytes() == b"".join(parts)
