"""Sanitizes a guest's outputs for Lab's page: nh3 keeps the markup of an allow-list, before a document or a browser
gets it. Lab shows the outputs of a person's cell unchanged, but the model may have made the object that is shown.

Removed: scripts, frames, forms and buttons, attributes that Lab or a browser acts upon, styles that reach beyond
their element, and addresses other than those of links that a person clicks. The page's policy (`page_policy.py`) is
the second barrier.
"""

import re
from typing import Any, cast

import nh3

from kernelmcp.cells.line import with_texts
from kernelmcp.lab.markup_cost import is_costly

# Longer HTML is omitted: cleaning it would block the page, and nobody reads it.
MAX_HTML_CHARS = 1_000_000
# Of all texts of a widget's message together: a guest sends such messages as fast as it likes.
MAX_WIDGET_CHARS = 200_000
_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "caption", "center", "cite", "code", "col", "colgroup", "dd", "del"),
    *("details", "dfn", "div", "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i"),
    *("img", "ins", "kbd", "li", "mark", "ol", "p", "pre", "q", "rp", "rt", "ruby", "s", "samp", "small", "span"),
    *("strike", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time", "tr", "tt"),
    *("u", "ul", "var", "wbr"),
}
_ATTRIBUTES = {
    "*": {"style", "title", "lang", "dir", "align"},
    "a": {"href"},
    "col": {"span", "width"},
    "colgroup": {"span", "width"},
    "details": {"open"},
    "img": {"src", "alt", "width", "height"},
    "ol": {"start", "type"},
    "table": {"border", "width"},
    "td": {"colspan", "rowspan", "valign"},
    "th": {"colspan", "rowspan", "scope", "valign"},
}
# Styles of the element itself: none that move, enlarge or cover.
_STYLES = {
    *("background-color", "border", "border-bottom", "border-collapse", "border-color", "border-left", "border-radius"),
    *(
        "border-right",
        "border-spacing",
        "border-style",
        "border-top",
        "border-width",
        "color",
        "font-style",
        "font-weight",
    ),
    *("font-family", "padding", "padding-left", "padding-right", "text-align", "text-decoration", "vertical-align"),
    *("white-space", "max-width", "width"),
}
_LINK = re.compile(r"(?:https?://|mailto:|#)", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp|svg\+xml)[;,]", re.IGNORECASE)
# Elements that need a script or a frame, which the page does not have.
_ACTIVE = re.compile(r"<(?:script|iframe|object|embed)\b", re.IGNORECASE)
_MARKUP = re.compile(r"<[a-z/!?]", re.IGNORECASE)
# Tags in Markdown that become text: all except those with only a name, and addresses.
_IN_MARKDOWN = re.compile(
    r"<(?!/?(?:b|i|em|strong|s|u|br|hr|sub|sup|kbd|small|mark|code|details|summary|p)\s*/?>|(?:https?://|mailto:)[^\s<>]*>)"
    r"(?=[a-z/!?])",
    re.IGNORECASE,
)
# Inserted between a bracket and its name: the rest is then no tag, in code either, and reads the same.
_APART = "<\N{WORD JOINER}"
_NOT_SHOWN = "[this HTML is too long to be shown, or nested too deep]"


class Room:
    """The room for the HTML of one message."""

    def __init__(self, chars: int = MAX_HTML_CHARS) -> None:
        self._left = chars

    def take(self, chars: int) -> bool:
        """Reserve it; returns whether there was enough."""
        if chars > self._left:
            return False
        self._left -= chars
        return True


def clean_html(markup: str, room: Room | None = None) -> str:
    """Sanitize the HTML of an output. If it is too long, a note replaces it."""
    if not _MARKUP.search(markup):
        return markup
    if not (room or Room()).take(len(markup)) or is_costly(markup):
        return _NOT_SHOWN
    return nh3.clean(
        markup,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=_address,
        allowed_classes={"table": {"dataframe"}},
        filter_style_properties=_STYLES,
        url_schemes={"http", "https", "mailto", "data"},
        clean_content_tags={"script", "style", "template", "noscript"},
        link_rel="noopener noreferrer",
    )


def _address(tag: str, attribute: str, value: str) -> str | None:
    """An attribute's value; None to omit it."""
    if attribute == "href":
        return value if _LINK.match(value) else None
    if attribute == "src":
        return value if _PICTURE.match(value) else None
    return value


def tame_bundle(data: dict[str, Any], room: Room | None = None) -> dict[str, Any]:
    """Sanitize a mime bundle for a notebook: texts become strings, whatever the guest sent. HTML that is empty without
    its scripts is omitted if there is another representation: figures of plotly and bokeh."""
    given = with_texts(data)
    html = given.get("text/html")
    is_active = isinstance(html, str) and _ACTIVE.search(html) is not None
    if is_active and given.keys() & {"image/png", "image/jpeg", "image/svg+xml"}:
        del given["text/html"]
    room = room or Room()
    tamed = {mime: _tamed(mime, value, room) for mime, value in given.items()}
    if is_active and len(tamed) > 1 and not _says_anything(tamed.get("text/html", "x")):
        del tamed["text/html"]
    return tamed


def _says_anything(html: str) -> bool:
    return html != _NOT_SHOWN and ("<img" in html or bool(re.sub(r"<[^>]*>", "", html).strip()))


def _tamed(mime: str, value: Any, room: Room) -> Any:
    if not isinstance(value, str) or mime.startswith(("image/", "text/plain")):
        return value  # Lab shows pictures, including SVG, as images: nothing in them runs or is fetched
    if mime in ("text/markdown", "text/latex"):
        return _IN_MARKDOWN.sub(_APART, value)
    return clean_html(value, room)


def tame_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Sanitize an output's metadata: keep picture sizes, drop requests for another display mode (`isolated`: a
    frame)."""
    sized: dict[str, Any] = {}
    for mime, value in metadata.items():
        if isinstance(value, dict):
            found = cast("dict[str, Any]", value)
            sizes = {name: found[name] for name in ("width", "height", "needs_background") if name in found}
            sized[mime] = {name: size for name, size in sizes.items() if isinstance(size, int | float | str)}
    return {mime: sizes for mime, sizes in sized.items() if sizes}


def tame_state(value: Any, room: Room | None = None, joined_room: Room | None = None) -> Any:
    """Sanitize a JSON value of a widget: clean every text that contains markup, because a widget shows some of its
    texts as HTML, and only its own code knows which. joined_room: for lists, whose texts a widget may join."""
    room, joined_room = room or Room(MAX_WIDGET_CHARS), joined_room or Room(MAX_WIDGET_CHARS)
    if isinstance(value, str):
        return clean_html(value, room)
    if isinstance(value, dict):
        return {key: tame_state(item, room, joined_room) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        items = [tame_state(item, room, joined_room) for item in cast("list[Any]", value)]
        if all(isinstance(item, str) for item in items) and _MARKUP.search(whole := "".join(items)):
            joined = clean_html(whole, joined_room)
            if joined == _NOT_SHOWN:
                return [_NOT_SHOWN if "<" in item else item for item in items]
            return items if joined == whole else [joined]
        return items
    return value
