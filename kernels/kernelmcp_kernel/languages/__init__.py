"""The languages of cells: each is a folder here, with a `LANGUAGE` in its language.py, and a row in the kernelspec.

The first row is the default language; a cell in another language begins with one of its magics, such as `%%bash`.
docs/languages.md describes how to add one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernelmcp_kernel.languages.interface import Language
from kernelmcp_kernel.runtime.places import PACKAGE


@dataclass(frozen=True)
class Row:
    """A language as the kernelspec lists it. The server reads the same rows."""

    name: str
    """The name of its folder here, and its name for clients."""
    version: str
    description: str
    magics: tuple[str, ...] = ()
    """First words, without `%%`, of cells in this language. The server writes the first of them."""


@dataclass(frozen=True)
class Part:
    """The parsed text of a cell: its language, the arguments of its magic, and the rest."""

    language: str
    arguments: str
    body: str
    offset: int
    """The position of the body in the text, in code points."""


@cache
def table() -> tuple[Row, ...]:
    """The rows, in order."""
    spec: Any = json.loads((PACKAGE / "kernelspec" / "kernel.json").read_text("utf-8"))
    rows: list[dict[str, Any]] = spec["metadata"]["kernelmcp"]["languages"]
    return tuple(Row(row["name"], row["version"], row["description"], tuple(row["magics"])) for row in rows)


@cache
def find(name: str) -> Language:
    """The language of a row. Raises ImportError if it has no folder."""
    found: Language = import_module(f"{__name__}.{name}.language").LANGUAGE
    return found


def builders() -> Iterator[Callable[[Path, Callable[[str], None]], bool]]:
    """`build_runtime(package_dir, log)` of each language that has a `build.py`, to run at installation."""
    for row in table():
        if find_spec(f"{__name__}.{row.name}.build"):
            yield import_module(f"{__name__}.{row.name}.build").build_runtime


def main_language() -> Language:
    """The default language of cells."""
    return find(table()[0].name)


def language_info() -> dict[str, Any]:
    """The main language's info, as in kernel_info_reply."""
    return {"name": table()[0].name, "version": table()[0].version, **main_language().language_info}


def divide(code: str) -> Part:
    """Determine a cell's language. Accepts any text; cells with an unknown magic are in the main language."""
    start = len(code) - len(code.lstrip())
    if code.startswith("%%", start):
        end = code.find("\n", start)
        end = len(code) if end < 0 else end + 1
        magic, _, arguments = code[start + 2 : end].rstrip().partition(" ")
        for row in table():
            if magic in row.magics:
                return Part(row.name, arguments.strip(), code[end:], end)
    return Part(table()[0].name, "", code, 0)
