"""Parses `python ...`, `pip ...` and `pytest ...`, and decides which commands need no shell."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_PIP = re.compile(r"(?:.*/)?pip(?:3(?:\.\d+)?)?")
_PYTEST = re.compile(r"(?:.*/)?(?:pytest|py\.test)")

# Python's options without and with a value.
_FLAGS = frozenset("bBdEIOPqRsSuvx")
_WITH_VALUE = frozenset("WXcm")

_SERVES = "the sandbox has no sockets, so nothing can be served from it: files in /workspace can be read directly"
_SERVERS = ("http.server", "uvicorn", "gunicorn", "hypercorn", "waitress", "streamlit", "jupyter", "notebook")
_INTERACTIVE = "nobody can type here: give it a file, -c CODE, -m MODULE, or a program as its input"
_HELP = "usage: python [-c CODE | -m MODULE | FILE | -] [ARGUMENT ...]"

# Characters for which a command needs a shell: outside quotes, and in double quotes.
_SYNTAX = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n\\]")
_IN_DOUBLE_QUOTES = re.compile(r"[$`\\!]")
_QUOTED = re.compile(r"""'[^']*'|"([^"]*)\"""")
_ASSIGNMENT = re.compile(r"\w+=")


@dataclass(frozen=True)
class Program:
    """A parsed program. `text` is the file, code or module; for `say` and `refuse`, the output."""

    kind: Literal["file", "code", "module", "stdin", "pip", "say", "refuse"]
    text: str = ""
    arguments: list[str] = field(default_factory=list[str])
    isolated: bool = False
    """-I or -P: modules beside the program are not found."""
    warnings: tuple[str, ...] = ()
    """-W."""
    optimize: int = 0
    """-O. Modules that it imports are as they are for the notebook."""


def is_program(name: str) -> bool:
    """Return whether this guest runs a program of this name."""
    return name == sys.executable or any(form.fullmatch(name) for form in (_PYTHON, _PIP, _PYTEST))


def simple_program(command: str) -> list[str] | None:
    """The words of a command that is one Python program and needs no shell."""
    quoted = [found[1] or "" for found in _QUOTED.finditer(command)]
    bare = _QUOTED.sub("", command)
    if _SYNTAX.search(bare) or any(map(_IN_DOUBLE_QUOTES.search, quoted)):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return words if words and is_program(words[0]) and not _ASSIGNMENT.match(words[0]) else None


def parse(argv: Sequence[str], has_input: bool) -> Program:
    """Parse a program's arguments. `has_input`: its input is not from a person who could type."""
    name, *words = argv
    if _PIP.fullmatch(name):
        return Program("pip", arguments=words)
    if _PYTEST.fullmatch(name):
        return _module("pytest", words, False)
    return _python(words, has_input)


def _python(words: list[str], has_input: bool) -> Program:
    isolated, warnings, optimize = False, (), 0
    while words and words[0].startswith("-") and words[0] != "-":
        word, *words = words
        if word.startswith("--") or word in _SAID:
            return _SAID[word]() if word in _SAID else _unknown(word)
        isolated = isolated or bool(set("IP") & set(_flags(word)))
        optimize += _flags(word).count("O")
        letter, value = _last(word)
        if letter in _WITH_VALUE and not value:
            if not words:
                return Program("refuse", f"Argument expected for the -{letter} option\n{_HELP}")
            value, *words = words
        if letter == "W":
            warnings += (value,)
        if (found := _option(letter, value, words, isolated)) is not None:
            break
    else:
        found = _without_option(words, has_input, isolated)
    return replace(found, warnings=warnings, optimize=min(optimize, 2))


def _without_option(words: list[str], has_input: bool, isolated: bool) -> Program:
    if words and words[0] != "-":
        return Program("file", words[0], words[1:], isolated)
    if not has_input:
        return Program("refuse", _INTERACTIVE)
    return Program("stdin", words[0] if words else "", words[1:], isolated)


def _option(letter: str, value: str, words: list[str], isolated: bool) -> Program | None:
    """The action that an option selects; None if it selects none."""
    if letter == "c":
        return Program("code", value, words, isolated)
    if letter == "m":
        return _module(value, words, isolated)
    if letter == "i":
        return Program("refuse", f"-i: {_INTERACTIVE}")
    return None if letter in _FLAGS | _WITH_VALUE else _unknown(f"-{letter}")


def _flags(word: str) -> str:
    """The letters of `-uIc` that take no value."""
    return "".join(takewhile(_FLAGS.__contains__, word[1:]))


def _last(word: str) -> tuple[str, str]:
    """The first letter of `-uIcCODE` that is not a flag, or the last flag; and the text after it."""
    at = min(1 + len(_flags(word)), len(word) - 1)
    return word[at], word[at + 1 :]


def _unknown(option: str) -> Program:
    return Program("refuse", f"unknown option {option}\n{_HELP}")


_SAID: dict[str, Callable[[], Program]] = {
    "--version": lambda: Program("say", f"Python {sys.version.split()[0]}"),
    "-V": lambda: Program("say", f"Python {sys.version.split()[0]}"),
    "-VV": lambda: Program("say", f"Python {sys.version}"),
    "--help": lambda: Program("say", _HELP),
    "-h": lambda: Program("say", _HELP),
    "-?": lambda: Program("say", _HELP),
}


def _module(name: str, arguments: list[str], isolated: bool) -> Program:
    if name == "pip":
        return Program("pip", arguments=arguments)
    if name in _SERVERS or (name == "flask" and "run" in arguments):
        return Program("refuse", f"{name}: {_SERVES}")
    return Program("module", name, arguments, isolated)
