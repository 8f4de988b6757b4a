"""The stand-ins as wheels, which pip chooses like any other."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kernelmcp_kernel.packages.distribution import Listed

# Name of a distribution -> its module here.
MODULES = {"rpds-py": "rpds", "orjson": "orjson", "ujson": "ujson"}
# Behind the version: pip takes it before a wheel of the same version that has nothing in it.
_LOCAL = "+pure"
_FOLDER = Path(__file__).parent
_DATE = (2020, 1, 1, 0, 0, 0)  # the same file each time


def make(absent: Iterable[Listed], folder: Path) -> dict[str, tuple[str, Path]]:
    """Wheels in `folder` for those of the absent packages that have a stand-in, by name: sha256 and file."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, tuple[str, Path]] = {}
    for package in absent:
        if package.name in MODULES:
            file = folder / f"{_stem(package)}-py3-none-any.whl"
            file.write_bytes(_wheel(package))
            found[package.name] = sha256_of(package), file
    return found


def hashes(packages: Iterable[Listed]) -> frozenset[str]:
    """The sha256 of every stand-in for these."""
    return frozenset(sha256_of(package) for package in packages if package.name in MODULES)


def sha256_of(package: Listed) -> str:
    return hashlib.sha256(_wheel(package)).hexdigest()


def _stem(package: Listed) -> str:
    return f"{package.name.replace('-', '_')}-{package.version}{_LOCAL}"


@cache
def _wheel(package: Listed) -> bytes:
    module, info = f"{MODULES[package.name]}.py", f"{_stem(package)}.dist-info"
    metadata = (
        f"Metadata-Version: 2.4\nName: {package.name}\nVersion: {package.version}{_LOCAL}\n"
        f"Summary: A stand-in for {package.name} in plain Python, by kernelmcp\n"
    )
    files = {
        module: (_FOLDER / module).read_bytes(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, _DATE), data)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
