"""Fetches what JavaScript guests run on, from npm, pinned by package-lock.json, into node_modules/ beside it.

QuickJS as WebAssembly with its bindings, acorn to read cells; esbuild, which makes one file of it, and goes again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from kernelmcp_kernel.languages.javascript.bundle import make_bundle, sources
from kernelmcp_kernel.runtime.npm import npm_ci

# Debugging aids of the packages.
_PRUNED = ("*.map",)
_OF_THE_BUILD = ("esbuild", "@esbuild", ".bin")


def build_runtime(package_dir: Path, log: Callable[[str], None]) -> bool:
    """Make node_modules/ if it is missing or made from other sources. True when it had to be made."""
    folder = package_dir / "languages" / "javascript"
    modules = folder / "node_modules"
    wanted = sources(folder)
    stamp = modules / "stamp"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return False
    log("kernelmcp: fetching QuickJS (npm)")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        made = npm_ci(Path(scratch), folder, development=True)
        for pattern in _PRUNED:
            for file in made.rglob(pattern):
                file.unlink()
        if modules.exists():
            modules.rename(Path(scratch) / "replaced")  # a folder cannot be renamed over one that has content
        shutil.move(made, modules)
    make_bundle(folder)
    for name in _OF_THE_BUILD:
        shutil.rmtree(modules / name)
    stamp.write_text(wanted, "utf-8")
    return True
