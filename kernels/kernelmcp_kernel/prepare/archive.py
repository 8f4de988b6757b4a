"""The archive of `kernelmcp setup --export`, for machines without a network: wheels, and the list of them.

A zip file: setup.json with {requirements, wheels}, and each wheel as wheels/<sha256>/<file>. What it says is checked:
each wheel by its sha256, and what is in the wheels as if they came from an index.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelmcp_kernel.packages.errors import PackageError, PackageInvalid
from kernelmcp_kernel.packages.store import Store, Wheel

_LIST = "setup.json"
_MAX_LIST_BYTES = 4 << 20


def write_archive(file: Path, store: Store, requirements: tuple[str, ...], wheels: list[Wheel]) -> None:
    """Raises PackageError, OSError."""
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


def read_archive(file: Path, store: Store) -> tuple[list[str], list[Wheel]]:
    """What was asked for, and the wheels, which are in the cache then. Raises PackageError, OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.getinfo(_LIST).file_size > _MAX_LIST_BYTES:
                raise ValueError("its list is too long")
            with archive.open(_LIST) as stream:
                listed: Any = json.loads(stream.read(_MAX_LIST_BYTES))
            wheels = [Wheel(**{key: str(value) for key, value in wheel.items()}) for wheel in listed["wheels"]]
            requirements = [str(requirement) for requirement in listed["requirements"]]
            for wheel in wheels:
                _add(archive, wheel, store)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, KeyError, TypeError) as error:
        raise PackageInvalid(f"{file} is no archive of kernelmcp setup --export, or is damaged: {error}") from error
    return requirements, wheels


def _add(archive: zipfile.ZipFile, wheel: Wheel, store: Store) -> None:
    """Raises KeyError, PackageError, OSError."""
    if store.has_wheel(wheel):
        return
    with store.staging() as staging:
        place = staging / Path(wheel.file).name
        with archive.open(f"wheels/{wheel.sha256}/{wheel.file}") as source, place.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        if store.add_wheel(place, wheel.source).sha256 != wheel.sha256:
            raise PackageInvalid(f"{wheel.file} in the archive is another file than its list says")
