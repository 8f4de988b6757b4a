"""Real packages for the guest: the part of Pyodide's distribution that a package of the index carries.

Fetched once for a machine, 106 MB, and kept in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .kept import kept

NAME = "open-webui==0.12.4"
_INSIDE = "open_webui/frontend/pyodide/"
_LOCK = "pyodide-lock.json"


def pyodide_folder() -> Path:
    """A folder for packages.pyodide_url: numpy, pandas, matplotlib, scikit-learn and some fifty more."""
    return kept(NAME, _fill)


def _fill(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", downloads]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options, NAME], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            listed = json.loads(archive.read(_INSIDE + _LOCK))
            there = {name.removeprefix(_INSIDE) for name in archive.namelist() if name.startswith(_INSIDE)}
            listed["packages"] = {key: one for key, one in listed["packages"].items() if one["file_name"] in there}
            for package in listed["packages"].values():
                content = archive.read(_INSIDE + package["file_name"])
                assert hashlib.sha256(content).hexdigest() == package["sha256"], package["name"]
                (folder / package["file_name"]).write_bytes(content)
    (folder / _LOCK).write_text(json.dumps(listed))
