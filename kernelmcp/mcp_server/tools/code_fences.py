"""Markdown fences around a whole cell: models leave them there, and no language means anything by them."""

import re

_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*([\w+.-]*)")
MAX_OPENING_CHARS = 100
_LANGUAGES = {
    **dict.fromkeys(("py", "python3", "ipython"), "python"),
    **dict.fromkeys(("js", "node"), "javascript"),
    **dict.fromkeys(("bash", "sh", "zsh", "console"), "shell"),
}


def without_fences(code: str) -> tuple[str, str | None] | None:
    """The code inside, and the language that the fence names. None if there are no fences, or others within."""
    first, _, rest = code.strip().partition("\n")
    inside, _, last = rest.rpartition("\n")
    opening = first.strip()
    if len(opening) > MAX_OPENING_CHARS or (match := _OPENING.fullmatch(opening)) is None or last.strip() != match[1]:
        return None
    if re.search(rf"^[ \t]*{match[1]}", inside, re.MULTILINE):
        return None
    tag = match[2].lower()
    return inside, _LANGUAGES.get(tag, tag) or None
