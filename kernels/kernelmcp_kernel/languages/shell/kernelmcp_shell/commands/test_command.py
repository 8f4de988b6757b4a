"""`test` and `[`: bashkit's take an empty name for the working directory."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.files import FILE, FOLDER, LINK, Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_INTEGER = re.compile(r"\s*[+-]?\d{1,19}\s*", re.ASCII)
_MOST_WORDS = 1000
_DEEPEST = 50
_DEVICE = -1
_STREAM = re.compile(r"/dev/(?:stdin|stdout|stderr|fd/\d+)")  # the shell's, which are not among the session's files
_FILE_TESTS: dict[str, Callable[[Facts], bool]] = {
    "-e": lambda facts: True,
    "-a": lambda facts: True,
    "-f": lambda facts: facts.kind == FILE,
    "-d": lambda facts: facts.kind == FOLDER,
    "-s": lambda facts: facts.size > 0,
    "-r": lambda facts: facts.mode & 0o444 != 0,
    "-w": lambda facts: facts.mode & 0o222 != 0,
    "-x": lambda facts: facts.mode & 0o111 != 0,
    "-u": lambda facts: facts.mode & 0o4000 != 0,
    "-g": lambda facts: facts.mode & 0o2000 != 0,
    "-k": lambda facts: facts.mode & 0o1000 != 0,
    "-O": lambda facts: True,
    "-G": lambda facts: True,
    "-N": lambda facts: True,
    "-c": lambda facts: facts.kind == _DEVICE,
    **dict.fromkeys(("-b", "-p", "-S"), lambda facts: False),
}
_COMPARISONS: dict[str, Callable[[int], bool]] = {
    "-eq": lambda difference: difference == 0,
    "-ne": lambda difference: difference != 0,
    "-lt": lambda difference: difference < 0,
    "-le": lambda difference: difference <= 0,
    "-gt": lambda difference: difference > 0,
    "-ge": lambda difference: difference >= 0,
}
_OF_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
}
_OF_FILES = ("-nt", "-ot", "-ef")
_BINARY = {*_COMPARISONS, *_OF_TEXTS, *_OF_FILES}
_JOINING = ("-a", "-o")
_SHELLS_OWN = {"-v": "variables", "-R": "variables", "-o": "options"}
_UNARY = {*_FILE_TESTS, *_SHELLS_OWN, "-n", "-z", "-t", "-h", "-L"}


def make_test_commands(files: Files) -> dict[str, Command]:
    def test(call: Call) -> Result:
        words = call.argv
        try:
            if call.name == "[":
                if words[-1:] != ["]"]:
                    raise CommandFailed(2, "missing `]'")
                words = words[:-1]
            if len(words) > _MOST_WORDS:
                raise CommandFailed(2, "too many arguments")
            return Result(exit_code=int(not _Test(files, call, words).value()))
        except CommandFailed as failed:
            return Result("", f"bash: {call.name}: {failed}\n", failed.exit_code)

    return {"test": test, "[": test}


class _Test:
    """One call's words. What is true of them follows from their number, if they are at most three, as POSIX says."""

    def __init__(self, files: Files, call: Call, words: list[str]) -> None:
        self._files = files
        self._call = call
        self._words = words
        self._at = self._depth = 0

    def value(self) -> bool:
        """Raises CommandFailed."""
        words = self._words
        if not words:
            return False
        if words[0] == "!" and len(words) in (2, 3, 4) and (len(words) != 3 or words[1] not in {*_BINARY, *_JOINING}):
            return not _Test(self._files, self._call, words[1:]).value()
        if len(words) == 1:
            return words[0] != ""
        if len(words) == 2:
            if words[0] not in _UNARY:
                raise CommandFailed(2, f"{words[0]}: unary operator expected")
            return self._unary(*words)
        if len(words) == 3 and (words[1] in {*_BINARY, *_JOINING} or words[0] != "(" or words[2] != ")"):
            return self._of_three(*words)
        if len(words) in (3, 4) and (words[0], words[-1]) == ("(", ")"):
            return _Test(self._files, self._call, words[1:-1]).value()
        found = self._or()
        if self._at < len(words):
            raise CommandFailed(2, "too many arguments")
        return found

    def _of_three(self, left: str, operator: str, right: str) -> bool:
        if operator in _JOINING:
            return (all if operator == "-a" else any)((left, right))
        if operator not in _BINARY:
            raise CommandFailed(2, f"{operator}: binary operator expected")
        return self._binary(left, operator, right)

    def _peek(self, ahead: int = 0) -> str | None:
        return self._words[self._at + ahead] if self._at + ahead < len(self._words) else None

    def _next(self) -> str:
        if (word := self._peek()) is None:
            raise CommandFailed(2, "argument expected")
        self._at += 1
        return word

    def _or(self) -> bool:
        found = self._and()
        while self._peek() == "-o":
            self._at += 1
            found = self._and() or found
        return found

    def _and(self) -> bool:
        found = self._term()
        while self._peek() == "-a":
            self._at += 1
            found = self._term() and found
        return found

    def _term(self) -> bool:
        negated = False
        while self._peek() == "!" and self._peek(1) is not None:
            self._at += 1
            negated = not negated
        return self._positive() != negated

    def _positive(self) -> bool:
        word, operator, right = self._next(), self._peek(), self._peek(1)
        if operator in _BINARY and right is not None:
            self._at += 2
            return self._binary(word, operator, right)
        if word == "(" and self._peek() is not None:
            self._depth += 1
            if self._depth > _DEEPEST:
                raise CommandFailed(2, "too many parentheses")
            found = self._or()
            self._depth -= 1
            if self._next() != ")":
                raise CommandFailed(2, "`)' expected")
            return found
        if word in _UNARY and self._peek() is not None:
            return self._unary(word, self._next())
        return word != ""

    def _unary(self, operator: str, word: str) -> bool:
        if operator in ("-n", "-z"):
            return (word != "") == (operator == "-n")
        if operator == "-t":
            return False
        if operator == "-v" and word in self._call.environment:
            return True
        if (what := _SHELLS_OWN.get(operator)) is not None:
            raise CommandFailed(2, f"{operator}: it knows no {what} of the shell here: use [[ {operator} {word} ]]")
        facts = self._facts(word, follow=operator not in ("-h", "-L"))
        if facts is None or (operator == "-w" and self._files.is_read_only(self._path(word))):
            return False
        return facts.kind == LINK if operator in ("-h", "-L") else _FILE_TESTS[operator](facts)

    def _binary(self, left: str, operator: str, right: str) -> bool:
        if operator in _OF_TEXTS:
            return _OF_TEXTS[operator](left, right)
        if operator in _COMPARISONS:
            return _COMPARISONS[operator](_integer(left) - _integer(right))
        first, second = self._facts(left), self._facts(right)
        if operator == "-ef":
            return first is not None and second is not None and self._path(left) == self._path(right)
        if operator == "-ot":
            first, second = second, first
        return first is not None and (second is None or first.modified > second.modified)

    def _path(self, name: str) -> str:
        return self._call.normal_path(name)

    def _facts(self, name: str, *, follow: bool = True) -> Facts | None:
        path = self._path(name)
        if _STREAM.fullmatch(path):
            return Facts(_DEVICE, 0, 0o666, 0.0)
        with suppress(OSError):
            found = self._files.stat(path, follow=follow or name.endswith("/"))
            if name and (found.kind == FOLDER or not name.endswith("/")):
                return found._replace(kind=_DEVICE) if path.startswith("/dev/") else found
        return None


def _integer(word: str) -> int:
    if not _INTEGER.fullmatch(word) or not -(1 << 63) <= (value := int(word)) < 1 << 63:
        raise CommandFailed(2, f"{word}: integer expression expected")
    return value
