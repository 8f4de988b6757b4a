"""What people write in a shell gives what bash gives: the same on stdout, the same exit status."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell_corpus import FILES, Ran, recorded, snippets
from .shell_guest import ShellGuest, shell_guest

DOCS = Path(__file__).parents[2] / "docs" / "shell.md"
SHARE = 0.95


@pytest.fixture(scope="module")
def guest() -> Iterator[ShellGuest]:
    with shell_guest() as running:
        yield running


def run(guest: ShellGuest, code: str) -> Ran:
    case = guest.workspace / "case"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(FILES, case)
    found = guest.apart(code, cwd="/workspace/case", TZ="UTC")
    return found.stdout, found.exit_code


def test_snippets_give_what_bash_gives_and_the_differences_are_documented(guest: ShellGuest) -> None:
    expected = recorded()
    different = [name for name, code in snippets().items() if run(guest, code) != expected[name]]
    assert len(different) <= len(expected) * (1 - SHARE)
    assert documented_differences() == different


def documented_differences() -> list[str]:
    """The names in the table of docs/shell.md."""
    rows = [line.split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    return [row[1].strip().strip("`") for row in rows if row[1].count(":") == 1]
