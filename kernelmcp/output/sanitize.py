"""What a guest sent, made harmless: text that UTF-8 can carry, JSON of bounded depth, and what it weighs in memory."""

import re
import sys
from typing import Any, cast

# Of a message with a displayed object or a reply: to read one takes three times its text, and the server is to grow by
# 64 MiB at most. A float, a small dict or a list takes many times its own text: they are counted before they are made.
MAX_MESSAGE_BYTES = 10 * 1024 * 1024
MAX_CONTAINERS = 100_000
MAX_ITEMS = 300_000
# A key of a dict and its value take 200 bytes while they are cleaned.
MAX_KEYS = 100_000
SMALL_MESSAGE_BYTES = 300_000
# In the place of the content of a message that was not read: as a reply it is an error.
UNREAD: dict[str, Any] = {
    "unread": True,
    "status": "error",
    "ename": "ReplyTooLarge",
    "evalue": "the kernel's reply was too large to be read",
    "traceback": [],
}
# RFC 6838, with parameters; IPython lets a cell write anything in the place of a mime type.
_MIME_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_MIME_TYPE = re.compile(rf"{_MIME_NAME}/{_MIME_NAME}(; ?[A-Za-z0-9._-]{{1,40}}=[A-Za-z0-9._-]{{1,40}}){{0,2}}")
# Deeper values than this break JSON libraries on their way to the client.
MAX_DEPTH = 100
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: Any) -> str:
    """Text that UTF-8 can carry: a lone surrogate becomes U+FFFD."""
    text = text if isinstance(text, str) else str(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A JSON value with every string cleaned. Raises `ValueError` when it is nested deeper than `depth`."""
    if depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_json(item, depth - 1) for item in cast("list[Any]", value)]
        case dict():
            return {clean(key): clean_json(item, depth - 1) for key, item in cast("dict[Any, Any]", value).items()}
        case _:
            return value


def is_readable(encoded: bytes) -> bool:
    """Whether this JSON may be unpacked. Brackets and commas within strings count as well: it is an upper bound."""
    if len(encoded) <= SMALL_MESSAGE_BYTES:
        return True
    containers = encoded.count(b"[") + encoded.count(b"{")
    keys = encoded.count(b'":')
    few = containers <= MAX_CONTAINERS and keys <= MAX_KEYS and encoded.count(b",") <= MAX_ITEMS
    return few and len(encoded) <= MAX_MESSAGE_BYTES


def is_mime_type(name: Any) -> bool:
    return isinstance(name, str) and _MIME_TYPE.fullmatch(name) is not None


def weight(*values: Any) -> int:
    """Bytes of memory that JSON values take: a list of empty lists weighs twenty times its text."""
    total = 0
    waiting: list[Any] = list(values)
    while waiting:
        value = waiting.pop()
        total += sys.getsizeof(value)
        if isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif isinstance(value, dict):
            waiting += cast("dict[str, Any]", value).keys()
            waiting += cast("dict[str, Any]", value).values()
    return total


def without_colour(text: str) -> str:
    return _ANSI.sub("", text)


def cut_middle(text: str, max_chars: int) -> str:
    """Its first and last halves, and how much is missing between them."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def joined(value: Any) -> str:
    """A mime bundle's text may be a list of lines."""
    return "".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
