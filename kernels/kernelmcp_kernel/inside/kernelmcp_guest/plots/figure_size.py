"""The size of a figure's image: if it has more pixels than a result can show, it is drawn with fewer.

6,000 x 4,500 pixels take a guest ten seconds, and at most a third are visible. `savefig` writes the requested size.
"""

# pyright: reportUnknownMemberType=false

import sys
from base64 import b64encode
from typing import Any

from IPython.core import pylabtools

# Sides, in pixels: results scale down images above the first (kernelmcp/pictures/headers.py). These get the second.
MAX_SIDE, LOWERED_SIDE = 4096, 2048
_PIXEL_FORMATS = ("png", "retina", "jpg", "jpeg", "webp")
_PNG = b"\x89PNG\r\n\x1a\n"

_stock: Any = vars(pylabtools)["print_figure"]


def install() -> None:
    """For the boot image: the formatters of figures look it up by name."""
    pylabtools.print_figure = print_figure


def print_figure(
    fig: Any, fmt: str = "png", bbox_inches: Any = "tight", base64: bool = False, **kwargs: Any
) -> str | bytes | None:
    """IPython's print_figure, with as many dots per inch as fit."""
    if fmt not in _PIXEL_FORMATS:
        return _stock(fig, fmt, bbox_inches, base64, **kwargs)
    asked: float = kwargs.get("dpi", fig.dpi * (2 if fmt == "retina" else 1))
    longer: float = max(fig.get_size_inches())
    dpi = asked if longer * asked <= MAX_SIDE else LOWERED_SIDE / longer
    drawn = _stock(fig, fmt, bbox_inches, False, **kwargs | {"dpi": dpi})
    # Artists outside a figure are also in its image.
    if (sides := _sides(drawn)) and max(sides) > MAX_SIDE:
        dpi *= LOWERED_SIDE / max(sides)
        drawn = _stock(fig, fmt, bbox_inches, False, **kwargs | {"dpi": dpi})
    if dpi < asked and drawn is not None:
        _say(fig, dpi, asked)
    return b64encode(drawn).decode() if base64 and isinstance(drawn, bytes) else drawn


def _sides(drawn: Any) -> tuple[int, int] | None:
    is_png = isinstance(drawn, bytes) and drawn.startswith(_PNG)
    return (int.from_bytes(drawn[16:20], "big"), int.from_bytes(drawn[20:24], "big")) if is_png else None


def _say(fig: Any, dpi: float, asked: float) -> None:
    width, height = fig.get_size_inches()
    name = f"Figure {fig.number}" if hasattr(fig, "number") else "The figure"
    sys.stderr.write(
        f"{name} ({width:g} x {height:g} inches) is shown at {dpi:.0f} dpi instead of {asked:g}, so that its picture "
        "fits; savefig('NAME.png') writes it whole\n"
    )
