"""Empty wheels, which represent packages that pip need not, or cannot yet, download.

Packages in the guest: their empty wheels sort before all others of their version, so that pip neither downloads nor
replaces them. All packages of Pyodide's distribution, with their dependencies: theirs sort after all others of their
version.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.distribution import Listed, best_tag
from kernelmcp_kernel.packages.store import Store, is_whole, write_stamp
from kernelmcp_kernel.runtime.places import RUNTIME, packages_root
from kernelmcp_kernel.settings import settings

# Sorts before every real wheel of its version, whose build tags are at most dates.
PRESENT_BUILD = "99999999"
# Sorts after every real wheel of its version: the last of the tags that pip accepts for any Python 3.
LISTED_TAG = "-py30-none-any.whl"
# The folder of the listings, below that of the packages.
LISTINGS = "listed"


def is_one(line: str) -> bool:
    """Return whether a line of pip's output is about an empty wheel."""
    return PRESENT_BUILD in line or LISTED_TAG in line


@dataclass(frozen=True)
class Present:
    """A package in the guest. `extras` are its requirements that only apply to an extra."""

    name: str
    version: str
    extras: tuple[str, ...] = ()


def guests_own() -> dict[str, Present]:
    """The packages in every guest: IPython and its dependencies."""
    return {
        canonicalize_name(name := each.metadata["Name"]): Present(name, each.version, extras_of(each.requires or []))
        for each in distributions(path=[str(RUNTIME / "site")])
    }


def extras_of(requires: list[str]) -> tuple[str, ...]:
    """The requirements of a package that only apply to an extra."""
    return tuple(" ".join(text.split()) for text in requires if "extra" in text.partition(";")[2])


def listing(packages: list[Listed]) -> Path:
    """A folder with the metadata of the whole distribution, as empty wheels: created once per distribution, and again
    if it is damaged. Raises PackageError."""
    identity = hashlib.sha256(repr(packages).encode()).hexdigest()[:16]
    folder = packages_root() / LISTINGS / identity
    if is_whole(folder):
        return folder
    store = Store(packages_root())
    with store.staging() as staging:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=settings().folder_mode)
        draft = staging / "listing"
        draft.mkdir(mode=0o700)
        for package in packages:
            lines = [f"Requires-Dist: {name}" for name in package.depends]
            _write(draft, package.name, package.version, lines, LISTED_TAG)
        write_stamp(draft)
        store.put(draft, folder, lambda: is_whole(folder))
    return folder


def write_present(package: Present, folder: Path) -> None:
    lines = [f"Requires-Dist: {plain}" for text in package.extras if (plain := _plain_dependency(text))]
    # Uses the tag that pip prefers: otherwise a wheel for the guest would sort before this one.
    _write(folder, package.name, package.version, lines, f"-{PRESENT_BUILD}-{best_tag()}.whl")


def _write(folder: Path, name: str, version: str, lines: list[str], ending: str) -> None:
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}{ending}", "w") as archive:
        metadata = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines])
        archive.writestr(f"{stem}.dist-info/METADATA", f"{metadata}\n")
        tag = "-".join(ending.removesuffix(".whl").split("-")[-3:])
        archive.writestr(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


def _plain_dependency(text: str) -> str | None:
    """Rewrite a line of a package's metadata, which is hostile. None for an address or an invalid line."""
    try:
        found = Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None
    return None if found.url else " ".join(str(found).split())
