"""Wheels in pure Python of packages whose own are compiled for this machine: what of them is Python, packed again.

jinja2 and bokeh need these, and the part of Pyodide's distribution that the tests have does not hold them. Fetched
from the index once for a machine, and kept in the user's cache directory.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .kept import kept

NAME = "pure-wheels"
_PACKAGES = ("markupsafe", "pyyaml")
_COMPILED = (".so", ".pyd", ".c", ".dylib")


def pure_wheels() -> Path:
    """A folder for packages.wheel_folders. All of these do without their compiled modules."""
    return kept(NAME, _fill)


def _fill(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        options = ["--no-deps", "--only-binary=:all:", "--dest", downloads]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options, *_PACKAGES], check=True)
        for wheel in Path(downloads).glob("*.whl"):
            name, version, *_ = wheel.name.split("-")
            _pack(wheel, folder / f"{name}-{version}-py3-none-any.whl")


def _pack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith(".dist-info/WHEEL"):
                content = re.sub(rb"(?m)^Tag: .*$", b"Tag: py3-none-any", content).replace(
                    b"Purelib: false", b"Purelib: true"
                )
            if not name.endswith(_COMPILED):
                made.writestr(name, content)
