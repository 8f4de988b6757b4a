"""The text of a displayed object that is no picture, for a model: its text form, else its JSON, its LaTeX, or the
text in its HTML.

A guest's HTML is scanned once, in linear time: the standard library's parser is quadratic for broken markup, and
raises. No decision depends on the result.
"""

import html
import json
import re
from typing import Any

from kernelmcp.output.sanitize import joined
from kernelmcp.sessions.installed_packages import PACKAGES_TYPE

# Characters of a guest's HTML that are scanned, and of the text of a form other than text that are returned.
MAX_HTML_CHARS = 20_000
MAX_FORM_CHARS = 2_000
# Text forms without information: <IPython.core.display.HTML object>, <Figure object at 0x7f>, <Styler at 0x1>.
_NOTHING = re.compile(r"<[\w.]{1,200}(?: object| at 0x[0-9a-f]{1,20}| object at 0x[0-9a-f]{1,20})>")
# A comment, a script or a style, which without its end is the rest of the document; or a tag, its slash and its name; a
# declaration has no name. Each attempt to find a tag ends at the next angle bracket,
# or with the text, which may be cut within a tag.
_TAG = re.compile(
    r"<!--(?s:.*?-->|.*)"
    r"|<(?P<raw>(?i:script|style))(?=[\s/>])[^<>]*>(?si:.*?</(?P=raw)(?=[\s/>])[^<>]*>|.*)"
    r"|<(?:(?P<slash>/?)(?P<name>[a-zA-Z][a-zA-Z0-9]{0,20})|[!?])[^<>]*(?:>|\Z)"
)
# A browser shows the text within a sound or a film only if it cannot play it.
_UNSEEN = frozenset({"head", "template", "noscript", "audio", "video"})
_PLAYED = re.compile(r"""<(?:audio|video)\b[^<>]*>\s*<source src=["']data:((?:audio|video)/[\w.+-]{1,50})""")
# The part before the table itself.
_MAX_STYLE_CHARS = 1_000
_BREAKS = frozenset({"p", "div", "br", "tr", "li", "table", "ul", "ol", "pre", "h1", "h2", "h3", "h4", "h5", "h6"})
_CELLS = frozenset({"td", "th"})


def readable(data: dict[str, Any], *, look_at_html: bool = True) -> str:
    """The text of a mime bundle; empty if there is nothing to read."""
    text: Any = data.get("text/markdown") or data.get("text/plain")
    text = joined(text) if text else ""
    if not is_empty(text):
        return text
    if "application/json" in data:
        return _text_of_json(data["application/json"])
    if "text/latex" in data:
        return _cut(joined(data["text/latex"]))
    if "text/html" not in data or not look_at_html:
        return text
    return text_of_html(joined(data["text/html"])) or text


def is_empty(text: str) -> bool:
    """True if a text form only names a type, so that another form shows the object."""
    return not text or _NOTHING.fullmatch(text.strip()) is not None


def says_all(data: dict[str, Any]) -> bool:
    """True if the text form is complete: for an installation, and for a table of pandas or similar."""
    if PACKAGES_TYPE in data:
        return True
    html: Any = data.get("text/html", "")
    table = 'class="dataframe"' in joined(html)[:_MAX_STYLE_CHARS]
    return table and data.keys() <= {"text/plain", "text/html"} and not is_empty(joined(data.get("text/plain", "")))


def played(data: dict[str, Any]) -> str | None:
    """The MIME type of the sound or the film that is in the HTML, if any: as IPython's `Audio` and `Video` write it."""
    found = _PLAYED.search(joined(data.get("text/html", ""))[:_MAX_STYLE_CHARS])
    return found[1] if found else None


def text_of_html(document: str) -> str:
    """The visible text, without markup, scripts and styles. At most `MAX_FORM_CHARS`."""
    document = document[:MAX_HTML_CHARS]
    pieces: list[str] = []
    position = unseen = 0
    keeps_lines = False
    for tag in (*_TAG.finditer(document), None):
        if not unseen:
            text = document[position : tag.start() if tag else None]
            pieces.append(text if keeps_lines else text.replace("\n", " "))
        if tag is None:
            break
        position = tag.end()
        name = (tag["name"] or "").lower()
        if name in _UNSEEN:
            unseen = max(0, unseen - 1) if tag["slash"] else unseen + 1
        elif name in _BREAKS and not tag["slash"]:
            pieces.append("\n")
        elif name in _CELLS and not tag["slash"]:
            pieces.append(" | ")
        if name == "pre":
            keeps_lines = not tag["slash"]
    lines = (" ".join(line.split()).strip("| ") for line in html.unescape("".join(pieces)).split("\n"))
    return _cut("\n".join(filter(None, lines)))


def _text_of_json(value: Any) -> str:
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece
        if len(text) > MAX_FORM_CHARS:  # the rest is not even encoded
            break
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_FORM_CHARS else f"{text[:MAX_FORM_CHARS]} [...]"
