"""`expr`: bashkit's computes only the first operator of an expression."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelmcp_shell.builtin_interface import Call, Command

_INTEGER = re.compile(r"-?\d+", re.ASCII)
_COMPARISONS = ("<", "<=", "=", "==", "!=", ">=", ">")
_MOST_WORDS, _MOST_DIGITS, _DEEPEST = 10_000, 1000, 50
_MOST_PATTERN_CHARS = 2000
_MOST_STEPS = 100_000_000  # of a pattern; of a second or a few
_BRACKETS = re.compile(r"\[\^?\]?(?:\[:\w+:\]|[^\]])*\]")
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "digit": "0-9", "lower": "a-z", "punct": "!-/:-@\\[-`{-~",
    "space": "\\s", "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_CLASS = re.compile(r"\[:(\w+):\]")
_REPEATS = ("*", "\\+", "\\?", "\\{")
_PLACES = {"\\<": r"\b(?=\w)", "\\>": r"\b(?<=\w)", "\\`": r"\A", "\\'": r"\Z"}
_AT_WORDS = {_PLACES["\\<"], _PLACES["\\>"], r"\b", r"\B"}
_SYNTAX, _OTHER = 2, 3


def make_expr() -> dict[str, Command]:
    def expr(call: Call) -> Result:
        words = call.argv[1:] if call.argv[:1] == ["--"] else call.argv
        try:
            found = _Expression(words).value()
        except CommandFailed as failed:
            return Result("", f"expr: {failed}\n", failed.exit_code)
        return Result(f"{found}\n", exit_code=int(_is_null(found)))

    return {"expr": expr}


class _Expression:
    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = self._depth = 0
        self._is_skipped = False  # what is read now is not computed: the left side of & or | has decided

    def value(self) -> str:
        """Raises CommandFailed."""
        if not self._words:
            raise CommandFailed(_SYNTAX, "missing operand")
        if len(self._words) > _MOST_WORDS:
            raise CommandFailed(_OTHER, f"more than {_MOST_WORDS} words are not supported here")
        found = self._or()
        if self._at < len(self._words):
            raise CommandFailed(_SYNTAX, f"syntax error: unexpected argument '{self._words[self._at]}'")
        return found

    def _take(self, *operators: str) -> str:
        if self._at < len(self._words) and self._words[self._at] in operators:
            self._at += 1
            return self._words[self._at - 1]
        return ""

    def _next(self) -> str:
        if self._at == len(self._words):
            raise CommandFailed(_SYNTAX, f"syntax error: missing argument after '{self._words[-1]}'")
        self._at += 1
        return self._words[self._at - 1]

    def _or(self) -> str:
        found = self._and()
        while self._take("|"):
            right = self._right(self._and, skipped=not _is_null(found))
            found = (right if not _is_null(right) else "0") if _is_null(found) else found
        return found

    def _and(self) -> str:
        found = self._comparison()
        while self._take("&"):
            right = self._right(self._comparison, skipped=_is_null(found))
            found = "0" if _is_null(found) or _is_null(right) else found
        return found

    def _right(self, read: Callable[[], str], *, skipped: bool) -> str:
        before, self._is_skipped = self._is_skipped, self._is_skipped or skipped
        right = read()
        self._is_skipped = before
        return right

    def _comparison(self) -> str:
        found = self._sum()
        while sign := self._take(*_COMPARISONS):
            right = self._sum()
            if self._is_skipped:
                continue
            are_numbers = _INTEGER.fullmatch(found) and _INTEGER.fullmatch(right)
            difference = _number(found) - _number(right) if are_numbers else (found > right) - (found < right)
            holds = {
                "<": difference < 0, "<=": difference <= 0, "!=": difference != 0,
                ">": difference > 0, ">=": difference >= 0,
            }.get(sign, difference == 0)  # fmt: skip
            found = str(int(holds))
        return found

    def _sum(self) -> str:
        found = self._product()
        while sign := self._take("+", "-"):
            product = self._product()
            if self._is_skipped:
                continue
            right = _number(product)
            found = _text(_number(found) + (right if sign == "+" else -right))
        return found

    def _product(self) -> str:
        found = self._match()
        while sign := self._take("*", "/", "%"):
            factor = self._match()
            if self._is_skipped:
                continue
            left, right = _number(found), _number(factor)
            if sign == "*":
                found = _text(left * right)
                continue
            if right == 0:
                raise CommandFailed(_SYNTAX, "division by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # towards zero
            found = _text(quotient if sign == "/" else left - quotient * right)
        return found

    def _match(self) -> str:
        found = self._single()
        while self._take(":"):
            pattern = self._single()
            found = found if self._is_skipped else _matched(found, pattern)
        return found

    def _single(self) -> str:
        word = self._next()
        if word == "(":
            self._depth += 1
            if self._depth > _DEEPEST:
                raise CommandFailed(_OTHER, "so many parentheses are not supported here")
            found = self._or()
            self._depth -= 1
            if not self._take(")"):
                raise CommandFailed(_SYNTAX, "syntax error: expecting ')'")
            return found
        if word == ")":
            raise CommandFailed(_SYNTAX, "syntax error: unexpected ')'")
        if word == "+" and self._at < len(self._words):
            return self._next()
        if word in ("length", "match", "substr", "index") and self._at < len(self._words):
            return self._function(word)
        return word

    def _function(self, name: str) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise CommandFailed(_OTHER, "so many functions are not supported here")
        text = self._single()
        if name == "length":
            found = str(len(text))
        elif name == "match":
            pattern = self._single()
            found = text if self._is_skipped else _matched(text, pattern)
        elif name == "index":
            letters = set(self._single())
            found = str(next((at for at, letter in enumerate(text, 1) if letter in letters), 0))
        else:
            first, length = self._single(), self._single()
            are_numbers = _INTEGER.fullmatch(first) and _INTEGER.fullmatch(length)
            start, count = (_number(first), _number(length)) if are_numbers else (0, 0)
            found = text[start - 1 : start - 1 + count] if start > 0 and count > 0 else ""
        self._depth -= 1
        return found


def _is_null(text: str) -> bool:
    return text == "" or re.fullmatch(r"-?0+", text) is not None


def _number(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise CommandFailed(_SYNTAX, "non-integer argument")
    if len(text) > _MOST_DIGITS:
        raise CommandFailed(_OTHER, f"a number of more than {_MOST_DIGITS} digits is not supported here: use python")
    return int(text)


def _text(number: int) -> str:
    if number.bit_length() > _MOST_DIGITS * 3.32:
        raise CommandFailed(_OTHER, f"a number of more than {_MOST_DIGITS} digits is not supported here: use python")
    return str(number)


def _matched(text: str, basic: str) -> str:
    """The part in the first group of a basic regular expression at the start of a text, or the match's length."""
    pattern, groups = _extended(basic, len(text))
    try:
        found = _longest(re.compile(pattern, re.DOTALL), text)
    except (re.error, OverflowError, RecursionError):
        raise CommandFailed(_SYNTAX, f"invalid regular expression '{basic}'") from None
    if groups:
        return (found[1] or "") if found else ""
    return str(found.end() if found else 0)


def _longest(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The longest match at the start of a text: of several choices, Python's takes the first that matches."""
    found = pattern.match(text)
    if found is None or "|" not in pattern.pattern:
        return found
    # What is at the end of the text is not at the end of a shorter part of it.
    shorter = re.compile(pattern.pattern.replace("\\Z", "(?!)"), re.DOTALL)
    for end in range(len(text), found.end(), -1):
        if longer := (pattern if end == len(text) else shorter).fullmatch(text, 0, end):
            return longer
    return found


def _extended(basic: str, length: int) -> tuple[str, int]:
    """A basic regular expression as Python's, and how many groups it has. One that may take forever is refused."""
    if len(basic) > _MOST_PATTERN_CHARS:
        raise CommandFailed(_OTHER, f"a pattern of more than {_MOST_PATTERN_CHARS} characters is not supported here")
    pieces: list[str] = []
    opened: list[int] = []
    groups = repeats = at = 0
    before = ""
    while at < len(basic):
        brackets = _BRACKETS.match(basic, at)
        piece = brackets[0] if brackets else basic[at : at + 2] if basic[at] == "\\" else basic[at]
        at += len(piece)
        is_first = not pieces or pieces[-1] in ("(", "|")
        if piece == "\\(":
            groups += 1
            opened.append(len(pieces))
        elif piece == "\\)" and opened:
            inside = set(pieces[opened.pop() :])
            if basic.startswith(_REPEATS, at) and not inside.isdisjoint("*+?{|"):
                raise CommandFailed(_OTHER, "a repeated group with repetitions in it is not supported here")
        elif piece in _REPEATS and not is_first:
            repeats += 1
            if before in (*_REPEATS, "\\}"):
                raise CommandFailed(_OTHER, "a repetition of a repetition is not supported here")
        before = "" if is_first and piece in _REPEATS else piece
        is_last = at == len(basic) or basic.startswith(("\\)", "\\|"), at)
        pieces.append(_brackets(piece) if brackets else _piece(piece, is_first=is_first, is_last=is_last))
    if opened:
        raise CommandFailed(_SYNTAX, "Unmatched ( or \\(")
    _check(pieces, repeats, length)
    return "".join(pieces), groups


def _check(pieces: list[str], repeats: int, length: int) -> None:
    """Refuse what may take forever, and what `_longest` would read otherwise."""
    tries = length + 1 if "|" in pieces else 1
    if "|" in pieces and not _AT_WORDS.isdisjoint(pieces):
        raise CommandFailed(_OTHER, "a choice with word boundaries is not supported here")
    if tries * math.comb(length + repeats, min(repeats, 50)) > _MOST_STEPS:
        raise CommandFailed(_OTHER, "so many repetitions for so long a text are not supported here")


def _piece(piece: str, *, is_first: bool, is_last: bool) -> str:
    if piece in _REPEATS:
        return re.escape(piece[-1]) if is_first else piece[-1]
    if piece in ("\\(", "\\)", "\\}", "\\|"):
        return piece[-1]
    if (piece == "^" and is_first) or (piece == "$" and is_last):
        return "" if piece == "^" else "\\Z"
    if piece in _PLACES:
        return _PLACES[piece]
    return piece if piece == "." or piece[1:] in set("123456789wWsSbB") else re.escape(piece[-1])


def _brackets(piece: str) -> str:
    sign = "^" if piece[1] == "^" else ""
    inside = piece[1 + len(sign) : -1]
    if "[." in inside or "[=" in inside:
        raise CommandFailed(_OTHER, "[. and [= in brackets are not supported here")
    parts = _CLASS.split(inside)  # a class's name is every second one
    parts[::2] = [re.sub(r"([\\\[\]^&~|])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [_CLASSES.get(name, "") for name in parts[1::2]]
    return f"[{sign}{''.join(parts)}]"
