"""Which boot image a guest starts from. The image itself is made and read by host/image.mjs, which checks it.

The installed image is used as long as it was built from the sources that are installed; else one in the user's data
directory. An image that a guest refuses (stale, damaged) is replaced: in the installation where that may be
written, else in the data directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.runtime.identity import build_id
from kernelmcp_kernel.runtime.places import PACKAGE, RUNTIME
from kernelmcp_kernel.settings import data_home, settings


@dataclass(frozen=True)
class Preinstalled:
    """A package that every guest has: what it is, where it lies, and where a guest sees it."""

    name: str
    version: str
    folder: str
    point: str

    def mount(self) -> dict[str, str]:
        return {"folder": self.folder, "point": self.point}


@dataclass(frozen=True)
class BootImage:
    """An image file, and the id that it must carry; and the packages that every guest has."""

    path: Path
    build_id: str
    packages: tuple[Preinstalled, ...] = ()


def find_image() -> BootImage:
    """The image to start from. It may turn out to be stale, damaged or missing: then `rebuild_image`."""
    if settings().packages.preinstalled and (baked := find_baked()):
        return baked
    wanted = build_id(PACKAGE)
    own = _own_image(wanted)
    return BootImage(own if own.exists() else RUNTIME / "boot.img", wanted)


def rebuild_image() -> BootImage:
    """Build a new image (about 5 s). Raises BuildError, OSError."""
    from kernelmcp_kernel.languages.python.build import build_image  # heavy, and seldom needed

    if settings().packages.preinstalled:
        for file in baked_files():  # the one with packages is made at the next start
            file.unlink(missing_ok=True)
    wanted = build_id(PACKAGE)
    installed, own = RUNTIME / "boot.img", _own_image(wanted)
    if os.access(RUNTIME, os.W_OK):
        own.unlink(missing_ok=True)  # it would be preferred
        build_image(PACKAGE, installed)
        return BootImage(installed, wanted)
    build_image(PACKAGE, own)
    return BootImage(own, wanted)


def baked_files() -> tuple[Path, Path]:
    """The image with the preinstalled packages of this configuration, and the list of what is in it."""
    packages = settings().packages
    facts = [sorted(packages.preinstalled), packages.index_url, packages.pyodide_url, packages.wheel_folders]
    key = hashlib.sha256(json.dumps([build_id(PACKAGE), facts]).encode()).hexdigest()[:32]
    folder = data_home() / "images"
    return folder / f"{key}.img", folder / f"{key}.json"


def find_baked() -> BootImage | None:
    """The image with the preinstalled packages; None when it, or one of them, is not there."""
    image, listing = baked_files()
    try:
        listed = json.loads(listing.read_text("utf-8"))
        packages = tuple(Preinstalled(**package) for package in listed["packages"])
        if image.is_file() and all(Path(package.folder).is_dir() for package in packages):
            return BootImage(image, str(listed["build_id"]), packages)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _own_image(wanted: str) -> Path:
    return data_home() / "images" / f"{wanted[:32]}.img"
