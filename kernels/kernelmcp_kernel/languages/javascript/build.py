"""Downloads the npm packages of JavaScript guests, pinned by package-lock.json, into node_modules/ beside it.

These are QuickJS as WebAssembly with its bindings, acorn to parse cells, and esbuild, which makes one file of them and
is then removed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from kernelmcp_kernel.languages.javascript.bundle import make_bundle, sources
from kernelmcp_kernel.runtime.npm import npm_ci

_OF_THE_BUILD = ("esbuild-wasm", ".bin")


def build_runtime(package_dir: Path, log: Callable[[str], None]) -> bool:
    """Create node_modules/ if it is missing or was made from other sources. Returns True if it was created."""
    folder = package_dir / "languages" / "javascript"
    modules = folder / "node_modules"
    wanted = sources(folder)
    stamp = modules / "stamp"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return False
    log("kernelmcp: fetching QuickJS (npm)")
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        made = npm_ci(Path(scratch), folder, development=True)
        for file in made.rglob("*.map"):  # debugging aids
            file.unlink()
        if modules.exists():
            modules.rename(Path(scratch) / "replaced")  # a folder cannot be renamed over a non-empty one
        shutil.move(made, modules)
    make_bundle(folder)
    for name in _OF_THE_BUILD:
        shutil.rmtree(modules / name)
    stamp.write_text(wanted, "utf-8")
    return True
