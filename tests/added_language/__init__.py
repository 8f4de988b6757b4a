"""Languages for tests: their folders are here, and `add_tally` and `add_shell` add them to a copy of the installation
as docs/languages.md says. Shell is a stand-in for the real one, of which there is none in the copy."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import kernelmcp_kernel

PACKAGE = Path(kernelmcp_kernel.__file__).parent
TALLY = {"name": "tally", "version": "1", "description": "Counts.", "magics": ["tally", "tl"]}
SHELL = {"name": "shell", "version": "1", "description": "Stands in.", "magics": ["bash", "sh"]}


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def add_tally(folder: Path) -> Path:
    return _add(TALLY, folder)


def add_shell(folder: Path) -> Path:
    return _add(SHELL, folder)


def without_shell(folder: Path) -> Path:
    return _add(None, folder)


def _add(row: dict[str, Any] | None, folder: Path) -> Path:
    """A copy of the kernel's package with the language in it; gives a share/jupyter folder with its kernelspec."""
    copy = folder / "lib" / "kernelmcp_kernel"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.building"), copy_function=link)
    name = row["name"] if row else SHELL["name"]
    shutil.rmtree(copy / "languages" / name, ignore_errors=True)
    # The row.
    kernelspec = copy / "kernelspec" / "kernel.json"
    spec = json.loads(kernelspec.read_text())
    known = spec["metadata"]["kernelmcp"]
    known["languages"] = [each for each in known["languages"] if each["name"] != name]
    if row:
        # The folder.
        source = Path(__file__).parent / name
        shutil.copytree(source, copy / "languages" / name, ignore=shutil.ignore_patterns("__pycache__"))
        known["languages"].append(row)
    kernelspec.unlink()  # a link to the installed one
    kernelspec.write_text(json.dumps(spec))
    # What an installation does with the kernelspec, but for the path of a copy that is not installed.
    start = f"import sys; sys.path.insert(0, {str(copy.parent)!r}); from kernelmcp_kernel.__main__ import main; main()"
    spec["argv"] = [sys.executable, "-c", start, "-f", "{connection_file}"]
    installed = folder / "share" / "kernels" / "kernelmcp"
    installed.mkdir(parents=True)
    (installed / "kernel.json").write_text(json.dumps(spec))
    return folder / "share"
