"""No process of ours imports anything from its working directory, which may be a folder that guests write."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAFE = {"-P", "-I"}
FILES = [file for folder in ("kernelmcp", "kernels/kernelmcp_kernel") for file in (ROOT / folder).rglob("*.py")]


def commands(source: str) -> Iterator[list[ast.expr]]:
    """What follows sys.executable in each list of the source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
            yield node.elts[1:]


def is_safe(arguments: list[ast.expr]) -> bool:
    options = [one.value for one in arguments if isinstance(one, ast.Constant)]
    return bool(SAFE & set(options[: options.index("-m") if "-m" in options else None]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_each_python_that_we_start_leaves_its_working_directory_alone(file: Path) -> None:
    source = file.read_text("utf-8")
    if "sys.executable" in source and "_runtime" not in file.parts:
        assert [ast.unparse(ast.List(found)) for found in commands(source) if not is_safe(found)] == []


def test_a_command_without_the_option_is_found() -> None:
    [unsafe, safe] = commands("[sys.executable, '-m', 'x', '-P']\n[sys.executable, '-P', '-m', 'x']")
    assert (is_safe(unsafe), is_safe(safe)) == (False, True)
