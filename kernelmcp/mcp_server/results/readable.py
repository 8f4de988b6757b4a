"""What a model can read of a displayed object that is no picture: its text, else the text in its HTML."""

import re
from html.parser import HTMLParser
from typing import Any

from kernelmcp.output.sanitize import joined

# How much of a guest's HTML is looked at, and how much of its text is given, characters.
MAX_HTML_CHARS = 20_000
MAX_HTML_TEXT_CHARS = 2_000
# What a text form says that says nothing: <IPython.core.display.HTML object>, <Figure object at 0x7f>.
_NOTHING = re.compile(r"<[\w.]+ object(?: at 0x[0-9a-f]+)?>")
_UNSEEN = frozenset({"script", "style", "head", "template", "noscript"})
_BREAKS = frozenset(
    ["p", "div", "br", "tr", "li", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "pre", "details"]
)
_CELLS = frozenset({"td", "th"})


def readable(data: dict[str, Any]) -> str:
    """Of a mime bundle; empty when there is nothing to read."""
    text: Any = data.get("text/markdown") or data.get("text/plain")
    text = joined(text) if text else ""
    if "text/html" not in data or not is_empty(text):
        return text
    return text_of_html(joined(data["text/html"])) or text


def is_empty(text: str) -> bool:
    """Whether a text form only names a type, where another form shows the object."""
    return not text or _NOTHING.fullmatch(text.strip()) is not None


def text_of_html(html: str) -> str:
    """What a reader would see, without markup, scripts and styles. At most `MAX_HTML_TEXT_CHARS`."""
    reader = _Reader()
    reader.feed(html[:MAX_HTML_CHARS])
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))
    text = "\n".join(line.strip("| ") for line in lines if line.strip("| "))
    return text if len(text) <= MAX_HTML_TEXT_CHARS else f"{text[:MAX_HTML_TEXT_CHARS]} [...]"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag in _BREAKS:
            self.pieces.append("\n")
        elif tag in _CELLS:
            self.pieces.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.pieces.append(data.replace("\n", " "))
