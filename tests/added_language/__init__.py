"""Tally, a language for tests: its folder is here, and `add_tally` adds it to a copy of the installation as
docs/languages.md says."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import kernelmcp_kernel

PACKAGE = Path(kernelmcp_kernel.__file__).parent
TALLY = Path(__file__).parent / "tally"
ROW = {"name": "tally", "version": "1", "description": "Counts.", "magics": ["tally", "tl"]}


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def add_tally(folder: Path) -> Path:
    """A copy of the kernel's package with Tally in it; gives a share/jupyter folder with its kernelspec."""
    copy = folder / "lib" / "kernelmcp_kernel"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.building"), copy_function=link)
    # The folder.
    shutil.copytree(TALLY, copy / "languages" / "tally", ignore=shutil.ignore_patterns("__pycache__"))
    # The row.
    kernelspec = copy / "kernelspec" / "kernel.json"
    spec = json.loads(kernelspec.read_text())
    spec["metadata"]["kernelmcp"]["languages"].append(ROW)
    kernelspec.unlink()  # a link to the installed one
    kernelspec.write_text(json.dumps(spec))
    # What an installation does with the kernelspec, but for the path of a copy that is not installed.
    start = f"import sys; sys.path.insert(0, {str(copy.parent)!r}); from kernelmcp_kernel.__main__ import main; main()"
    spec["argv"] = [sys.executable, "-c", start, "-f", "{connection_file}"]
    installed = folder / "share" / "kernels" / "kernelmcp"
    installed.mkdir(parents=True)
    (installed / "kernel.json").write_text(json.dumps(spec))
    return folder / "share"
