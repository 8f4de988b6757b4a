"""Fonts that are asked for and not here: one of matplotlib's own stands in, or it is said once, with what to do.

matplotlib comes with DejaVu, STIX (Times) and Humor Sans (xkcd), and says that it lacks a font for each text that is
drawn.
"""

# What is used of matplotlib has no types here.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

import dataclasses
import logging
import os
import sys
import warnings
from typing import Any

# A font that is here -> names by which it is taken, without a word.
_STANDS_FOR = {
    "DejaVu Sans": (
        "Arial",
        "Helvetica",
        "Helvetica Neue",
        "Liberation Sans",
        "Arimo",
        "Verdana",
        "Bitstream Vera Sans",
    ),
    "DejaVu Serif": ("Georgia", "Bitstream Vera Serif"),
    "DejaVu Sans Mono": ("Courier", "Courier New", "Liberation Mono", "Cousine", "Consolas", "Monaco", "Menlo"),
    "STIXGeneral": ("Times", "Times New Roman", "Liberation Serif", "Tinos"),
    "Humor Sans": ("xkcd", "xkcd Script", "Comic Neue", "Comic Sans MS"),
}
_ADD = (
    "To use another font, put its .ttf or .otf file into /workspace and call "
    "matplotlib.font_manager.fontManager.addfont('FILE')"
)
_NOT_FOUND = "findfont: Font family %r not found."

# What was said in this session: names of fonts that are missing, and of those that lack a character.
_missing: set[str] = set()
_lacking: set[str] = set()


def stand_in(font_manager: Any) -> None:
    """For matplotlib.font_manager."""
    fonts = font_manager.fontManager
    aliases = _aliases(fonts.ttflist)
    fonts.ttflist += aliases
    stock = font_manager.FontManager.addfont

    def addfont(manager: Any, path: Any) -> None:
        """A font of the user's comes before one that stands in for it."""
        before = len(manager.ttflist)
        stock(manager, path)
        added = {each.name for each in manager.ttflist[before:]}
        manager.ttflist = [each for each in manager.ttflist if each not in aliases or each.name not in added]
        manager._findfont_cached.cache_clear()
        _missing.difference_update(added)

    font_manager.FontManager.addfont = addfont
    font_manager._log.addFilter(_say_once)


def _aliases(fonts: list[Any]) -> list[Any]:
    there = {each.name for each in fonts}
    there = {each.name for each in fonts}
    return [
        dataclasses.replace(each, name=name)
        for each in fonts
        for name in _STANDS_FOR.get(each.name, ())
        if name not in there
    ]


def _say_once(record: logging.LogRecord) -> bool:
    """A filter of matplotlib's messages about fonts: one for all that a program asks for and that are missing."""
    if record.msg != _NOT_FOUND or not isinstance(record.args, tuple) or len(record.args) != 1:
        return True
    (family,) = record.args
    if family in _missing:
        return False
    matplotlib: Any = sys.modules["matplotlib"]
    fonts = matplotlib.font_manager.fontManager
    there = {each.name for each in fonts.ttflist}
    asked = [str(each) for each in matplotlib.rcParams["font.family"]]
    missing = [each for each in asked if each not in there and each not in matplotlib.font_manager.font_family_aliases]
    missing = missing if family in missing else [str(family)]
    first = not _missing
    _missing.update(missing)
    used = next((each for each in asked if each in there), "DejaVu Sans")
    names = ", ".join(map(repr, missing))
    record.msg = f"findfont: Font family {names} not found; {used} is used. {_ADD if first else ''}".rstrip()
    record.args = ()
    return True


def warn_once(text_helpers: Any) -> None:
    """For matplotlib._text_helpers: of the characters that a font lacks, the first is named."""

    def warn_on_missing_glyph(codepoint: int, fontnames: str) -> None:
        if fontnames in _lacking:
            return
        _lacking.add(fontnames)
        name = chr(codepoint).encode("ascii", "namereplace").decode("ascii")
        callers = (os.path.dirname(text_helpers.__file__), os.path.dirname(__file__))
        text = (
            f"Glyph {codepoint} ({name}) missing from font(s) {fontnames}: this and others that it lacks are drawn as "
            f"boxes. {_ADD}, then set plt.rcParams['font.family'] to its name."
        )
        warnings.warn(text, UserWarning, skip_file_prefixes=callers)  # pyright: ignore[reportCallIssue]

    text_helpers.warn_on_missing_glyph = warn_on_missing_glyph
