"""The pictures of a result: the first ones, unchanged or scaled down, until the result is full."""

import binascii
from dataclasses import dataclass, field

import anyio.to_thread
import structlog
from mcp_types import ImageContent

from kernelmcp.cells.cell import Display
from kernelmcp.output.sanitize import joined
from kernelmcp.pictures import headers
from kernelmcp.pictures.decoder import Decoder

MAX_IMAGES = 20
# Longer base64 is not decoded in the event loop.
MAX_INLINE_CHARS = 100_000

log = structlog.get_logger(__name__)


@dataclass
class Pictures:
    """The image blocks of a result, and the outcome for displays with a picture, by their numbers."""

    blocks: list[ImageContent] = field(default_factory=list[ImageContent])
    shown: set[int] = field(default_factory=set[int])
    scaled: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Pictures that were scaled down, and their new sizes."""
    left_out: list[int] = field(default_factory=list[int])


async def pictures_of(rich: list[tuple[int, Display]], room: int, principal: str) -> Pictures:
    """At most `room` bytes of base64. Processed one at a time, so that few are in memory at once."""
    found = Pictures()
    candidates = [(number, display) for number, display in rich if has_picture(display)]
    if not candidates:
        return found
    first = candidates[:MAX_IMAGES]
    found.left_out = [number for number, _ in candidates[MAX_IMAGES:]]
    async with Decoder(principal) as decoder:
        for position, (number, display) in enumerate(first):
            share = room // (len(first) - position)
            block = await _block(found, number, display, share, decoder)
            if block is None:
                found.left_out.append(number)
            else:
                room -= len(block.data)
                found.blocks.append(block)
                found.shown.add(number)
    found.left_out.sort()
    return found


def has_picture(display: Display) -> bool:
    return any(mime in display.data for mime in (*headers.IMAGE_TYPES, headers.SVG_TYPE))


async def _block(found: Pictures, number: int, display: Display, room: int, decoder: Decoder) -> ImageContent | None:
    max_bytes = room * 3 // 4 - 2
    picture = await _find(display)
    if picture is None and headers.SVG_TYPE in display.data:
        picture = await decoder.render(joined(display.data[headers.SVG_TYPE]), max_bytes)
    if picture is None:
        return None
    if not picture.fits(max_bytes):
        found.scaled[number] = picture.width, picture.height
        picture = await decoder.shrink(picture, max_bytes)
        if picture is None:
            del found.scaled[number]
            return None
    text = picture.text or binascii.b2a_base64(picture.data, newline=False).decode()
    return ImageContent(data=text, mime_type=picture.mime_type)


async def _find(display: Display) -> headers.Picture | None:
    data = display.data
    if sum(len(data[mime]) for mime in headers.IMAGE_TYPES if isinstance(data.get(mime), str)) <= MAX_INLINE_CHARS:
        return headers.find(data)
    return await anyio.to_thread.run_sync(headers.find, data)
