"""Shows a picture in the terminal, if the environment says that the terminal supports it.

Supports Kitty's protocol, iTerm2's, and sixel. The terminal itself is not queried: if it did not answer, the program
would hang. None of the protocols works reliably through tmux and screen.
"""

import base64
import io
from collections.abc import Mapping
from typing import TextIO

CHUNK = 4096
SIXEL_COLOURS = 32
# Values of TERM_PROGRAM.
_KITTY_PROGRAMS = ("ghostty", "kitty")
_ITERM_PROGRAMS = ("iTerm.app", "WezTerm", "mintty", "rio", "WarpTerminal")
# Prefixes of TERM.
_SIXEL_TERMS = ("foot", "mlterm", "contour", "yaft", "xterm-sixel")


def protocol(out: TextIO, environ: Mapping[str, str]) -> str | None:
    """The image protocol of this terminal: "kitty", "iterm" or "sixel"."""
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if not out.isatty() or environ.get("TMUX") or term.startswith(("screen", "tmux")) or term == "dumb":
        return None
    if environ.get("KITTY_WINDOW_ID") or program in _KITTY_PROGRAMS or "kitty" in term or "ghostty" in term:
        return "kitty"
    if program in _ITERM_PROGRAMS or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    return "sixel" if term.startswith(_SIXEL_TERMS) or "sixel" in term else None


def encoded(png: bytes, kind: str) -> str:
    """The picture in this protocol. Raises ValueError if it cannot be read."""
    return {"kitty": _kitty, "iterm": _iterm, "sixel": _sixel}[kind](png)


def _kitty(png: bytes) -> str:
    data = base64.b64encode(png).decode("ascii")
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    heads = ["a=T,f=100,q=2,", *[""] * (len(chunks) - 1)]
    last = len(chunks) - 1
    return "".join(
        f"\033_G{head}m={int(place < last)};{chunk}\033\\"
        for place, (head, chunk) in enumerate(zip(heads, chunks, strict=True))
    )


def _iterm(png: bytes) -> str:
    return f"\033]1337;File=inline=1;size={len(png)}:{base64.b64encode(png).decode('ascii')}\a"


def _sixel(png: bytes) -> str:
    """Bands of six rows; the colours of a band are separate lines that overlay each other."""
    from PIL import Image

    try:
        # The demo's own chart: an untrusted picture would be decoded in a confined process.
        with Image.open(io.BytesIO(png), formats=["PNG"]) as opened:
            picture = opened.convert("RGB").quantize(SIXEL_COLOURS)
    except (OSError, SyntaxError) as exc:
        raise ValueError("the picture cannot be read") from exc
    width, height = picture.size
    pixels, palette = picture.tobytes(), picture.getpalette() or []
    percent = [round(value / 2.55) for value in palette]
    used = sorted(set(pixels))
    colours = "".join(f"#{one};2;{percent[3 * one]};{percent[3 * one + 1]};{percent[3 * one + 2]}" for one in used)
    bands: list[str] = []
    for top in range(0, height, 6):
        rows = [pixels[y * width : (y + 1) * width] for y in range(top, min(top + 6, height))]
        lines = [f"#{one}" + _band(rows, one, width) for one in sorted(set(b"".join(rows)))]
        bands.append("$".join(lines))
    return f'\033P0;1q"1;1;{width};{height}{colours}{"-".join(bands)}\033\\'


def _band(rows: list[bytes], colour: int, width: int) -> str:
    """One character per column, whose bits are the rows with this colour; repeated ones are counted."""
    columns = [sum((row[x] == colour) << bit for bit, row in enumerate(rows)) for x in range(width)]
    found: list[str] = []
    start = 0
    for x in range(1, width + 1):
        if x == width or columns[x] != columns[start]:
            character, count = chr(63 + columns[start]), x - start
            found.append(character * count if count < 4 else f"!{count}{character}")
            start = x
    return "".join(found)
