"""Fetches what JavaScript guests run on, from npm, pinned by package-lock.json, into node_modules/ beside it.

QuickJS as WebAssembly with its bindings, acorn to read cells.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from kernelmcp_kernel.runtime.identity import FORMAT, digest
from kernelmcp_kernel.runtime.npm import npm_ci

# Debugging aids of the packages.
_PRUNED = ("*.map",)
_LOCK_FILES = ("package.json", "package-lock.json")


def build_runtime(package_dir: Path, log: Callable[[str], None]) -> bool:
    """Make node_modules/ if it is missing or made from another lock file. True when it had to be made."""
    folder = package_dir / "languages" / "javascript"
    modules = folder / "node_modules"
    wanted = digest([FORMAT], folder, [folder / name for name in _LOCK_FILES])
    stamp = modules / "stamp"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return False
    log("kernelmcp: fetching QuickJS (npm)")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        made = npm_ci(Path(scratch), folder)
        for pattern in _PRUNED:
            for file in made.rglob(pattern):
                file.unlink()
        (made / "stamp").write_text(wanted, "utf-8")
        if modules.exists():
            modules.rename(Path(scratch) / "replaced")  # a folder cannot be renamed over one that has content
        shutil.move(made, modules)
    return True
