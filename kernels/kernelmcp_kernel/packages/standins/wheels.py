"""The stand-ins as wheels, which pip chooses like any other."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from kernelmcp_kernel.packages.distribution import Listed

# Packages of the distribution, in its version: name -> the module here.
OF_DISTRIBUTION = {"rpds-py": "rpds", "orjson": "orjson", "ujson": "ujson"}
# Packages that have no wheel for the guest anywhere, or none that is needed: name -> the module here, and the version
# whose names and values it has.
OF_INDEX = {"ormsgpack": ("ormsgpack", "1.13.1"), "uuid-utils": ("uuid_utils", "0.19.0")}
# Appended to the version: pip prefers it to an empty wheel of the same version.
_LOCAL = "+pure"
_FOLDER = Path(__file__).parent
_DATE = (2020, 1, 1, 0, 0, 0)  # so that the file is reproducible


def make(absent: Iterable[Listed], folder: Path) -> dict[str, tuple[str, Path]]:
    """Create wheels in `folder` for the unavailable packages that have a stand-in; by name: sha256 and file."""
    return _write({each.name: each.version for each in absent if each.name in OF_DISTRIBUTION}, folder)


def make_of_index(folder: Path) -> list[tuple[str, Path]]:
    """Create wheels in `folder` for packages outside the distribution: sha256 and file."""
    return list(_write({name: version for name, (_, version) in OF_INDEX.items()}, folder).values())


def hashes(packages: Iterable[Listed]) -> frozenset[str]:
    """The sha256 of every stand-in for the distribution's packages."""
    versions = {package.name: package.version for package in packages if package.name in OF_DISTRIBUTION}
    versions |= {name: version for name, (_, version) in OF_INDEX.items()}
    return frozenset(_sha256_of(name, version) for name, version in versions.items())


def _write(versions: Mapping[str, str], folder: Path) -> dict[str, tuple[str, Path]]:
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, tuple[str, Path]] = {}
    for name, version in versions.items():
        file = folder / f"{_stem(name, version)}-py3-none-any.whl"
        file.write_bytes(_wheel(name, version))
        found[name] = _sha256_of(name, version), file
    return found


def _sha256_of(name: str, version: str) -> str:
    return hashlib.sha256(_wheel(name, version)).hexdigest()


def _stem(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}{_LOCAL}"


@cache
def _wheel(name: str, version: str) -> bytes:
    info = f"{_stem(name, version)}.dist-info"
    metadata = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}{_LOCAL}\n"
        f"Summary: A stand-in for {name} in plain Python, by kernelmcp\n"
    )
    files = {
        **_modules(OF_DISTRIBUTION[name] if name in OF_DISTRIBUTION else OF_INDEX[name][0]),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, _DATE), data)
    return buffer.getvalue()


def _modules(name: str) -> dict[str, bytes]:
    """The source of a module, or of a package's modules, by path in a wheel."""
    found = sorted((_FOLDER / name).glob("*.py")) or [_FOLDER / f"{name}.py"]
    return {file.relative_to(_FOLDER).as_posix(): file.read_bytes() for file in found}
