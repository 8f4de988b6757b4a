"""What an installation puts where: the importable packages and the source archive."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from .conftest import pack

pytestmark = pytest.mark.slow


def _python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("package", ["kernelmcp", "kernelmcp_kernel"])
def test_our_packages_are_importable_from_anywhere(package: str, tmp_path: Path) -> None:
    assert _python(f"import {package}", tmp_path).returncode == 0


def test_kernels_is_not_importable(tmp_path: Path) -> None:
    done = _python("import kernels", tmp_path)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'kernels'"


def test_an_editable_installation_imports_nothing_for_others(tmp_path: Path) -> None:
    """Each start of Python looks for the package: hatchling's own way takes 30 ms for it."""
    done = _python("import sys; print({'editables', 'importlib.util', 'urllib.parse'} & sys.modules.keys())", tmp_path)
    assert done.stdout == "set()\n"


def test_the_source_archive_can_build_itself_and_brings_no_runtime(tmp_path: Path) -> None:
    with tarfile.open(pack("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "LICENSE",
        "hatch_build.py",
        "kernels/kernelmcp_kernel/languages/python/build.py",
        "kernels/kernelmcp_kernel/host/build_image.mjs",
        "kernels/kernelmcp_kernel/languages/javascript/package-lock.json",
        "kernels/kernelmcp_kernel/kernelspec/kernel.json",
        "kernels/package-lock.json",
        "kernels/requirements-guest.txt",
        "kernels/licenses/parts.json",
        "kernels/vega-lock.json",
        "pyproject.toml",
        "scripts/sbom.py",
    }
    assert wanted - names == set()
    assert [name for name in names if "_runtime" in name or "node_modules" in name or name.startswith(".cache")] == []
