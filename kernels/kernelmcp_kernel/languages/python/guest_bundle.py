"""Finds the bundle of a boot image: the JavaScript of its guests as one script, and V8's code of it and of CPython.

host/build_bundle.mjs makes them, after the image, and host/start_guest.cjs starts a guest with them. Without a bundle a
guest starts from the modules in host/, which takes 100 ms more.
"""

from __future__ import annotations

from pathlib import Path


def bundle_of(image: Path) -> Path:
    """The place of the bundle."""
    return image.with_suffix(".js")


def code_of(bundle: Path) -> Path:
    """The place of its code. A guest that finds no valid code there starts from the modules."""
    return bundle.with_suffix(".code")


def native_of(bundle: Path) -> Path:
    """The place of the machine code of CPython's functions. A guest that finds none for its processor compiles them."""
    return bundle.with_suffix(".native")


def find_bundle(image: Path, build_id: str) -> Path | None:
    """The bundle, if it was made from the sources with this id, which is its first line."""
    bundle, line = bundle_of(image), f"// {build_id}\n".encode()
    try:
        with bundle.open("rb") as file:
            return bundle if file.read(len(line)) == line else None
    except OSError:
        return None
