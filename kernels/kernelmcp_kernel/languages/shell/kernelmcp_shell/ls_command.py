"""`ls`, as GNU's writes into a pipe: bashkit's has few options, and no owner in its long lines."""

from __future__ import annotations

import errno
import getopt
import math
import posixpath
import re
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from kernelmcp_shell.builtin_interface import Result
from kernelmcp_shell.files import FILE, FOLDER, LINK, Facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_OWNER, _OWNER_ID = "user", "1000"  # `whoami` and `id -u`
# The last six change nothing: names are written as they are, sizes are of 1 KiB, and no link is followed.
_LETTERS = "aAlhtSrRdF1pnogGUvXmQI:CxNbqkLH"
_WORDS = {
    "all": "a",
    "almost-all": "A",
    "human-readable": "h",
    "reverse": "r",
    "recursive": "R",
    "directory": "d",
    "classify": "F",
    "numeric-uid-gid": "n",
    "no-group": "G",
    "quote-name": "Q",
    "full-time": "full-time",
    "group-directories-first": "group-directories-first",
    "ignore=": "I",
    "sort=": "sort",
    "time-style=": "time-style",
}
_SORTS = {"size": "S", "time": "t", "none": "U", "version": "v", "extension": "X", "name": "name", "width": "name"}
_TIMES = {"long-iso": "%Y-%m-%d %H:%M", "full-iso": "%Y-%m-%d %H:%M:%S.000000000 +0000", "iso": "%m-%d %H:%M"}
_LONG = frozenset("lnog")
_HALF_A_YEAR = 31556952 / 2
_BLOCK = 4096
_LINE_CHARS = 80
_UNITS = "KMGT"
_DIGITS = re.compile(r"(\d+)")


class _Entry(NamedTuple):
    """A file as it is named, and its path."""

    name: str
    path: str
    facts: Facts


def make_ls(files: Files) -> dict[str, Command]:
    def ls(call: Call) -> Result:
        if "--help" in call.argv:
            return Result(f"Usage: ls [-{_LETTERS.replace(':', '')}] [FILE]...\nLong options as of GNU's.\n")
        plain = [word for word in call.argv if not word.startswith(("--color", "--hyperlink", "--indicator-style"))]
        try:
            found, names = getopt.gnu_getopt(plain, _LETTERS, list(_WORDS))
            return _Listing(files, call, _options(found)).of(names or ["."])
        except getopt.GetoptError as error:
            return Result("", f"ls: {error.msg}\n", 2)

    return {"ls": ls}


def _options(found: list[tuple[str, str]]) -> dict[str, str]:
    """By their short names; of those that exclude each other, the last one. Raises GetoptError."""
    options: dict[str, str] = {}
    for option, value in found:
        name = option.lstrip("-")
        name = _WORDS.get(name) or _WORDS.get(f"{name}=") or name
        if name == "sort":
            if value not in _SORTS:
                raise getopt.GetoptError(f"invalid argument '{value}' for '{option}'")
            name = _SORTS[value]
        if name == "1" and not _LONG.isdisjoint(options):
            continue
        for others in (_SORTS.values(), "lmCx1"):
            if name in others:
                options = {each: kept for each, kept in options.items() if each not in others}
        options[name] = f"{options[name]}\n{value}" if name == "I" and name in options else value
    if "full-time" in options:
        options |= {"l": "", "time-style": "full-iso"}
    return options


class _Listing:
    """The output of one call."""

    def __init__(self, files: Files, call: Call, options: dict[str, str]) -> None:
        self._files = files
        self._call = call
        self._options = options
        self._errors = ""
        self._is_long = not _LONG.isdisjoint(options)
        style = options.get("time-style", "locale")
        if not style.startswith("+") and style not in (*_TIMES, "locale"):
            raise getopt.GetoptError(f"invalid argument '{style}' for 'time style'")
        self._time = style[1:].split("\n")[0] if style.startswith("+") else _TIMES.get(style)

    def of(self, names: list[str]) -> Result:
        entries = [entry for name in names if (entry := self._entry(name)) is not None]
        listed_whole = "d" in self._options
        plain = self._sorted([each for each in entries if listed_whole or each.facts.kind != FOLDER])
        folders = [] if listed_whole else self._sorted([each for each in entries if each.facts.kind == FOLDER])
        blocks = [self._lines(plain)] if plain else []
        headed = len(names) > 1 or "R" in self._options
        pending = folders[::-1]
        while pending:
            folder = pending.pop()
            try:
                inner = self._inside(folder)
            except OSError as error:
                self._errors += f"ls: cannot open directory '{folder.name}': {error.strerror}\n"
                continue
            total = f"total {self._blocks(inner)}\n" if self._is_long else ""
            blocks.append((f"{folder.name}:\n" if headed else "") + total + self._lines(inner))
            if "R" in self._options:
                below = [each for each in inner if each.facts.kind == FOLDER and each.name not in (".", "..")]
                pending += [each._replace(name=posixpath.join(folder.name, each.name)) for each in reversed(below)]
        return Result("\n".join(blocks), self._errors, 2 if self._errors else 0)

    def _entry(self, name: str) -> _Entry | None:
        path = posixpath.normpath(self._call.path(name))
        try:
            if not name:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            facts = self._files.stat(path)
        except OSError as error:
            self._errors += f"ls: cannot access '{name}': {error.strerror}\n"
            return None
        if name.endswith("/") and facts.kind != FOLDER:
            self._errors += f"ls: cannot access '{name}': Not a directory\n"
            return None
        return _Entry(name, path, facts)

    def _inside(self, folder: _Entry) -> list[_Entry]:
        options = self._options
        listed = self._files.list(folder.path)
        if "a" in options:
            listed += [(".", folder.facts), ("..", folder.facts)]
        elif "A" not in options:
            listed = [each for each in listed if not each[0].startswith(".")]
        ignored = options["I"].split("\n") if "I" in options else []
        return self._sorted(
            [
                _Entry(name, posixpath.join(folder.path, name), facts)
                for name, facts in listed
                if not any(fnmatchcase(name, pattern) for pattern in ignored)
            ]
        )

    def _sorted(self, entries: list[_Entry]) -> list[_Entry]:
        options = self._options
        if "U" in options:
            return entries
        keys: dict[str, Callable[[_Entry], Any]] = {
            "S": lambda each: -each.facts.size,
            "t": lambda each: -each.facts.modified,
            "v": lambda each: _version(each.name),
            "X": lambda each: posixpath.splitext(each.name)[1],
        }
        entries = sorted(entries, key=lambda each: each.name)
        if key := next((keys[letter] for letter in keys if letter in options), None):
            entries.sort(key=key)
        if "r" in options:
            entries.reverse()
        if "group-directories-first" in options:
            entries.sort(key=lambda each: each.facts.kind != FOLDER)
        return entries

    def _lines(self, entries: list[_Entry]) -> str:
        shown = [self._shown(each) for each in entries]
        if self._is_long:
            rows = [[*self._facts(each), name] for each, name in zip(entries, shown, strict=True)]
            return _table(rows)
        if "m" in self._options:
            return ", ".join(shown) + "\n" * bool(shown)
        if "C" in self._options or "x" in self._options:
            return _columns(shown, across="x" in self._options)
        return "".join(f"{each}\n" for each in shown)

    def _shown(self, entry: _Entry) -> str:
        options, kind, name = self._options, entry.facts.kind, entry.name
        if "Q" in options:
            name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if kind == FOLDER and ("F" in options or "p" in options):
            name += "/"
        elif kind == FILE and "F" in options and entry.facts.mode & 0o111:
            name += "*"
        elif kind == LINK and self._is_long:
            with suppress(OSError):
                name += f" -> {self._files.read_link(entry.path)}"
        elif kind == LINK and "F" in options:
            name += "@"
        return name

    def _facts(self, entry: _Entry) -> list[str]:
        options, facts = self._options, entry.facts
        is_folder = facts.kind == FOLDER
        owner = _OWNER_ID if "n" in options else _OWNER
        return [
            "-dl"[(FILE, FOLDER, LINK).index(facts.kind)] + _permissions(facts.mode),
            "2" if is_folder else "1",
            *([owner] if "g" not in options else []),
            *([owner] if "o" not in options and "G" not in options else []),
            _size(facts.size) if "h" in options else str(facts.size),
            self._modified(facts.modified),
        ]

    def _modified(self, seconds: float) -> str:
        recent = 0 <= time.time() - seconds < _HALF_A_YEAR
        return time.strftime(self._time or ("%b %e %H:%M" if recent else "%b %e  %Y"), time.gmtime(seconds))

    def _blocks(self, entries: list[_Entry]) -> str:
        """Of 1 KiB, as a file system with pages of 4 KiB counts them."""
        total = sum(-(-each.facts.size // _BLOCK) * _BLOCK for each in entries)
        return _size(total) if "h" in self._options else str(total // 1024)


def _permissions(mode: int) -> str:
    return "".join(letter if mode >> (8 - place) & 1 else "-" for place, letter in enumerate("rwxrwxrwx"))


def _size(number: int) -> str:
    """Rounded up, as GNU's `-h` does."""
    if number < 1024:
        return str(number)
    power = min((number.bit_length() - 1) // 10, len(_UNITS))
    size, unit = number / 1024**power, _UNITS[power - 1]
    return f"{math.ceil(size)}{unit}" if size > 9.9 else f"{math.ceil(size * 10) / 10:.1f}{unit}"


def _version(name: str) -> list[tuple[int, int | str]]:
    return [(1, int(part)) if part.isdecimal() else (0, part) for part in _DIGITS.split(name) if part]


def _table(rows: list[list[str]]) -> str:
    """Numbers to the right, the rest to the left, as far as the longest one; the name as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1:] = [0] * bool(rows)
    lines = (
        " ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)


def _columns(names: list[str], *, across: bool) -> str:
    """As many columns as fit into a line."""
    least = sum(len(name) + 2 for name in names) // (_LINE_CHARS + 2)
    for height in range(max(1, least), len(names) + 1):
        width = -(-len(names) // height)
        rows = (
            [names[at : at + width] for at in range(0, len(names), width)]
            if across
            else [names[at::height] for at in range(height)]
        )
        columns = list(zip_longest(*rows, fillvalue=""))
        widths = [max(map(len, column)) for column in columns]
        if sum(widths) + 2 * len(widths) - 2 < _LINE_CHARS or width == 1:
            return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
    return ""
