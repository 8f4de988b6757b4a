"""Rewrites the wheel that a build made, which is as hostile as the source, as a pure Python wheel.

Keeps the files that a guest would see, by `unpack`, and the metadata, if it belongs to the package that the source is
named for. Tags, signatures and file lists are our own: compiled files are refused, so the rest runs anywhere. The same
files give the same wheel, byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from kernelmcp_kernel.packages.package_errors import PackageError
from kernelmcp_kernel.packages.store import metadata_file
from kernelmcp_kernel.packages.unpack import unpack

_COMPILED_NAMES = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".wasm", ".pyc", ".node")
_COMPILED_BYTES = (b"\0asm", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_MAX_METADATA_BYTES = 4 << 20
# Rewritten, or useless: RECORD, WHEEL and files that describe an installation.
_OURS = ("RECORD", "RECORD.jws", "RECORD.p7s", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class BadWheel(Exception):
    """The result of a build is refused. The text, the reason, completes a sentence that begins with `its source`."""


def rewrite(made: bytes, name: str, version: str, folder: Path, max_bytes: int) -> Path:
    """The wheel, in an empty folder. Raises BadWheel, OSError."""
    draft, content = folder / "made.whl", folder / "content"
    draft.write_bytes(made)
    content.mkdir()
    try:
        unpack(draft, content, max_bytes)
    except PackageError as error:
        raise BadWheel("makes a wheel that cannot be used") from error
    info = _checked_info(content, name, version)
    files = sorted(file for file in content.rglob("*") if file.is_file())
    for file in files:
        _check(file)
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        record: list[str] = []
        for file in files:
            if file.parent != info or file.name not in _OURS:
                within = file.relative_to(info).as_posix() if file.is_relative_to(info) else None
                path = f"{stem}.dist-info/{within}" if within else file.relative_to(content).as_posix()
                _write(archive, path, file.read_bytes(), record)
        lines = "Wheel-Version: 1.0\nGenerator: kernelmcp\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        _write(archive, f"{stem}.dist-info/WHEEL", lines.encode(), record)
        _write(archive, f"{stem}.dist-info/RECORD", "\n".join([*record, f"{stem}.dist-info/RECORD,,", ""]).encode(), [])
    return wheel


def _checked_info(content: Path, name: str, version: str) -> Path:
    """The folder of the metadata, if it belongs to this package."""
    file = metadata_file(content)
    if file is None or len(list(content.glob("*.dist-info"))) > 1 or file.stat().st_size > _MAX_METADATA_BYTES:
        raise BadWheel("makes a wheel without metadata")
    found = BytesHeaderParser().parsebytes(file.read_bytes())
    try:
        right = canonicalize_name(str(found["Name"])) == canonicalize_name(name)
        right = right and Version(str(found["Version"])) == Version(version)
    except InvalidVersion:
        right = False
    if not right:
        raise BadWheel("makes a wheel of another name or version")
    return file.parent


def _check(file: Path) -> None:
    name = file.name.lower()
    with file.open("rb") as stream:
        begin = stream.read(4)
    if name.endswith(_COMPILED_NAMES) or ".so." in name or begin.startswith(_COMPILED_BYTES):
        raise BadWheel("makes a wheel with compiled files")


def _write(archive: zipfile.ZipFile, path: str, content: bytes, record: list[str]) -> None:
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    archive.writestr(entry, content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    quoted = '"' + path.replace('"', '""') + '"' if set(path) & set(',"\n\r') else path
    record.append(f"{quoted},sha256={digest},{len(content)}")
