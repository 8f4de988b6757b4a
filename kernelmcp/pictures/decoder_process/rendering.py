"""Renders SVG as a PNG, with one font: the process can open no file.

Separate from `scaling`, in its own process: a guest's document may name files and addresses, and the renderer can read
them.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import resvg_py
import scaling
from PIL import ImageFont

# A system's font has more characters than the one in Pillow.
FONTS = ("/usr/share/fonts/dejavu/DejaVuSans.ttf", "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
FAMILIES = ("font_family", "serif_family", "sans_serif_family", "cursive_family", "fantasy_family", "monospace_family")
# The longer side of the picture in pixels: readable for a model, and not scaled down by its API.
MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 512, 1568
# The part of the document that contains its size.
HEAD_CHARS = 4096
# As in CSS, for lengths in points and inches: with the renderer's default, 0, such a document has no size.
DOTS_PER_INCH = 96.0
_ROOT = re.compile(r"<svg\b[^<>]*>")
_SIDE = re.compile(r"""\s(width|height)\s*=\s*["']\s*([0-9.]{1,20})\s*(?:px|pt)?\s*["']""")
_VIEW_BOX = re.compile(r"""\sviewBox\s*=\s*["']\s*[-0-9.]+[\s,]+[-0-9.]+[\s,]+([0-9.]{1,20})[\s,]+([0-9.]{1,20})""")


class Font(NamedTuple):
    path: str
    family: str


def font() -> Font | None:
    """A font in memory, with a path that works when files cannot be opened: the renderer opens it for each document."""
    if not hasattr(os, "memfd_create"):
        return None
    own = ImageFont.load_default(size=16)
    data, family = own.font_bytes if isinstance(own, ImageFont.FreeTypeFont) else b"", "Aileron"
    for path in FONTS:
        with suppress(OSError):
            data, family = Path(path).read_bytes(), "DejaVu Sans"
    fd = os.memfd_create("font")
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(data)
    return Font(f"/proc/self/fd/{fd}", family)


def render(document: bytes, max_bytes: int, font: Font | None) -> tuple[str, bytes] | None:
    """The picture in at most `max_bytes`, and its format (PNG or JPEG); None if that fails."""
    try:
        text = document.decode()
        options: dict[str, Any] = dict.fromkeys(FAMILIES, font.family) if font else {}
        options |= _target(text[:HEAD_CHARS])
        drawn = resvg_py.svg_to_bytes(
            svg_string=text,
            background="#ffffff",
            dpi=DOTS_PER_INCH,
            skip_system_fonts=True,
            font_files=[font.path] if font else [],
            **options,
        )
    except Exception:  # noqa: BLE001  # whatever a hostile document makes of the program
        return None
    return ("PNG", drawn) if len(drawn) <= max_bytes else scaling.shrink(drawn, max_bytes)


def _target(head: str) -> dict[str, int]:
    """The longer side in pixels, according to the document's root element, within limits."""
    root = _ROOT.search(head)
    head = root[0] if root else head
    box = _VIEW_BOX.search(head)
    sides = dict(zip(("width", "height"), box.groups(), strict=True)) if box else {}
    sides |= dict(_SIDE.findall(head))
    try:
        width, height = float(sides.get("width", 0)), float(sides.get("height", 0))
    except ValueError:
        width = height = 0.0
    longer = "height" if height > width else "width"
    return {longer: round(min(max(width, height, MIN_SIDE_PIXELS), MAX_SIDE_PIXELS))}
