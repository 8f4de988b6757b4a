"""A copy of the source tree's kernel package, with its runtime, that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package_dir(tmp_path: Path) -> Path:
    """kernels/kernelmcp_kernel in a tree of its own, with the lock files beside it."""
    return copy_kernels(ROOT / "kernels", tmp_path)


def copy_kernels(kernels: Path, folder: Path) -> Path:
    """The package in the copy."""
    unfinished = shutil.ignore_patterns("__pycache__", "_runtime.*", "*.building")
    return shutil.copytree(kernels, folder / "kernels", ignore=unfinished) / "kernelmcp_kernel"
