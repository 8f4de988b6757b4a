"""What an installation puts where: the kernelspec, the importable packages, the wheel and the source archive."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from .conftest import pack

# What a package index and a user's line bear.
MAX_WHEEL_BYTES = 25_000_000

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


def test_the_wheel_runs_anywhere_and_brings_its_runtime(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        stamp = json.loads(archive.read("kernelmcp_kernel/_runtime/stamp.json"))
        image = archive.getinfo("kernelmcp_kernel/_runtime/boot.img").file_size
    assert stamp["image"][1] == image
    data = wheel.name.removesuffix("-py3-none-any.whl") + ".data/data"
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
        f"{data}/share/jupyter/kernels/kernelmcp/kernel.json",
    }
    assert wanted - names == set()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"kernelmcp", "kernelmcp_kernel"}
    assert [name for name in names if "esbuild" in name] == []


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
        "kernels/vega-lock.json",
        "pyproject.toml",
    }
    assert wanted - names == set()
    assert [name for name in names if "_runtime" in name or "node_modules" in name or name.startswith(".cache")] == []
