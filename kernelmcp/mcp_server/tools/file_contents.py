"""The content of a file as a tool takes and gives it: text, base64, or a picture that a model can see."""

import base64
import binascii
from typing import Literal

import anyio.to_thread
from mcp_types import CallToolResult

from kernelmcp.cells.cell import Display
from kernelmcp.errors import InvalidArgument
from kernelmcp.files.workspace import Piece
from kernelmcp.mcp_server import schemas
from kernelmcp.mcp_server.tools.contract_tool import structured_result
from kernelmcp.output.sanitize import counted
from kernelmcp.pictures import headers
from kernelmcp.pictures.for_results import pictures_of

Encoding = Literal["text", "base64"]
# Of base64.
MAX_PICTURE_CHARS = 800_000


async def picture_result(session_id: str, path: str, file: Piece) -> CallToolResult | None:
    """A picture for the model to see; None when it is too large, or damaged."""
    picture = headers.claimed(file.data) if len(file.data) == file.size else None
    if picture is None:
        return None
    encoded = await anyio.to_thread.run_sync(base64.b64encode, file.data)
    display = Display("display_data", {picture.mime_type: encoded.decode()}, {}, None, 0, 0)
    found = await pictures_of([(0, display)], MAX_PICTURE_CHARS)
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


def to_content(data: bytes, encoding: Encoding | None, path: str) -> tuple[str, int, Encoding]:
    """The content, how many of the bytes it holds (a character that was cut through is left for the next piece),
    and its encoding."""
    if encoding != "base64":
        try:
            return data.decode(), len(data), "text"
        except UnicodeDecodeError as exc:
            # A cut character: at most its first three bytes are there.
            if exc.reason == "unexpected end of data" and exc.start > 0:
                return data[: exc.start].decode(), exc.start, "text"
            if encoding == "text":
                raise InvalidArgument(
                    f"{path!r} is not UTF-8 text", 'Use encoding "base64".', argument="encoding"
                ) from exc
    return base64.b64encode(data).decode(), len(data), "base64"


def from_content(content: str, encoding: Encoding) -> bytes:
    """The bytes of an argument. Raises InvalidArgument."""
    try:
        return content.encode() if encoding == "text" else base64.b64decode(content, validate=True)
    except UnicodeEncodeError as exc:
        raise InvalidArgument(
            "content is not valid Unicode: it has a lone surrogate", 'Use encoding "base64".', argument="content"
        ) from exc
    except (binascii.Error, ValueError) as exc:
        raise InvalidArgument(
            f"content is not base64: {exc}", 'Use encoding "text" for text.', argument="content"
        ) from exc


def about(path: str, piece: Piece) -> str:
    """What is said of a file whose content is not shown."""
    return f'{path}: {counted(piece.size, "byte")}, binary. Read it with code, or with encoding="base64".'
