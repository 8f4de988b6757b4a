"""scripts/sbom.py: what it refuses, and that it is the same for the same tree. test_wheel.py reads a real one."""

from __future__ import annotations

import copy
import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = json.loads((ROOT / "kernels" / "licenses" / "parts.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("sbom", ROOT / "scripts" / "sbom.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_parts(script: ModuleType, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any]) -> dict[str, Any]:
    def tree(root: Path, version: str) -> Any:
        made = original(root, version)
        made.known = known
        return made

    original = script._Tree
    with monkeypatch.context() as patched:
        patched.setattr(script, "_Tree", tree)
        return script.sbom(ROOT, "1.2.3")


def test_it_is_the_same_each_time_and_another_for_another_version(script: ModuleType) -> None:
    first = script.sbom(ROOT, "1.2.3")
    assert json.dumps(first) == json.dumps(script.sbom(ROOT, "1.2.3"))
    assert first["serialNumber"] != script.sbom(ROOT, "1.2.4")["serialNumber"]


@pytest.mark.parametrize("name", ["pyodide", "vega", "comm", "plotly.js-cartesian-dist-min"])
def test_a_bundled_package_without_a_known_license_is_refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    known = {other: each for other, each in PARTS.items() if other != name}
    with pytest.raises(script.SbomError, match=rf"{name} .* has no license or no text of it"):
        with_parts(script, monkeypatch, known)


@pytest.mark.parametrize("name", ["pyodide", "vega-lite"])
def test_parts_of_another_version_are_refused(script: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    known = copy.deepcopy(PARTS)
    known[name]["version"] = "0.0.1"
    with pytest.raises(script.SbomError, match=rf"describes {name} 0\.0\.1, and .* is bundled"):
        with_parts(script, monkeypatch, known)


def test_every_text_belongs_to_a_part_and_every_part_has_one() -> None:
    folder = ROOT / "kernels" / "licenses"
    named = {part["text"] for each in PARTS.values() for part in each.get("parts", [])}
    named |= {each["text"] for each in PARTS.values() if "text" in each}
    assert named == {file.name for file in folder.glob("*.txt")}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a>=1,<2", "vers:pypi/>=1|<2"),
        ("a<0.10,>=0.9", "vers:pypi/>=0.9|<0.10"),
        ("a==1.2", "vers:pypi/1.2"),
        ("a", "vers:pypi/*"),
    ],
)
def test_bounds_are_ordered_by_version(script: ModuleType, text: str, wanted: str) -> None:
    assert script._version_range(script.Requirement(text)) == wanted
