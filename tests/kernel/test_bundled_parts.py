"""The parts of Pyodide that the wheel's SBOM names are those that the guest has, as far as it can tell."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import running_kernel

PARTS = Path(__file__).resolve().parents[2] / "kernels" / "licenses" / "parts.json"
ASK = """
import decimal, json, platform, pyexpat, sqlite3, sys, zlib
from compression import zstd
versions = {
    "cpython": platform.python_version(),
    "emscripten": ".".join(map(str, sys._emscripten_info.emscripten_version)),
    "expat": pyexpat.EXPAT_VERSION.removeprefix("expat_"),
    "mpdecimal": decimal.__libmpdec_version__,
    "sqlite": sqlite3.sqlite_version,
    "zlib": zlib.ZLIB_RUNTIME_VERSION,
    "zstd": zstd.zstd_version,
}
print(json.dumps(versions))
"""


def test_the_parts_of_pyodide_have_the_versions_that_the_guest_reports() -> None:
    parts = json.loads(PARTS.read_text("utf-8"))["pyodide"]["parts"]
    stated = {part["name"]: part["version"] for part in parts if "version" in part}
    with running_kernel() as kernel:
        found = json.loads(kernel.run(ASK).text())
    assert found == {name: version for name, version in stated.items() if name != "bzip2"}
