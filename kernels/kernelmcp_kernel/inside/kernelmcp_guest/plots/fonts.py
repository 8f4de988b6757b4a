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

# What was said in this session: fonts that are missing, or messages about them; and fonts that lack a character.
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
    return [
        dataclasses.replace(each, name=name)
        for each in fonts
        for name in _STANDS_FOR.get(each.name, ())
        if name not in there
    ]


def _say_once(record: logging.LogRecord) -> bool:
    """A filter of matplotlib's messages about fonts: one for all that a program asks for and that are missing."""
    text = record.getMessage()
    if not text.startswith("findfont: "):
        return True
    missing = _asked_and_missing(record) or [text]
    if not _missing.isdisjoint(missing):
        return False
    if missing != [text]:
        text = f"findfont: Font family {', '.join(map(repr, missing))} not found; {_used()} is used"
    record.msg, record.args = f"{text.rstrip('.')}. {_ADD}" if not _missing else text, ()
    _missing.update(missing)
    return True


def _asked_and_missing(record: logging.LogRecord) -> list[str]:
    """The font of this message, and others that are asked for with it. Empty for messages about something else."""
    if record.msg != _NOT_FOUND or not isinstance(record.args, tuple) or len(record.args) != 1:
        return []
    family = str(record.args[0])
    matplotlib: Any = sys.modules["matplotlib"]
    there = {each.name for each in matplotlib.font_manager.fontManager.ttflist}
    there.update(matplotlib.font_manager.font_family_aliases)
    missing = [str(each) for each in matplotlib.rcParams["font.family"] if each not in there]
    return missing if family in missing else [family]


def _used() -> str:
    matplotlib: Any = sys.modules["matplotlib"]
    there = {each.name for each in matplotlib.font_manager.fontManager.ttflist}
    return next((str(each) for each in matplotlib.rcParams["font.family"] if each in there), "DejaVu Sans")


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
