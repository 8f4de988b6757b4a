"""What scripts/corpus calls the same: pictures whose text is a pixel elsewhere, numbers in their last digits."""

import base64
import sys
import zlib
from typing import Any

import pytest
from PIL import Image, ImageDraw

from tests.docs.test_docs_unit import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from corpus import same_pictures, same_text, verdict


def figure(*, moved: int = 0, curve: bool = True, width: int = 320) -> list[Any]:
    """Axes with a curve and a title, as corpus_program.py packs a figure."""
    image = Image.new("L", (width, 240), 255)
    draw = ImageDraw.Draw(image)
    draw.rectangle((40, 30 + moved, 280, 210 + moved), outline=0)
    draw.text((120, 12 + moved), "A title of some length", fill=0)
    if curve:
        draw.line([(x, 120 + moved + (x % 60)) for x in range(50, 270, 10)], fill=80)
    return [image.width, image.height, base64.b64encode(zlib.compress(image.tobytes())).decode()]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (figure(), True),
        (figure(moved=2), True),
        (figure(moved=9), False),
        (figure(curve=False), False),
        (figure(width=321), False),
    ],
    ids=["itself", "two pixels", "nine pixels", "no curve", "another size"],
)
def test_pictures(other: list[Any], same: bool) -> None:
    assert same_pictures([figure()], [other]) is same
    assert same_pictures([other], [figure()]) is same


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ("x 0.30000001 y", "same but for digits"),
        ("x 0.31 y", "other text"),
        ("z 0.3 y", "other text"),
        ("x 0.3 y", "same"),
    ],
)
def test_text(theirs: str, said: str) -> None:
    assert same_text("x 0.3 y", theirs) == said
    assert same_text("array([1], dtype=int64)", "array([1], dtype=int32)") == "same but for 32 bits"


def test_who_fails() -> None:
    fine = {"error": "", "out": "1", "figures": []}
    broken = {"error": "ValueError: 1", "out": "", "figures": []}
    assert verdict(broken, fine) == "fails here"
    assert verdict(fine, broken) == "fails natively"
    assert verdict(broken, broken) == "same"
    assert verdict({**fine, "figures": [figure()], "shown": 0}, {**fine, "figures": [figure()]}) == "no picture shown"
