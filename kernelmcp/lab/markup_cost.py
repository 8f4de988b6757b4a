"""Tells which HTML would take a parser more than linear time or memory: deep nesting, formats that it opens again in
each block, what it moves out of a table.

It follows a parser in one direction only: its stack has at least the elements that are open there. An end tag that a
parser may ignore therefore ends nothing, and what two parsers may read differently is refused. Must not know what is
shown.
"""

import re
from collections import Counter

MAX_DEPTH = 100
# Copies of formats, in characters; an element counts for as many more as it takes in memory.
MAX_COPIED_CHARS = 10_000_000
ELEMENT_CHARS = 100
# Tags and texts that a table has outside its cells: moving one takes longer the more there is before the table.
MAX_MOVED = 5_000
# A parser compares each attribute of a tag with the others.
MAX_ATTRIBUTES = 1_000

_SPACE = " \t\n\f\r"
_ATTRIBUTE = (
    rf"[^{_SPACE}/>][^{_SPACE}/>=]*+"
    rf"(?:[{_SPACE}]*+=[{_SPACE}]*+(?:\"[^\"]*+\"|'[^']*+'|[^{_SPACE}>\"'][^{_SPACE}>]*+)?+)?+"
)
_ATTRIBUTES = re.compile(_ATTRIBUTE)
# A comment, or a tag: the slash of an end, the name, the attributes.
_TOKEN = re.compile(
    rf"<!--(?:-?>|.*?(?:--!?>|\Z))|<(?:[!?]|/(?![a-z]))[^>]*+>?"
    rf"|<(/?)([a-z][^{_SPACE}/>]*+)((?:[{_SPACE}/]++|{_ATTRIBUTE})*+)>?",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
# Their content is text up to their end tag, but for a parser within drawings, formulas and lists of options.
_RAW = {
    name: re.compile(rf"</{name}(?=[{_SPACE}/>])", re.ASCII | re.IGNORECASE)
    for name in ("iframe", "noembed", "noframes", "noscript", "script", "style", "textarea", "title", "xmp")
}
_FOREIGN = {"svg", "math"}
_EMPTY = {"area", "base", "br", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
_FORMATS = {"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"}
# Elements without an end tag: the next one of their kind ends them, or the end of what they are in.
_TEXTS = {"p"}
_CELLS = _TEXTS | {"td", "th"}
_ROWS = _CELLS | {"tr"}
_TABLES = _ROWS | {"tbody", "thead", "tfoot", "col"}
_ITEMS = _TEXTS | {"dd", "dt", "li"}
_ENDED_BY_NEXT = _TABLES | _ITEMS
_ENDED_WITH = {
    "table": _TABLES,
    "colgroup": {"col"},
    **dict.fromkeys(("tbody", "thead", "tfoot"), _ROWS),
    "tr": _CELLS,
    **dict.fromkeys(("td", "th", "caption"), _TEXTS),
    **dict.fromkeys(("ul", "ol", "dl", "li", "dd", "dt", "div", "blockquote", "center", "details"), _ITEMS),
    **dict.fromkeys(("article", "figcaption", "figure", "section", "summary"), _ITEMS),
    "ruby": {"rp", "rt"},
}
_OF_TABLES = {"table", "caption", "colgroup", "col", "tbody", "thead", "tfoot", "tr", "td", "th"}
_PLACES = _OF_TABLES | _FOREIGN | {"select"}


def is_costly(markup: str) -> bool:
    parsed, at = _Parsed(), 0
    while not parsed.is_over and (token := _TOKEN.search(markup, at)) is not None:
        if markup[at : token.start()].strip(_SPACE):
            parsed.inserted()
        at = token.end()
        end, name, attributes = token.groups()
        if name is None:
            if token[0].startswith("<![CDATA[") and parsed.is_within(_FOREIGN):
                return True
            continue
        name = name.lower() if name.isascii() else name
        if end:
            parsed.ended(name)
            continue
        if len(attributes) > 2 * MAX_ATTRIBUTES and len(_ATTRIBUTES.findall(attributes)) > MAX_ATTRIBUTES:
            return True
        if name in _RAW:
            found = _RAW[name].search(markup, at)
            content = markup[at : found.start() if found else len(markup)].lower()
            is_doubtful = parsed.is_within(_FOREIGN | {"select"}) and "<" in content
            if is_doubtful or (name == "script" and "<!--" in content and "<script" in content):
                return True
            at = found.start() if found else len(markup)
        parsed.began(name, len(token[0]))
    return parsed.is_over


class _Parsed:
    """The elements that a parser may have open, and what it has done."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._count = Counter[str]()
        self._chars: list[int] = []
        """Of each open element: its characters if it is a format."""
        self._format_chars = 0
        self._places: list[str] = []
        """Those of the open elements that decide where a text goes."""
        self._copied_chars = self._moved = 0
        self._is_unclear = self._is_cell_unclear = False
        """Something, or a part of a table, may have ended that is still open here."""

    @property
    def is_over(self) -> bool:
        return len(self._open) > MAX_DEPTH or self._copied_chars > MAX_COPIED_CHARS or self._moved > MAX_MOVED

    def is_within(self, names: set[str]) -> bool:
        return any(self._count[name] for name in names)

    def inserted(self) -> None:
        """Note a text, or an element that is no part of a table."""
        if self._count["table"]:
            self._moved += self._is_cell_unclear or self._places[-1] not in ("td", "th", "caption")

    def began(self, name: str, chars: int) -> None:
        if name not in _OF_TABLES:
            self.inserted()
        self._copied_chars += self._format_chars
        if not self.is_within(_FOREIGN) and (name in _EMPTY or (name in _ENDED_BY_NEXT and self._open[-1:] == [name])):
            return
        self._open.append(name)
        self._count[name] += 1
        self._chars.append(chars + ELEMENT_CHARS if name in _FORMATS else 0)
        self._format_chars += self._chars[-1]
        if name in _PLACES:
            self._places.append(name)

    def ended(self, name: str) -> None:
        is_exact = self._is_unclear or self.is_within(_FOREIGN)
        optional = set[str]() if is_exact else _ENDED_WITH.get(name, set[str]())
        top = len(self._open) - 1
        while top >= 0 and self._open[top] != name and self._open[top] in optional:
            top -= 1
        if top >= 0 and self._open[top] == name:
            while len(self._open) > top:
                self._close()
        else:
            self._is_unclear = True
            self._is_cell_unclear |= name in _OF_TABLES

    def _close(self) -> None:
        name = self._open.pop()
        self._count[name] -= 1
        self._format_chars -= self._chars.pop()
        if name in _PLACES:
            self._places.pop()
