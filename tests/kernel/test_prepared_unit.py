"""Packages that are prepared: bytecode, an image in which some are imported, imports that need no pip."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from kernelmcp_kernel.languages.python import prepared
from kernelmcp_kernel.languages.python.prepared import find_former, find_prepared, imported
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.store import Store, Wheel
from kernelmcp_kernel.prepare import __main__ as prepare
from kernelmcp_kernel.prepare.archive import write_archive
from kernelmcp_kernel.prepare.plan import plans
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.settings import PackageSettings, read_settings

from .wheels import make_wheel


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


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """In a home of its own."""
    monkeypatch.setenv("KERNELMCP_HOME", str(tmp_path / "home"))
    return Store(packages_root())


def set_up(store: Store, *files: Path) -> list[Wheel]:
    """Set up these wheels, by the names of their packages."""
    wheels = [store.add_wheel(file, "pypi") for file in files]
    listed = {"requirements": [each.name for each in wheels], "wheels": [asdict(each) for each in wheels]}
    prepared.setup_file().write_text(json.dumps(listed))
    return wheels


def test_who_sets_up_another_version_is_told_to_remove_the_first(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(store, make_wheel(tmp_path, "plain"))
    said = (
        "plain>=2: prepared is plain 1.0, and an installed package stays as it is. For another version run "
        "`kernelmcp setup --remove` first"
    )
    assert [plan.error for plan in plans(["plain>=2"], [])] == [said]
    assert prepare._get(["plain>=2"], Installer(PackageSettings(), store), store)
    assert capsys.readouterr().err == f"kernelmcp: {said}\n"


def test_an_archive_adds_to_what_was_set_up_and_its_versions_win(store: Store, tmp_path: Path) -> None:
    wheels = set_up(store, make_wheel(tmp_path, "both", "2.0"), make_wheel(tmp_path, "new"))
    write_archive(tmp_path / "set.zip", store, ("both>=2", "new"), wheels)
    set_up(store, make_wheel(tmp_path, "old"), make_wheel(tmp_path, "both", "1.0"))
    prepare._get_archived(tmp_path / "set.zip", Installer(PackageSettings(), store), store)
    found = prepared.read_setup()
    assert found.requirements == ("old", "both", "both>=2", "new")
    assert {wheel["name"]: wheel["version"] for wheel in found.wheels} == {"old": "1.0", "both": "2.0", "new": "1.0"}
