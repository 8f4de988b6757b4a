"""Which boot image a guest starts from. The image itself is made and read by host/image.mjs, which checks it.

The installed image is used as long as it was built from the sources that are installed; else one in the user's data
directory. An image that a guest refuses (stale, damaged) is replaced: in the installation where that may be
written, else in the data directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.identity import build_id
from kernelmcp_kernel.runtime import PACKAGE, RUNTIME
from kernelmcp_kernel.settings import data_home


@dataclass(frozen=True)
class BootImage:
    """An image file, and the id that it must carry."""

    path: Path
    build_id: str


def find_image() -> BootImage:
    """The image to start from. It may turn out to be stale, damaged or missing: then `rebuild_image`."""
    wanted = build_id(PACKAGE)
    own = _own_image(wanted)
    return BootImage(own if own.exists() else RUNTIME / "boot.img", wanted)


def rebuild_image() -> BootImage:
    """Build a new image (about 5 s). Raises BuildError, OSError."""
    from kernelmcp_kernel.build import build_image  # heavy, and seldom needed

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
