"""`bc` and `expr` of the shell give what GNU's give."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from kernelmcp_kernel.languages import shell

if TYPE_CHECKING:
    from collections.abc import Iterator

Commands = Any


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.syspath_prepend(next(iter(shell.__path__)))
    yield lambda name: import_module(f"kernelmcp_shell.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernelmcp_shell"]:
        del sys.modules[name]


def bc(commands: Commands, program: str, **environment: str) -> tuple[str, str]:
    call = commands("builtin_interface").Call("bc", [], program + "\n", "/", environment, lambda path: b"")
    found = commands("commands.bc_command").make_bc(None)["bc"](call)
    return found.stdout, found.stderr


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("x = 5 > 3; x", "1\n5\n"),
        ("a=1&&1; a", "1\n1\n"),
        ("a=0||0", "0\n"),
        ("x = 5 > y = 3; y", "1\n3\n"),
        ("a=!0; a; 1+!0 > 1", "1\n2\n"),
        ("a=b=2; a+=(b > 1); a", "3\n"),
    ],
)
def test_only_an_assignment_that_is_all_of_a_statement_is_silent(
    commands: Commands, program: str, printed: str
) -> None:
    assert bc(commands, program) == (printed, "")
