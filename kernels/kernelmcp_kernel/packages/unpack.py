"""Unpacks a wheel, which is hostile: its uploader chose every name, size and byte in it.

Runs nothing. Writes only regular files, below the target, with limits on their number and on the decompressed bytes,
regardless of the archive's own directory.
"""

from __future__ import annotations

import errno
import stat
import zipfile
import zlib
from itertools import takewhile
from pathlib import Path, PurePosixPath

from kernelmcp_kernel.packages.cache_cap import STAMP
from kernelmcp_kernel.packages.package_errors import PackageInvalid, PackageTooLarge

# Also of folders. The largest widely used wheels have 15,000 files.
MAX_FILES = 50_000

_MAX_PATH_CHARS = 1000
_MAX_PART_BYTES = 255
_CHUNK_BYTES = 1 << 18
_ENTRY = b"PK\x01\x02"

# zipfile's exceptions for a damaged archive; seeking also raises an OSError without a number, or with EINVAL.
DAMAGED = (
    zipfile.BadZipFile,
    EOFError,
    IndexError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    zlib.error,
)

# zipfile decompresses others without a limit: a few hundred bytes become gigabytes in memory before `_write` sees one.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# Parts of NAME.data that contain Python code; others (scripts, headers, data) need an environment, which a guest lacks.
_CODE = ("purelib", "platlib")


def unpack(wheel: Path, target: Path, max_bytes: int) -> None:
    """Unpack into an existing, empty folder. Raises PackageInvalid, PackageTooLarge; files written so far remain."""
    try:
        if (files := _most_entries(wheel)) > MAX_FILES:
            raise PackageTooLarge(f"{wheel.name} has {files:,} files, more than {MAX_FILES:,}; install another version")
        with zipfile.ZipFile(wheel) as archive:
            _unpack(archive, wheel.name, target, max_bytes)
    except (*DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise PackageInvalid(f"{wheel.name} is damaged: {error}; install another version") from error


def _most_entries(wheel: Path) -> int:
    """At least as many as the archive's directory has. zipfile makes an object of each before it can be asked for their
    number, and takes what the end of the archive says about it on trust; but each begins with this signature."""
    count, tail = 0, b""
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            count += (tail + chunk).count(_ENTRY)
            tail = chunk[1 - len(_ENTRY) :]
    return count


def _unpack(archive: zipfile.ZipFile, name: str, target: Path, max_bytes: int) -> None:
    left, folders = max_bytes, 0
    for entry in archive.infolist():
        if entry.filename.endswith("/"):
            continue
        place = _place(entry, name)
        if place is None:
            continue
        file = target.joinpath(*place.parts)
        folders += sum(1 for _ in takewhile(lambda folder: not folder.exists(), file.parents))
        if folders > MAX_FILES:
            raise PackageTooLarge(f"{name} has more than {MAX_FILES:,} folders; install another version")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            left = _write(archive, entry, file, left)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise PackageInvalid(f"{name} holds {str(place)!r} twice; install another version") from error
        if left < 0:
            raise PackageTooLarge(
                f"{name} is larger than {max_bytes / 2**20:.0f} MB when unpacked (packages.max_package_mb); "
                "use a smaller package, or ask for a higher limit"
            )


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: Path, left: int) -> int:
    with archive.open(entry) as source, file.open("xb") as sink:
        while left >= 0 and (chunk := source.read(_CHUNK_BYTES)):
            left -= len(chunk)
            sink.write(chunk)
    return left


def _place(entry: zipfile.ZipInfo, wheel: str) -> PurePosixPath | None:
    """The path of a file below the target; None: omit it. Raises PackageInvalid for a bad name, type or compression."""
    if entry.compress_type not in _BOUNDED:
        raise PackageInvalid(
            f"{wheel} holds {entry.filename[:100]!r}, which is compressed by another method than deflate; install "
            "another version"
        )
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise PackageInvalid(
            f"{wheel} holds {entry.filename[:100]!r}, which is not a regular file; install another version"
        )
    parts = entry.filename.split("/")
    harmless = all(part not in ("", ".", "..") and len(part.encode()) <= _MAX_PART_BYTES for part in parts)
    if not harmless or len(entry.filename) > _MAX_PATH_CHARS or any(c in entry.filename for c in "\\\0:"):
        raise PackageInvalid(f"{wheel} holds a file named {entry.filename[:100]!r}; install another version")
    if parts[0].endswith(".data") and len(parts) > 2:
        if parts[1] not in _CODE:
            return None
        parts = parts[2:]
    if parts[0].lower() == STAMP:
        raise PackageInvalid(f"{wheel} holds {STAMP!r}, which the package cache uses; install another version")
    return PurePosixPath(*parts)
