"""Requested fonts that are missing: one of matplotlib's own replaces them, or one warning says what to do.

matplotlib includes DejaVu, STIX (Times) and Humor Sans (xkcd), and warns about missing fonts for each text.
"""

# The matplotlib API used here has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

import dataclasses
import logging
import os
import sys
import warnings
from typing import Any

# An included font -> names for which it is used without a warning.
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
_CJK, _CJK_FONT = range(0x2E80, 0xA000), "IPAexGothic"
_ADD_CJK = "For Japanese and many Chinese characters: %pip install matplotlib-fontja, then import matplotlib_fontja"
_NOT_FOUND = "findfont: Font family %r not found."

# Reported in this session: missing fonts, or messages about them; and fonts that lack a character.
_missing: set[str] = set()
_lacking: set[str] = set()


def stand_in(font_manager: Any) -> None:
    """Patch matplotlib.font_manager."""
    fonts = font_manager.fontManager
    aliases = _aliases(fonts.ttflist)
    fonts.ttflist += aliases
    stock = font_manager.FontManager.addfont

    def addfont(manager: Any, path: Any) -> None:
        """A font that the user adds takes precedence over its replacement."""
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
    """A filter for matplotlib's messages about fonts: one for all missing fonts that a program requests."""
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
    """The font of this message, and others requested with it. Empty for messages about something else."""
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
    """Patch matplotlib._text_helpers: name only the first character that a font lacks."""

    def warn_on_missing_glyph(codepoint: int, fontnames: str) -> None:
        if fontnames in _lacking:
            return
        _lacking.add(fontnames)
        name = chr(codepoint).encode("ascii", "namereplace").decode("ascii")
        callers = (os.path.dirname(text_helpers.__file__), os.path.dirname(__file__))
        add = f"{_ADD}, then set plt.rcParams['font.family'] to its name"
        if codepoint in _CJK and _CJK_FONT not in fontnames:
            add = f"{_ADD_CJK}. {add}"
        text = (
            f"Glyph {codepoint} ({name}) missing from font(s) {fontnames}: this and others that it lacks are drawn as "
            f"boxes. {add}."
        )
        warnings.warn(text, UserWarning, skip_file_prefixes=callers)  # pyright: ignore[reportCallIssue]

    text_helpers.warn_on_missing_glyph = warn_on_missing_glyph
