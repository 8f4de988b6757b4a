"""The content of a file as a tool takes and gives it: text, base64, or a picture that a model can see."""

import base64
import binascii
import codecs
import string
from dataclasses import dataclass
from typing import Literal

import anyio.to_thread
from mcp_types import CallToolResult

from kernelmcp.cells.cell import Display
from kernelmcp.errors import InvalidArgument
from kernelmcp.files.workspace import Piece
from kernelmcp.mcp_server import schemas
from kernelmcp.mcp_server.tools.contract_tool import structured_result
from kernelmcp.output.sanitize import counted
from kernelmcp.output.spool import UTF8_MAX_BYTES
from kernelmcp.pictures import headers
from kernelmcp.pictures.for_results import pictures_of

Encoding = Literal["text", "base64"]
# Of base64.
MAX_PICTURE_CHARS = 800_000
# As programs break base64 into lines.
_NO_BLANKS = dict.fromkeys(map(ord, string.whitespace))
MAX_BEFORE_BYTES = UTF8_MAX_BYTES - 1
# What holds the end of a character, and the next one.
MIN_TEXT_BYTES = 2 * UTF8_MAX_BYTES - 1
# The bytes of UTF-8 that no character begins with.
_LATER_BYTES = bytes(range(0x80, 0xC0))


async def picture_result(session_id: str, path: str, file: Piece, principal: str) -> CallToolResult | None:
    """A picture for the model to see; None when it is too large, or damaged."""
    picture = headers.claimed(file.data) if len(file.data) == file.size else None
    if picture is None:
        return None
    encoded = await anyio.to_thread.run_sync(base64.b64encode, file.data)
    display = Display("display_data", {picture.mime_type: encoded.decode()}, {}, None, 0, 0, 0)
    found = await pictures_of([(0, display)], MAX_PICTURE_CHARS, principal)
    if not found.blocks:
        return None
    result: schemas.ReadResult = {
        "session_id": session_id,
        "path": path,
        "size": file.size,
        "encoding": "base64",
        "content": "",
        "offset": 0,
        "next_offset": None,
        "truncated": True,
    }
    smaller = ", made smaller to be shown here" if found.scaled else ""
    text = (
        f"{path}: {picture.mime_type}, {picture.width:,} x {picture.height:,} pixels, "
        f"{counted(file.size, 'byte')}{smaller}. "
        'Its bytes: encoding="base64".'
    )
    called = structured_result(result, text)
    called.content.extend(found.blocks)
    return called


@dataclass(frozen=True)
class Content:
    """What a piece of a file holds: of text only whole characters, so that it may begin and end within the piece."""

    text: str
    encoding: Encoding
    start: int
    end: int


def to_content(data: bytes, limit: int, encoding: Encoding | None, path: str, before: bytes) -> Content:
    """The content of the first `limit` bytes, or of one character if that has more. `before`: the bytes in front of
    them, `MAX_BEFORE_BYTES` if there are so many. Raises InvalidArgument."""
    if encoding != "base64":
        start = _begun_before(before, data)
        text = _whole_characters(data[start:limit])
        if text == "":
            text = _whole_characters(data[start : start + UTF8_MAX_BYTES])
        if text or (text is not None and start == len(data)):
            return Content(text, "text", start, start + len(text.encode()))
        if encoding == "text":
            raise InvalidArgument(f"{path!r} is not UTF-8 text", 'Use encoding "base64".', argument="encoding")
    data = data[:limit]
    return Content(base64.b64encode(data).decode(), "base64", 0, len(data))


def _begun_before(before: bytes, data: bytes) -> int:
    """How many bytes of `data` are the end of a character that begins in `before`."""
    first = data[:MAX_BEFORE_BYTES]
    end = first[: len(first) - len(first.lstrip(_LATER_BYTES))]
    return len(end) if any(_is_character(before[at:] + end) for at in range(len(before))) else 0


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def _whole_characters(data: bytes) -> str | None:
    """Without a last one that is cut through; None if it is not UTF-8."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return None


def from_content(content: str, encoding: Encoding) -> bytes:
    """The bytes of an argument. Raises InvalidArgument."""
    try:
        if encoding == "text":
            return content.encode()
        return base64.b64decode(content.translate(_NO_BLANKS), validate=True)
    except UnicodeEncodeError as exc:
        raise InvalidArgument(
            "content is not valid Unicode: it has a lone surrogate", 'Use encoding "base64".', argument="content"
        ) from exc
    except (binascii.Error, ValueError) as exc:
        raise InvalidArgument(
            f"content is not base64: {exc}",
            'Give it without a data: prefix, with its padding, and with + and /; text needs encoding "text".',
            argument="content",
        ) from exc


def about(path: str, piece: Piece) -> str:
    """What is said of a file whose content is not shown."""
    return f'{path}: {counted(piece.size, "byte")}, binary. Read it with code, or with encoding="base64".'
