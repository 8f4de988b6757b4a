"""Which boot image a guest starts from. The image itself is made and read by host/image.mjs, which checks it.

The installed image is used as long as it was built from the sources that are installed; else one in the user's data
directory. An image that a guest refuses (stale, damaged) is replaced: in the installation where that may be
written, else in the data directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.languages.python.prepared import Prepared, PreparedPackage, files
from kernelmcp_kernel.runtime.identity import build_id
from kernelmcp_kernel.runtime.places import PACKAGE, RUNTIME
from kernelmcp_kernel.settings import data_home


@dataclass(frozen=True)
class BootImage:
    """An image file, and the id that it must carry; and the packages that its guest has."""

    path: Path
    build_id: str
    packages: tuple[PreparedPackage, ...] = ()


def plain_image() -> BootImage:
    """The image without packages. It may turn out to be stale, damaged or missing: then `rebuild_image`."""
    wanted = build_id(PACKAGE)
    own = _own_image(wanted)
    return BootImage(own if own.exists() else RUNTIME / "boot.img", wanted)


def prepared_image(prepared: Prepared) -> BootImage:
    return BootImage(prepared.image, prepared.build_id, tuple(prepared.with_needs(prepared.in_image)))


def rebuild_image(bad: BootImage) -> BootImage:
    """An image in place of one that a guest has refused (about 5 s). Raises BuildError, OSError."""
    from kernelmcp_kernel.languages.python.build import build_image  # heavy, and seldom needed

    if bad.packages:
        for file in files():  # it is prepared again at the next start
            file.unlink(missing_ok=True)
        return plain_image()
    wanted = build_id(PACKAGE)
    installed, own = RUNTIME / "boot.img", _own_image(wanted)
    if os.access(RUNTIME, os.W_OK):
        own.unlink(missing_ok=True)  # it would be preferred
        build_image(PACKAGE, installed)
        return BootImage(installed, wanted)
    build_image(PACKAGE, own)
    return BootImage(own, wanted)


def _own_image(wanted: str) -> Path:
    return data_home() / "images" / f"{wanted[:32]}.img"
