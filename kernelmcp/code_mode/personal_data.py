"""Replaces personal data by tokens: e-mail addresses, phone and card numbers in results of a server; optional.

A token stands for one value in one session. It is random, so nobody can forge one or guess the value; the values are
only in the server's memory, and are restored in calls to servers that may have them. Only text that looks like personal
data is found: split or encoded values and pictures stay unchanged. Must not know sessions or MCP.
"""

import bisect
import functools
import re
import secrets
import threading
import unicodedata
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

from kernelmcp.config.upstream_settings import PersonalKind
from kernelmcp.output.sanitize import as_dict, as_list

# Limit per session.
MAX_TOKENS = 200_000
# Deeper values are not searched, and are therefore not passed on.
MAX_DEPTH = 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# 94 random bits. Letters only: a token must not look like a number that needs another token.
_TOKEN_LETTERS = 20
_TOKEN = re.compile(rf"\b(?:EMAIL|PHONE|CARD)_[a-z]{{{_TOKEN_LETTERS}}}\b")
# Each place has only one, short way to match: a hostile text must not make a search slow.
_PATTERNS: dict[PersonalKind, re.Pattern[str]] = {
    "email": re.compile(r"@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])"),  # the domain; _NAME, what is before it
    "card": re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])"),
    "phone": re.compile(
        r"(?<![\w+])(?:\+\d[\d ()./-]{5,22}\d"  # +49 (0) 30 1234-567
        r"|\(\d{2,5}\)[ ./-]?\d[\d ./-]{4,14}\d"  # (555) 123-4567
        r"|\d{3}[ .-]\d{3}[ .-]\d{4}"  # 555-123-4567
        r"|0\d{1,4}[ /]\d[\d -]{4,12}\d)(?![\w-])"  # 030 1234567
    ),
}
# The name before a domain.
_NAME = re.compile(r"(?<![\w.+-])[\w.+%-]+\Z")
_MAX_NAME = 64
# A search keeps the interpreter, and with it the server's event loop, from all else until it finds something: it is
# made in pieces of a text, and nothing that is found is longer than _MAX_FOUND.
_PIECE = 20_000
_MAX_FOUND = 1_000
# Characters that are ignored or normalized: spaces that do not break, dashes, full-width and small signs, other full
# stops, zero-width characters.
_ODD = re.compile(
    "[\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u2015\u2024\u2028-\u202f\u205f-\u206f"
    "\u2212\u2800\u3000\u3002\u3164\ufe00-\ufe0f\ufe52\ufe58\ufe63\ufe6b\ufeff\uff01-\uff5e\uff61\uffa0\U000e0000-\U000e01ef]"
)
# Among numbers, cards come first, because a phone number may look like a part of one.
_ORDER: tuple[PersonalKind, ...] = ("email", "card", "phone")
_MIN_PHONE_DIGITS, _MAX_PHONE_DIGITS = 7, 15
_MIN_CARD, _MAX_CARD = 10**12, 10**19
# Keys of a result's blocks with base64 bytes.
_BYTES = ("data", "blob")


class TooManyTokens(Exception):
    """The session has exceeded its number of values."""


class Tokens:
    """The tokens of one session. A value has the same token each time."""

    def __init__(self) -> None:
        self._token_of: dict[tuple[PersonalKind, str], str] = {}
        self._value_of: dict[str, str] = {}
        self.kinds: set[PersonalKind] = set()
        """The kinds that have tokens."""
        self._lock = threading.Lock()
        """Large results are searched in threads."""

    def hide(self, value: Any, kinds: Collection[PersonalKind]) -> Any:
        """Replace personal data in a JSON value by tokens. Raises `TooManyTokens` and, if it is nested too deeply,
        `ValueError`."""
        wanted: list[PersonalKind] = [kind for kind in _ORDER if kind in kinds]
        return _each_text(value, lambda text: self._hide_in(text, wanted), "card" in kinds, MAX_DEPTH)

    def hide_in_result(self, result: dict[str, Any], kinds: Collection[PersonalKind]) -> dict[str, Any]:
        """The same for a CallToolResult; its pictures and blobs stay unchanged."""
        blocks = as_list(result.get("content"))
        rest = {key: item for key, item in result.items() if key != "content"}
        return {**self.hide(rest, kinds), "content": [self._hide_in_block(block, kinds) for block in blocks]}

    def _hide_in_block(self, block: Any, kinds: Collection[PersonalKind]) -> Any:
        fields = as_dict(block)
        if fields.get("type") in ("image", "audio"):
            return self._hide_but_bytes(fields, kinds)
        found = self.hide({key: item for key, item in fields.items() if key != "resource"}, kinds)
        if "resource" in fields:
            found["resource"] = self._hide_but_bytes(as_dict(fields["resource"]), kinds)
        return found

    def _hide_but_bytes(self, fields: dict[str, Any], kinds: Collection[PersonalKind]) -> dict[str, Any]:
        kept = {key: fields[key] for key in _BYTES if isinstance(fields.get(key), str)}
        return {**self.hide({key: item for key, item in fields.items() if key not in kept}, kinds), **kept}

    def growth(self, value: Any) -> int:
        """The bytes by which `reveal` lengthens a JSON value: a value may be far longer than its token. Raises
        ValueError if it is nested too deeply."""
        found = 0

        def count(text: str) -> str:
            nonlocal found
            for token in _in_pieces(_TOKEN, text):
                if (value := self._value_of.get(token[0])) is not None:
                    found += len(value.encode("utf-8", "surrogatepass")) - len(token[0])
            return text

        if self._value_of:
            _each_text(value, count, False, MAX_DEPTH)
        return found

    def reveal(self, value: Any) -> Any:
        """Replace this session's tokens in a JSON value by their values. Raises ValueError if it is nested too
        deeply."""
        if not self._value_of:
            return value
        return _each_text(value, self._reveal_in, False, MAX_DEPTH)

    def _hide_in(self, text: str, kinds: Collection[PersonalKind]) -> str:
        for kind in kinds:
            plain, place = _plain(text)
            pieces, done = list[str](), 0
            for first, behind in _found(kind, plain):
                start, end = place(first), place(behind - 1) + 1
                pieces += text[done:start], self._token(kind, text[start:end])
                done = end
            text = "".join([*pieces, text[done:]])
        return text

    def _reveal_in(self, text: str) -> str:
        pieces, done = list[str](), 0
        for found in _in_pieces(_TOKEN, text):
            pieces += text[done : found.start()], self._value_of.get(found[0], found[0])
            done = found.end()
        return "".join([*pieces, text[done:]])

    def _token(self, kind: PersonalKind, value: str) -> str:
        if not _is_one(kind, value):
            return value
        with self._lock:
            if (token := self._token_of.get((kind, value))) is None:
                if len(self._value_of) >= MAX_TOKENS:
                    raise TooManyTokens
                token = f"{kind.upper()}_{''.join(secrets.choice(_LETTERS) for _ in range(_TOKEN_LETTERS))}"
                self._token_of[kind, value], self._value_of[token] = token, value
                self.kinds.add(kind)
        return token


def _found(kind: PersonalKind, text: str) -> Iterator[tuple[int, int]]:
    """Where something of this kind begins, and where it ends."""
    done = 0
    for found in _in_pieces(_PATTERNS[kind], text):
        start = found.start()
        if kind == "email":
            name = _NAME.search(text, max(done, start - _MAX_NAME), start)
            if name is None:
                continue
            start = name.start()
        yield start, (done := found.end())


def _in_pieces(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of `finditer`."""
    done = 0
    for piece in range(0, len(text), _PIECE):
        for found in pattern.finditer(text, max(done, piece), piece + _PIECE + _MAX_FOUND):
            if found.start() >= piece + _PIECE:
                break  # the next piece has all of it
            yield found
            done = found.end()


def _plain(text: str) -> tuple[str, Callable[[int], int]]:
    """The normalized text, and a function that maps its positions to those of the original."""
    left_out: list[int] = []
    pieces, length, done = list[str](), 0, 0
    for found in _in_pieces(_ODD, text):
        read = _as_read(found[0])
        pieces += text[done : found.start()], read
        length += found.start() - done + len(read)
        done = found.end()
        if not read:
            left_out.append(length)
    if not done:
        return text, lambda place: place
    return "".join([*pieces, text[done:]]), lambda place: place + bisect.bisect_right(left_out, place)


@functools.cache
def _as_read(char: str) -> str:
    match unicodedata.category(char):
        case "Zs" | "Zl" | "Zp":
            return " "
        case "Pd":
            return "-"
        case "Po" if char in "\u3002\uff61":  # ideographic full stops, which addresses may contain
            return "."
        case "Sm" if char == "\N{MINUS SIGN}":
            return "-"
        case _:
            plain = unicodedata.normalize("NFKC", char)
            return plain if plain.isascii() and plain.isprintable() else ""


def _is_one(kind: PersonalKind, text: str) -> bool:
    """True if a match is valid personal data."""
    digits = re.sub(r"\D", "", text)
    if kind == "card":
        return _passes_luhn(digits)
    return kind == "email" or _MIN_PHONE_DIGITS <= len(digits) <= _MAX_PHONE_DIGITS


def _passes_luhn(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (1 + place % 2)
        total += doubled - 9 * (doubled > 9)
    return total % 10 == 0


def _each_text(value: Any, change: Callable[[str], str], numbers: bool, depth: int) -> Any:
    """Change every text of the value, including names of fields; with `numbers`, also numbers that may be of a card."""
    if depth == 0:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return change(value)
        case dict():
            found = cast("dict[str, Any]", value)
            return {change(key): _each_text(item, change, numbers, depth - 1) for key, item in found.items()}
        case list():
            return [_each_text(item, change, numbers, depth - 1) for item in cast("list[Any]", value)]
        case int() if numbers and not isinstance(value, bool) and _MIN_CARD <= value < _MAX_CARD:
            changed = change(str(value))
            return value if changed == str(value) else changed
        case _:
            return value
