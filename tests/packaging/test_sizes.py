"""What runs inside of a guest process is small modules that say what they are, as the rest is (tests/server)."""

from __future__ import annotations

import ast
from pathlib import Path

import kernelmcp_kernel

PACKAGE = Path(kernelmcp_kernel.__file__).parent
MAX_LINES = 450
MAX_MODULES = 24


def test_guest_code_is_small_and_says_what_it_is() -> None:
    files = sorted((PACKAGE / "inside").rglob("*.py"))
    assert len(files) > 10
    for file in files:
        text = file.read_text("utf-8")
        assert ast.get_docstring(ast.parse(text)), file
        assert len(text.splitlines()) <= MAX_LINES, file
        assert len(list(file.parent.glob("*.py"))) <= MAX_MODULES, file.parent


def test_the_hosts_javascript_is_small_and_says_what_it_is() -> None:
    files = sorted((PACKAGE / "host").rglob("*.[cm]js"))
    assert len(files) > 10
    for file in files:
        lines = file.read_text("utf-8").splitlines()
        assert lines[0].startswith("// "), file
        assert len(lines) <= MAX_LINES, file
