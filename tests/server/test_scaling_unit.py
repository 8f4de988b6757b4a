"""A picture that is scaled shows what it showed: its greys, and which way up it is."""

import io

import pytest
from PIL import ExifTags, Image, ImageDraw

from kernelmcp.pictures.decoder_process.scaling import shrink


def scaled(data: bytes) -> Image.Image:
    found = shrink(data, len(data) - 1)
    assert found is not None
    return Image.open(io.BytesIO(found[1])).convert("L")


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("side", [300, 4200], ids=["small", "read in strips"])
def test_greys_of_16_bits_stay_grey(side: int) -> None:
    row = b"\0\x40" * (side // 2) + b"\0\xc0" * (side // 2)
    image = Image.frombytes("I;16", (side, side), row * side)
    found = scaled(encoded(image, "PNG", compress_level=0))
    at = [found.getpixel((found.width * part // 4, found.height // 2)) for part in (1, 3)]
    assert at == pytest.approx([64, 192], abs=2)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_photograph_is_the_right_way_up(turn: int, kind: str) -> None:
    image = Image.new("L", (400, 300), 255)
    ImageDraw.Draw(image).rectangle((0, 0, 200, 150), fill=0)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = turn
    found = scaled(encoded(image, kind, quality=100, compress_level=0, exif=exif))
    assert not found.getexif()
    assert (found.width > found.height) == (turn < 5)
    corner = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 1), 8: (0, 1)}[turn]
    dark = [
        (x, y) for x in (0, 1) for y in (0, 1) if found.getpixel((x * (found.width - 1), y * (found.height - 1))) < 99
    ]
    assert dark == [corner]


def test_damaged_metadata_turn_nothing() -> None:
    data = encoded(
        Image.new("L", (400, 300)), "JPEG", quality=100, exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xff" * 50
    )
    assert scaled(data).size[0] > scaled(data).size[1]
