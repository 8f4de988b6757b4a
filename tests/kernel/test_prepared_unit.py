"""Packages that are prepared: bytecode, an image in which some are imported, imports that need no pip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.python import prepared
from kernelmcp_kernel.languages.python.prepared import find_former, find_prepared, imported
from kernelmcp_kernel.settings import read_settings


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


STEM = "0" * 32


@pytest.mark.parametrize(
    ("identity", "packages", "is_found"),
    [
        (f"build+{STEM}", {}, True),
        (f"build+{STEM}", {"denied": ["Pandas"]}, False),
        (f"build+{STEM}", {"denied": ["numpy"]}, True),
        (f"build+{STEM}", {"allowed": ["pandas"]}, False),  # for which requirements it was made nobody knows any more
        (f"build+{STEM}", {"enabled": False}, False),
        (f"other+{STEM}", {}, False),
        (f"build+{'1' * 32}", {}, False),
        (f"build+../{STEM}", {}, False),
        ("build", {}, False),
    ],
)
def test_a_former_image_is_used_where_the_settings_permit_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: str, packages: dict[str, object], is_found: bool
) -> None:
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path))
    chosen = read_settings({"KERNELMCP_PACKAGES": json.dumps(packages)})
    monkeypatch.setattr(prepared, "settings", lambda: chosen)
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / f"{STEM}.img").touch()
    fields = dict.fromkeys(("version", "sha256", "file", "source", "point", "bytecode"), "")
    package = fields | {"name": "pandas", "folder": str(tmp_path), "modules": ["pandas"], "needs": []}
    listed = {"build_id": f"build+{STEM}", "in_image": ["pandas"], "packages": [package]}
    (folder / f"{STEM}.json").write_text(json.dumps(listed))
    found = find_former(identity)
    assert (found is not None and found.image == folder / f"{STEM}.img") == is_found
