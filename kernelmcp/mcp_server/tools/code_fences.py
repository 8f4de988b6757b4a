"""Markdown fences around a whole cell: models leave them there, and no language means anything by them."""

import re

_FENCED = re.compile(
    r"\s*(?P<fence>`{3,}|~{3,})[ \t]*(?P<tag>[\w+.-]*)[ \t]*\n(?P<code>.*?)\n?[ \t]*(?P=fence)\s*", re.DOTALL
)
_LANGUAGES = {
    **dict.fromkeys(("py", "python3", "ipython"), "python"),
    **dict.fromkeys(("js", "node"), "javascript"),
    **dict.fromkeys(("bash", "sh", "zsh", "console"), "shell"),
}


def without_fences(code: str) -> tuple[str, str | None] | None:
    """The code inside, and the language that the fence names. None if there are no fences, or others within."""
    match = _FENCED.fullmatch(code)
    if match is None or re.search(rf"^\s*{match['fence']}", match["code"], re.MULTILINE):
        return None
    tag = match["tag"].lower()
    return match["code"], _LANGUAGES.get(tag, tag) or None
