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

    def load(name: str) -> Any:
        return import_module(f"kernelmcp_shell.{name}")

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernelmcp_shell"]:
        del sys.modules[name]


def no_descriptor(path: str) -> bytes:
    raise OSError(path)


def bc(commands: Commands, program: str, **environment: str) -> tuple[str, str]:
    call = commands("builtin_interface").Call("bc", [], program + "\n", "/", environment, no_descriptor)
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


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("x=0; x != 0 && 1/x > 2", "0\n"),
        ("1 || 1/0", "1\n"),
        ("0 && (y=5); y", "0\n0\n"),
        ("0 && (1 || sqrt(-1)) && 1/0; 1 && 4/2", "0\n1\n"),
    ],
)
def test_bc_computes_no_right_side_that_decides_nothing(commands: Commands, program: str, printed: str) -> None:
    assert bc(commands, program) == (printed, "")


def expr(commands: Commands, words: str) -> tuple[str, str, int]:
    call = commands("builtin_interface").Call("expr", words.split(), None, "/", {}, no_descriptor)
    found = commands("commands.expr_command").make_expr()["expr"](call)
    return found.stdout, found.stderr, found.exit_code


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("x | 1 / 0", "x"),
        ("0 & a + 1", "0"),
        ("0 & ( 1 | 1 / 0 ) | 4 / 2", "2"),
        ("1 | a : \\(", "1"),
        ("1 | ( a * 2 < 3 )", "1"),
    ],
)
def test_expr_computes_no_right_side_that_decides_nothing(commands: Commands, words: str, printed: str) -> None:
    assert expr(commands, words) == (f"{printed}\n", "", int(printed == "0"))


def test_expr_refuses_an_operator_that_is_missing_its_right_side(commands: Commands) -> None:
    assert expr(commands, "1 | 2 +")[2] == 2


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("abc : a\\|ab", "2\n"),
        ("foobar : \\(foo\\|foobar\\)", "foobar\n"),
        ("v1.10 : v1\\.\\(1\\|10\\)", "10\n"),
        ("abc : a\\|ab$", "1\n"),
        ("ab : a\\|ab$", "2\n"),
        ("a : \\<a\\>", "1\n"),
        ("ab : a\\>", "0\n"),
        ("abc : \\`ab", "2\n"),
        ("abc : abc\\'", "3\n"),
        ("abc : ab\\'", "0\n"),
        ("x : y\\|z", "0\n"),
    ],
)
def test_expr_takes_the_longest_match(commands: Commands, words: str, printed: str) -> None:
    assert expr(commands, words)[:2] == (printed, "")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"a*\+a", "a repetition of a repetition"),
        (r"a\{1,3\}\?", "a repetition of a repetition"),
        (r"a\|\<ab", "a choice with word boundaries"),
        ("[[.a.]]", "[. and [= in brackets"),
        (r"\(a\|b\).*.*.*.*.*.*", "so many repetitions"),
    ],
)
def test_expr_refuses_patterns_that_it_would_read_otherwise(commands: Commands, pattern: str, said: str) -> None:
    assert f"{said} " in expr(commands, f"{'a' * 500} : {pattern}")[1]


@pytest.mark.parametrize(
    ("length", "printed"),
    [
        ("0", f"{2**300}\n"),
        ("100", f"{2**300}\n"),
        ("52", f"{str(2**300)[:50]}\\\n{str(2**300)[50:]}\n"),
        ("1", f"{str(2**300)[:68]}\\\n{str(2**300)[68:]}\n"),
    ],
)
def test_bc_breaks_lines_at_the_length_that_the_environment_names(
    commands: Commands, length: str, printed: str
) -> None:
    assert bc(commands, "2^300", BC_LINE_LENGTH=length) == (printed, "")
