"""Takes out of markup what no Content-Security-Policy stops, before a browser gets it: Lab shows what a person's cell
puts out as it is, and the model may have made the object that the cell shows.

`<meta http-equiv=refresh>` leads the tab to another page, `<link rel=dns-prefetch>` asks a name server for a name that
holds somebody's data, `<base>` moves every address of the page. They become text.
"""

import re
from typing import Any, cast

from kernelmcp.notebook.cells import with_texts

_TAG = re.compile(r"<(?=(?:meta|link|base)(?![a-z0-9_]))", re.IGNORECASE)
# What only shows something with a script or in a frame, and neither is there.
_ACTIVE = re.compile(r"<(?:script|iframe)\b", re.IGNORECASE)


def prefer_pictures(data: dict[str, Any]) -> dict[str, Any]:
    """A mime bundle without its HTML, where that would stay empty and there is a picture: figures of plotly, bokeh."""
    html = data.get("text/html")
    if isinstance(html, str) and _ACTIVE.search(html) and data.keys() & {"image/png", "image/jpeg", "image/svg+xml"}:
        return {mime: value for mime, value in data.items() if mime != "text/html"}
    return data


def tame(value: Any) -> Any:
    """A JSON value with every text made harmless. A list of texts may be one text with a tag spread over its lines."""
    if isinstance(value, str):
        return _TAG.sub("&lt;", value) if "<" in value else value
    if isinstance(value, dict):
        return {key: tame(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        items = [tame(item) for item in cast("list[Any]", value)]
        if all(isinstance(item, str) for item in items) and _TAG.search(whole := "".join(items)):
            return [tame(whole)]
        return items
    return value


def tame_bundle(data: dict[str, Any]) -> dict[str, Any]:
    """A mime bundle as a notebook may have it: texts are texts, whatever the guest made of them."""
    return prefer_pictures(tame(with_texts(data)))
