"""A copy of the source tree's kernel package, with its runtime, that a test may damage; and the wheel of this tree."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_DEADLINE_SECONDS = 300


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for what is large, which all workers of this run share. The last one removes it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    with folder.with_name("shared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        folder.mkdir(exist_ok=True)
        yield folder
        fcntl.flock(lock, fcntl.LOCK_UN)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)


@pytest.fixture(scope="session")
def wheel(run_folder: Path) -> Path:
    """The wheel, which one worker packs."""
    with (run_folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = run_folder / "wheel"
        if not folder.exists():
            pack("wheel", run_folder / "wheel.new")
            (run_folder / "wheel.new").rename(folder)
        return next(folder.iterdir())


def pack(target: str, folder: Path, root: Path = ROOT, **environment: str) -> Path:
    """An archive of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1767225600"} | environment
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, timeout=BUILD_DEADLINE_SECONDS)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture
def package_dir(tmp_path: Path) -> Path:
    """kernels/kernelmcp_kernel in a tree of its own, with the lock files beside it."""
    return copy_kernels(ROOT / "kernels", tmp_path)


def copy_kernels(kernels: Path, folder: Path) -> Path:
    """The package in the copy."""
    unfinished = shutil.ignore_patterns("__pycache__", "_runtime.*", "*.building")
    return shutil.copytree(kernels, folder / "kernels", ignore=unfinished) / "kernelmcp_kernel"
