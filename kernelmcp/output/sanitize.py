"""Sanitizes data from a guest: valid Unicode, JSON of bounded depth, and a measure of its memory use."""

import json
import math
import re
import sys
from typing import Any, cast

import msgspec

from kernelmcp.json_bounds import JsonBounds, JsonTooLarge, check_json

# Larger messages are not read: reading takes three times their size, and the server must not grow by more than 64 MiB.
# Their values take 70 bytes each. clean_json rejects values deeper than MAX_DEPTH with an error.
MAX_MESSAGE_BYTES = 10 * 1024 * 1024
MAX_MESSAGE_VALUES = 1_000_000
_READABLE = JsonBounds(MAX_MESSAGE_BYTES, MAX_MESSAGE_VALUES, max_depth=500)
SMALL_MESSAGE_BYTES = 300_000
# The content of an unread message: as a reply it is an error.
UNREAD: dict[str, Any] = {
    "unread": True,
    "status": "error",
    "ename": "ReplyTooLarge",
    "evalue": "the kernel's reply was too large to be read",
    "traceback": [],
}
# RFC 6838, with parameters; IPython lets a cell use any text as a mime type.
_MIME_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_MIME_TYPE = re.compile(rf"{_MIME_NAME}/{_MIME_NAME}(; ?[A-Za-z0-9._-]{{1,40}}=[A-Za-z0-9._-]{{1,40}}){{0,2}}")
# Deeper values break JSON libraries on their way to the client.
MAX_DEPTH = 100
# The sign of a report of the kernel process or of the server on stderr: invisible, and in no text of a guest's there.
REPORT_SIGN = "\N{INVISIBLE SEPARATOR}"
OWN = "[kernelmcp]"
REPORT = f"{REPORT_SIGN}{OWN}"
IMITATION = "[printed: kernelmcp]"
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: Any) -> str:
    """Replace every lone surrogate, which UTF-8 cannot encode, by U+FFFD."""
    text = text if isinstance(text, str) else str(text)
    if text.isascii():  # known without reading it
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def with_imitations_marked(text: str, before: str = "") -> str:
    """A message on stderr, which is a report only if it begins as one: whatever else looks like a report is a guest's,
    also what a report quotes. `before`: the text before it, in whose end an imitation can begin."""
    lead = next((lead for lead in (REPORT, f"\n{REPORT}") if text.startswith(lead)), "")
    said = text[len(lead) :].replace(REPORT_SIGN, "")
    begun = before[1 - len(OWN) :] if not lead else ""
    if 0 <= (at := (begun + said[: len(OWN)]).find(OWN)) < len(begun):
        said = IMITATION + said[at + len(OWN) - len(begun) :]
    return lead + said.replace(OWN, IMITATION)


def clean_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Clean every string of a JSON value; NaN and infinity, which JSON does not have, become null. Raises `ValueError`
    if it is nested deeper than `depth`."""
    if depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    kind = cast("object", type(value))  # much faster than to ask whether it is an instance of each
    if kind is str:
        return clean(value)
    if kind is list:
        return [clean_json(item, depth - 1) for item in value]
    if kind is dict:
        return {clean(key): clean_json(item, depth - 1) for key, item in value.items()}
    return None if kind is float and not math.isfinite(value) else value


def is_readable(encoded: bytes) -> bool:
    """True if this JSON is small enough to be parsed."""
    try:
        check_json(encoded, _READABLE)
    except JsonTooLarge:
        return False
    return True


def parse(encoded: bytes) -> Any:
    """Parse a kernel's JSON, each text of it once. NaN and lone surrogates, which Python's encoder writes, are read as
    well. Raises `ValueError`."""
    try:
        return msgspec.json.decode(encoded)
    except ValueError:
        return json.loads(encoded.decode(errors="replace"))


def is_mime_type(name: Any) -> bool:
    return isinstance(name, str) and _MIME_TYPE.fullmatch(name) is not None


def weight(*values: Any) -> int:
    """The memory of JSON values, in bytes: a list of empty lists takes twenty times the size of its text."""
    total = 0
    waiting: list[Any] = list(values)
    while waiting:
        value = waiting.pop()
        total += sys.getsizeof(value)
        kind = cast("object", type(value))
        if kind is list:
            waiting += value
        elif kind is dict:
            waiting += value.keys()
            waiting += value.values()
    return total


def without_colour(text: str) -> str:
    return ANSI.sub("", text)


def for_terminal(text: str) -> str:
    """Remove from an untrusted text what a terminal would act on: escape sequences, control characters, and those that
    change the direction of writing. Lines and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in without_colour(clean(text)))


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 byte`, `2,000 bytes`: a number and its noun."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def cut_middle(text: str, max_chars: int) -> str:
    """The beginning and the end of a text that is too long, and the length of the omitted middle."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {counted(len(text) - 2 * half, 'character')} left out ...]\n{text[-half:]}"


def as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def joined(value: Any) -> str:
    """The text of a mime bundle, which may be a string or a list of lines."""
    return "".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
