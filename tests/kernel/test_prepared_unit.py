"""Packages that are prepared: bytecode, an image in which some are imported, imports that need no pip."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelmcp_kernel.languages.python.prepared import find_prepared, imported


@pytest.mark.parametrize("text", ["[", "[]", '{"requirements": [1], "wheels": [{"name": 5}]}', "[" * 100_000])
def test_a_list_of_what_was_set_up_that_is_damaged_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path))
    (tmp_path / "setup.json").write_text(text)
    assert find_prepared() is None


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import numpy as np", {"numpy"}),
        ("import os, pandas as pd , sys", {"os", "pandas", "sys"}),
        ("x = 1\nif x:\n    from matplotlib.pyplot import plot", {"matplotlib"}),
        ("%matplotlib inline\nimport seaborn", {"matplotlib", "seaborn"}),
        ("%pylab", {"matplotlib"}),
        ("print('%matplotlib')", set()),
        ("print('import numpy')\nimportant = 1\nx.import_ = 2", set()),
        ("import " + "a." * 60_000, {"a"}),
        ("", set()),
    ],
)
def test_what_a_cell_imports(code: str, names: set[str]) -> None:
    assert imported(code) == names
