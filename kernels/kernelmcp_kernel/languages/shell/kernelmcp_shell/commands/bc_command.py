"""`bc`: bashkit's gives wrong numbers. Expressions and variables; what else bc's language has is refused.

A number is an int with a count of decimal places, as in bc, so that every digit is the same.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, NamedTuple

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.commands.bc_functions import NAMES, function
from kernelmcp_shell.commands.options import read_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_MOST_DIGITS = 4000  # less than Python converts to text
_MOST_BITS = 200_000  # of a power before it is cut
_MOST_PLACES = 1000
_MOST_CHARS = 64 * 1024
_DEEPEST = 40
_LINE_LENGTH = 70  # bc breaks longer numbers: of a line, two characters are left
_TOKEN = re.compile(
    r"""(?P<number> [0-9A-F]+(?:\.[0-9A-F]*)? | \.[0-9A-F]+) | (?P<name> [a-z][a-z0-9_]*) | "(?P<text> [^"]*)"
    | (?P<sign> [-+*/%^=<>!]= | && | \|\| | \+\+ | -- | [-+*/%^()=<>!;{}\[\]])""",
    re.VERBOSE,
)
_STATEMENTS = {"if", "else", "while", "for", "define", "auto", "return", "print", "break", "continue", "halt", "read"}
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "^="}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_RANGES = {"scale": (0, _MOST_PLACES), "ibase": (2, 16), "obase": (2, 16)}
_STANDARD_INPUT = ("/dev/stdin", "/dev/fd/0")
_DIGITS = "0123456789ABCDEF"


class _Number(NamedTuple):
    """`value` / 10**`places`."""

    value: int
    places: int

    def at(self, places: int) -> int:
        """The value with that many places, cut off."""
        if places >= self.places:
            return self.value * 10 ** (places - self.places)
        return _quotient(self.value, 10 ** (self.places - places))


class _LineFailedError(Exception):
    """This ends a line, and not the program."""


class _QuitError(Exception):
    pass


def make_bc(files: Files) -> dict[str, Command]:
    def bc(call: Call) -> Result:
        calculator = _Calculator(_line_length(call.environment.get("BC_LINE_LENGTH", str(_LINE_LENGTH))))
        errors, exit_code = "", 0
        try:
            options, names = read_options("bc", call.argv, "lqs", {"mathlib": "l", "quiet": "q", "standard": "s"})
            calculator.variables["scale"] = _Number(20 if "l" in options else 0, 0)
            calculator.has_library = "l" in options
            for number, line in enumerate(_lines(files, call, names), 1):
                try:
                    calculator.run(line)
                except _LineFailedError as failed:
                    errors += f"(standard_in) {number}: {failed}\n"
        except _QuitError:
            pass
        except CommandFailed as failed:
            errors, exit_code = f"{errors}{failed}\n", failed.exit_code
        return Result("".join(calculator.printed), errors, exit_code)

    return {"bc": bc}


def _lines(files: Files, call: Call, names: list[str]) -> list[str]:
    """Raises CommandFailed."""
    text = ""
    for name in names:
        path = call.normal_path(name)
        try:
            content = call.descriptor(path) if path.startswith("/dev/") else files.read(path)
        except OSError:
            raise CommandFailed(1, f"File {name} is unavailable.") from None
        text += content.decode("utf-8", "replace") + "\n"
    if not any(call.normal_path(name) in _STANDARD_INPUT for name in names):
        text += call.stdin or ""
    if len(text) > _MOST_CHARS:
        raise _refused(f"a program of more than {_MOST_CHARS >> 10} KiB")
    while (start := text.find("/*")) >= 0:
        end = text.find("*/", start + 2)
        text = text[:start] + (text[end + 2 :] if end >= 0 else "")
    return [line.partition("#")[0] for line in text.replace("\\\n", "").split("\n")]


class _Calculator:
    def __init__(self, line_length: int) -> None:
        self._line_length = line_length
        self.variables = {"scale": _Number(0, 0), "ibase": _Number(10, 0), "obase": _Number(10, 0)}
        self.has_library = False
        self.printed: list[str] = []
        self._tokens: list[tuple[str, str]] = []
        self._at = self._depth = 0
        self._assignments: dict[int, int] = {}  # of the line: its first token and the one after it
        self._is_skipped = False  # what is read now is not computed: the left side of && or || has decided

    def run(self, line: str) -> None:
        """Raises _LineFailedError, _QuitError and CommandFailed."""
        self._tokens = _tokens(line)
        self._at = self._depth = 0
        self._assignments = {}
        self._is_skipped = False
        printed = len(self.printed)
        try:
            while self._at < len(self._tokens):
                if not self._take(";"):
                    self._statement()
                    if self._at < len(self._tokens) and not self._take(";"):
                        raise SyntaxError
        except SyntaxError:
            del self.printed[printed:]
            raise _LineFailedError("syntax error") from None

    def _statement(self) -> None:
        kind, text = self._peek()
        if kind == "text":
            self._at += 1
            self.printed.append(text)
        elif text == "quit":
            raise _QuitError
        else:
            start = self._at
            value = self._or()
            if self._assignments.get(start) != self._at:  # `x = 5 > 3` is a comparison
                self.printed.append(_shown(value, self.variables["obase"].value, self._line_length))
                self.variables["last"] = value

    # -- tokens

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        return self._tokens[self._at + ahead] if self._at + ahead < len(self._tokens) else ("", "")

    def _take(self, *signs: str) -> str:
        """The next token, if it is one of these."""
        kind, text = self._peek()
        if kind == "sign" and text in signs:
            self._at += 1
            return text
        return ""

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise SyntaxError

    # -- expressions, from the loosest operator to the tightest

    def _or(self) -> _Number:
        found = self._and()
        while self._take("||"):
            right = self._right(self._and, skipped=found.value != 0)
            found = _truth(found.value != 0 or right.value != 0)
        return found

    def _and(self) -> _Number:
        found = self._not()
        while self._take("&&"):
            right = self._right(self._not, skipped=found.value == 0)
            found = _truth(found.value != 0 and right.value != 0)
        return found

    def _right(self, read: Callable[[], _Number], *, skipped: bool) -> _Number:
        before, self._is_skipped = self._is_skipped, self._is_skipped or skipped
        right = read()
        self._is_skipped = before
        return right

    def _not(self) -> _Number:
        count = 0
        while self._take("!"):
            count += 1
        found = self._relation()
        return _truth((found.value == 0) == (count % 2 == 1)) if count else found

    def _relation(self) -> _Number:
        found = self._assignment()
        while sign := self._take(*_COMPARISONS):
            right = self._assignment()
            places = max(found.places, right.places)
            found = _truth(_COMPARISONS[sign](found.at(places), right.at(places)))
        return found

    def _assignment(self) -> _Number:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _refused("an expression of so many levels")
        start = self._at
        kind, name = self._peek()
        sign = self._peek(1)[1]
        if kind == "name" and sign in _ASSIGNMENTS:
            self._at += 2
            value = self._assignment()
            if sign != "=":
                value = self._calculate(self._variable(name), sign[0], value)
            self._assign(name, value)
            self._assignments[start] = self._at
        else:
            value = self._sum()
        self._depth -= 1
        return value

    def _assign(self, name: str, value: _Number) -> None:
        if self._is_skipped:
            return
        if name in _RANGES:
            lowest, highest = _RANGES[name]
            value = _Number(value.at(0), 0)
            if not lowest <= value.value <= highest:
                raise _refused(f"{name} of less than {lowest} or more than {highest}")
        self.variables[name] = value

    def _variable(self, name: str) -> _Number:
        return self.variables.get(name, _Number(0, 0))

    def _sum(self) -> _Number:
        found = self._product()
        while sign := self._take("+", "-"):
            found = self._calculate(found, sign, self._product())
        return found

    def _product(self) -> _Number:
        found = self._power()
        while sign := self._take("*", "/", "%"):
            found = self._calculate(found, sign, self._power())
        return found

    def _power(self) -> _Number:
        """To the right first; a sign binds tighter, as in bc."""
        operands = [self._signed()]
        while self._take("^"):
            operands.append(self._signed())
        found = operands.pop()
        while operands:
            found = self._calculate(operands.pop(), "^", found)
        return found

    def _signed(self) -> _Number:
        count = 0
        while self._take("-"):
            count += 1
        found = self._single()
        return found._replace(value=-found.value) if count % 2 else found

    def _single(self) -> _Number:
        kind, text = self._peek()
        if (kind, text) == ("sign", "!"):  # as in `a = !0`: no operator's precedence forbids a prefix
            return self._not()
        self._at += 1
        if kind == "number":
            return _read(text, self.variables["ibase"].value)
        if kind == "name":
            if self._take("("):
                return self._function(text)
            return self._variable(text)
        if (kind, text) == ("sign", "("):
            found = self._or()
            self._expect(")")
            return found
        raise SyntaxError

    def _function(self, name: str) -> _Number:
        value = self._or()
        self._expect(")")
        if self._is_skipped:
            return value
        scale = self.variables["scale"].value
        if name == "scale":
            return _Number(value.places, 0)
        if name == "length":
            return _Number(max(len(str(abs(value.value))), value.places), 0)
        if name == "sqrt":
            if value.value < 0:
                raise _LineFailedError("Square root of a negative number")
            places = max(scale, value.places)
            return _Number(math.isqrt(value.at(2 * places)), places)
        if self.has_library and name in NAMES:
            if (found := function(name, value.value, value.places, scale)) is None:
                raise _refused(f"{name}() of this number")
            return _checked(_Number(found, scale))
        raise _LineFailedError(f"Function {name} not defined.")

    def _calculate(self, left: _Number, sign: str, right: _Number) -> _Number:
        """Raises _LineFailedError and CommandFailed."""
        if self._is_skipped:
            return left
        scale = self.variables["scale"].value
        most = max(left.places, right.places)
        if sign in "+-":
            other = right.at(most)
            return _checked(_Number(left.at(most) + (other if sign == "+" else -other), most))
        if sign == "*":
            product = _Number(left.value * right.value, left.places + right.places)
            places = min(product.places, max(scale, most))
            return _checked(_Number(product.at(places), places))
        if sign == "^":
            return _checked(_power(left, right.at(0), scale))
        if right.value == 0:
            raise _LineFailedError("Divide by zero")
        quotient = _divided(left, right, scale)
        if sign == "/":
            return _checked(quotient)
        places = max(left.places, right.places + scale)
        whole = _Number(quotient.value * right.value, quotient.places + right.places)
        return _checked(_Number(left.at(places) - whole.at(places), places))


def _tokens(line: str) -> list[tuple[str, str]]:
    """Raises _LineFailedError and CommandFailed."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(line):
        if line[at].isspace():
            at += 1
            continue
        if (found := _TOKEN.match(line, at)) is None:
            raise _LineFailedError(f"illegal character: {line[at]}")
        at = found.end()
        kind = str(found.lastgroup)
        text = found[kind]
        if text in _STATEMENTS or (kind == "sign" and text in ("{", "}", "[", "]", "++", "--")):
            raise _refused(f"'{text}'")
        tokens.append((kind, text))
    return tokens


def _refused(what: str) -> CommandFailed:
    return CommandFailed(1, f"bc: {what} is not supported here: use python")


def _checked(number: _Number) -> _Number:
    if number.value.bit_length() > _MOST_DIGITS * 3.32:
        raise _refused(f"a number of more than {_MOST_DIGITS} digits")
    return number


def _truth(value: bool) -> _Number:
    return _Number(int(value), 0)


def _quotient(value: int, by: int) -> int:
    """Cut off towards zero."""
    return value // by if (value < 0) == (by < 0) else -(-value // by)


def _divided(left: _Number, right: _Number, places: int) -> _Number:
    return _Number(_quotient(left.value * 10 ** (right.places + places), right.value * 10**left.places), places)


def _power(base: _Number, exponent: int, scale: int) -> _Number:
    count = abs(exponent)
    if (abs(base.value) > 1 and base.value.bit_length() * count > _MOST_BITS) or base.places * count > _MOST_BITS:
        raise _refused("so large a power")
    found = _Number(base.value**count, base.places * count)
    if exponent < 0:
        if base.value == 0:
            raise _LineFailedError("Divide by zero")
        return _divided(_Number(1, 0), found, scale)
    places = min(found.places, max(scale, base.places))
    return _Number(found.at(places), places)


def _read(text: str, base: int) -> _Number:
    """A number as it is written. A digit that its base has not is the base's last one, unless it is alone."""
    whole, _, fraction = text.partition(".")
    if len(text) > _MOST_DIGITS or len(fraction) > _MOST_PLACES:
        raise _refused(f"a number of more than {_MOST_DIGITS} digits")
    highest = base - 1 if len(text) > 1 else 15
    value = 0
    for digit in whole + fraction:
        value = value * base + min(_DIGITS.index(digit), highest)
    return _Number(_quotient(value * 10 ** len(fraction), base ** len(fraction)), len(fraction))


def _line_length(text: str) -> int:
    """0: numbers are not broken. What cannot be is bc's own."""
    found = re.match(r"\s*[+-]?\d{1,9}", text, re.ASCII)
    length = int(found[0]) if found else 0
    return length if length == 0 or length >= 3 else _LINE_LENGTH


def _shown(number: _Number, base: int, line_length: int) -> str:
    whole, fraction = divmod(abs(number.value), 10**number.places)
    digits = ""
    while whole:
        whole, digit = divmod(whole, base)
        digits += _DIGITS[digit]
    text = digits[::-1]
    if number.places and number.value:
        text += "."
        reach = 1
        while reach < 10**number.places:
            reach *= base
            digit, fraction = divmod(fraction * base, 10**number.places)
            text += _DIGITS[digit]
    text = ("-" if number.value < 0 else "") + (text or "0")
    chars = line_length - 2 if line_length else len(text)
    return "\\\n".join(text[at : at + chars] for at in range(0, len(text), chars)) + "\n"
