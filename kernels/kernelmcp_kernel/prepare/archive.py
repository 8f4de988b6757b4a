"""The archive of `kernelmcp setup --export`, for machines without a network: wheels, and the list of them.

A zip file: setup.json with {requirements, wheels}, and each wheel as wheels/<sha256>/<file>. Its contents are checked:
each wheel by its sha256, and the files in the wheels as if they came from an index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from kernelmcp_kernel.packages.package_errors import PackageError, PackageInvalid
from kernelmcp_kernel.packages.requirements import parse_all
from kernelmcp_kernel.packages.store import SOURCES, Store, Wheel, sha256_of, wheel_identity
from kernelmcp_kernel.packages.unpack import DAMAGED

_LIST = "setup.json"
_MAX_LIST_BYTES = 4 << 20
_MAX_WHEELS = 2000


def write_archive(file: Path, store: Store, requirements: tuple[str, ...], wheels: list[Wheel]) -> None:
    """Write the archive. Raises PackageError, OSError."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.writing")
    try:
        with zipfile.ZipFile(draft, "w") as archive:
            listed = {"requirements": requirements, "wheels": [asdict(wheel) for wheel in wheels]}
            archive.writestr(_LIST, json.dumps(listed))
            for wheel in wheels:
                if not store.has_wheel(wheel):
                    raise PackageError(f"{wheel.file} is not in the cache any more; run setup again")
                archive.write(store.wheel_file(wheel), f"wheels/{wheel.sha256}/{wheel.file}")
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def read_archive(file: Path, store: Store, max_wheel_bytes: int) -> tuple[list[str], list[Wheel]]:
    """Read the requirements, and add the wheels to the cache. Raises PackageError, OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            with _open(archive, _LIST, _MAX_LIST_BYTES) as content:
                listed: Any = json.loads(content.read())
            requirements = [str(each) for text in listed["requirements"] for each in parse_all([text])]
            if not requirements or len(listed["wheels"]) > _MAX_WHEELS:
                raise ValueError(f"it has no requirements, or more than {_MAX_WHEELS:,} wheels")
            return requirements, [_add(archive, wheel, store, max_wheel_bytes) for wheel in listed["wheels"]]
    except (*DAMAGED, KeyError, TypeError) as error:
        raise PackageInvalid(f"{file} is not an archive of kernelmcp setup --export, or is damaged: {error}") from error


def _add(archive: zipfile.ZipFile, listed: dict[str, str], store: Store, max_bytes: int) -> Wheel:
    """From the list, only the sha256 and the source are trusted; name and version are the file's, as elsewhere."""
    sha256, name, source = (str(listed[key]) for key in ("sha256", "file", "source"))
    if source not in SOURCES:
        raise ValueError(f"{source!r} is not a source of packages")
    wheel = Wheel(*wheel_identity(name), sha256, name, source)
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256")
    if store.has_wheel(wheel):
        return wheel
    with store.staging() as staging:
        place = staging / name
        with _open(archive, f"wheels/{sha256}/{name}", max_bytes) as content, place.open("wb") as copy:
            shutil.copyfileobj(content, copy)
        if sha256_of(place) != sha256:
            raise ValueError(f"{name} is another file than the list says")
        return store.add_wheel(place, source)


def _open(archive: zipfile.ZipFile, name: str, max_bytes: int) -> IO[bytes]:
    """Open a member, which must be uncompressed, as `write_archive` writes it: wheels are already compressed."""
    found = archive.getinfo(name)
    if found.compress_type != zipfile.ZIP_STORED or found.file_size != found.compress_size:
        raise ValueError(f"{name} is compressed")
    if found.file_size > max_bytes:
        raise ValueError(f"{name} is larger than {max_bytes:,} bytes")
    return archive.open(found)
