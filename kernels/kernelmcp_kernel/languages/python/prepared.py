"""The prepared packages: unpacked, with their bytecode, and with a boot image in which some of them are imported.

Two lists determine them: packages.preinstalled in the settings, which every session has from its start, and the
packages downloaded by `kernelmcp setup`, which an `import` provides without pip. prepare/ creates them, this module
finds them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmcp_kernel.runtime.build_identity import BEING_REPLACED, build_id
from kernelmcp_kernel.runtime.places import PACKAGE
from kernelmcp_kernel.settings import data_home, settings

# After a failure, no kernel retries before this time, seconds.
RETRY_SECONDS = 300.0
# Modules to import in the image of a setup, if it has them: all others import fast, or are large and rarely needed.
IN_IMAGE = ("numpy", "pandas", "matplotlib.pyplot")

_ONE = r"[\w.]+(?:[ \t]+as[ \t]+\w+)?"
_IMPORT = re.compile(rf"^[ \t]*(?:import|from)[ \t]+({_ONE}(?:[ \t]*,[ \t]*{_ONE})*)", re.MULTILINE)
_PLOT_MAGIC = re.compile(r"^[ \t]*%(?:matplotlib|pylab)\b", re.MULTILINE)
_MAX_CODE_CHARS = 100_000
# The fields of Wheel in the store.
_OF_WHEEL = ("name", "version", "sha256", "file", "source")


@dataclass(frozen=True)
class PreparedPackage:
    """A prepared package: its identity, its location, and its mount point in a guest."""

    name: str
    version: str
    sha256: str
    file: str
    source: str
    folder: str
    point: str
    bytecode: str | None
    modules: tuple[str, ...]
    """Modules that can be imported."""
    needs: tuple[str, ...]
    """Names of the other prepared packages that it needs."""

    def mount(self) -> dict[str, str]:
        shown = {"folder": self.folder, "point": self.point}
        return shown | {"bytecode": self.bytecode} if self.bytecode else shown


@dataclass(frozen=True)
class Prepared:
    """An image file, the id that it must carry, the packages imported in it, and all prepared packages."""

    image: Path
    build_id: str
    in_image: tuple[str, ...]
    """Names of packages."""
    packages: tuple[PreparedPackage, ...]

    def with_needs(self, names: Iterable[str]) -> list[PreparedPackage]:
        """These packages and their dependencies."""
        by_name = {package.name: package for package in self.packages}
        found: dict[str, PreparedPackage] = {}
        asked = list(names)
        while asked:
            name = asked.pop()
            if name in by_name and name not in found:
                found[name] = by_name[name]
                asked += by_name[name].needs
        return sorted(found.values(), key=lambda package: package.name)

    def package_of(self, module: str) -> str | None:
        return next((package.name for package in self.packages if module in package.modules), None)

    def is_wanted_by(self, code: str) -> bool:
        """Return whether a cell imports something that is already imported in the image."""
        names = {self.package_of(module) for module in imported(code)} - {None}
        needed = {package.name for package in self.with_needs(name for name in names if name)}
        return not needed.isdisjoint(self.in_image)


@dataclass(frozen=True)
class Setup:
    """The requirements given to `kernelmcp setup`, and the wheels that it downloaded (as the store's Wheel)."""

    requirements: tuple[str, ...] = ()
    wheels: tuple[dict[str, str], ...] = ()


def imported(code: str) -> set[str]:
    """Top-level names of the modules that a text imports, directly or by a magic. The text may be invalid Python."""
    code = code[:_MAX_CODE_CHARS]
    found = _IMPORT.findall(code) + ["matplotlib"] * bool(_PLOT_MAGIC.search(code))
    return {re.split(r"[.\s]", name.strip(), maxsplit=1)[0] for names in found for name in names.split(",")}


def setup_file() -> Path:
    return data_home() / "setup.json"


def read_setup() -> Setup:
    """The saved setup. Empty if there is none, or if it cannot be read."""
    try:
        found: dict[str, Any] = json.loads(setup_file().read_text("utf-8"))
        wheels = tuple({key: str(wheel[key]) for key in _OF_WHEEL} for wheel in found["wheels"])
        return Setup(tuple(map(str, found["requirements"])), wheels)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Setup()


def is_asked_for() -> bool:
    """Return whether anything should be prepared and is permitted."""
    packages = settings().packages
    return packages.enabled and (bool(packages.preinstalled) or setup_file().is_file()) and _is_permitted(read_setup())


def permitted(setup: Setup) -> Setup:
    """What of a setup the settings still permit."""
    requirements = tuple(each for each in setup.requirements if _are_allowed([each]) and not _is_denied([each]))
    return Setup(requirements, tuple(each for each in setup.wheels if not _is_denied([each["name"]])))


def _is_permitted(setup: Setup) -> bool:
    """A setup from before the settings became stricter is not used."""
    return not _is_denied(wheel["name"] for wheel in setup.wheels) and _are_allowed(setup.requirements)


def _is_denied(names: Iterable[str]) -> bool:
    return not set(map(plain_name, settings().packages.denied)).isdisjoint(map(plain_name, names))


def _are_allowed(requirements: Iterable[str]) -> bool:
    allowed = settings().packages.allowed
    return allowed is None or set(map(plain_name, requirements)) <= set(map(plain_name, allowed))


def plain_name(requirement: str) -> str:
    """The name at the start of a requirement, normalized (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def is_first_offer() -> bool:
    """Return whether to mention `kernelmcp setup`: once per home directory, and not if it was used."""
    if is_asked_for():
        return False
    try:
        with (data_home() / "packages" / "setup-offered").open("x"):
            return True
    except OSError:
        return False


def files(setup: Setup | None = None) -> tuple[Path, Path]:
    """The image for this configuration, and the list of the prepared packages. `setup`: another than the saved one."""
    packages, wheels = settings().packages, (setup or read_setup()).wheels
    facts = [sorted(packages.preinstalled), packages.index_url, packages.pyodide_url, packages.wheel_folders]
    key = hashlib.sha256(json.dumps([build_id(PACKAGE), facts if packages.preinstalled else [], wheels]).encode())
    folder = data_home() / "images"
    return folder / f"{key.hexdigest()[:32]}.img", folder / f"{key.hexdigest()[:32]}.json"


def find_prepared() -> Prepared | None:
    """The prepared packages; those of packages.preinstalled alone while what was set up is not there. None if nothing
    should be prepared, if the image or a package is missing (as yet), if one is denied now, or if the installation is
    just being replaced."""
    if not is_asked_for():
        return None
    try:
        return _read(files()[1]) or (_read(files(Setup())[1]) if settings().packages.preinstalled else None)
    except BEING_REPLACED:
        return None


def is_to_make(setup: Setup | None = None) -> bool:
    """Return whether the image of `files` is wanted and is not there, or not all of its packages are."""
    return is_asked_for() and _read(files(setup)[1]) is None


def lock_file() -> Path:
    """Locked by the process that prepares packages. Not empty after a failure."""
    return data_home() / "images" / "prepare.lock"


def has_failed(lock: Path) -> bool:
    """Return whether a process that had this lock has just failed."""
    try:
        found = lock.stat()
    except OSError:
        return False
    return bool(found.st_size) and time.time() - found.st_mtime < RETRY_SECONDS


def find_with_id(identity: str) -> Prepared | None:
    """The packages of the image with this id, with which a state was saved, though others may be prepared now. None if
    the image or a package is missing, or if the settings do not permit one of them."""
    if (prepared := find_prepared()) and prepared.build_id == identity:
        return prepared
    packages, stem = settings().packages, identity.rpartition("+")[2]
    if not packages.enabled or packages.allowed is not None or not re.fullmatch(r"[0-9a-f]{32}", stem):
        return None  # for which requirements an image was made nobody knows any more
    listing = data_home() / "images" / f"{stem}.json"
    found = _read(listing)
    if found is None or found.build_id != identity:
        return None
    with suppress(OSError):
        os.utime(listing)  # `prepare` keeps the newest
    return found


def _read(listing: Path) -> Prepared | None:
    image = listing.with_suffix(".img")
    try:
        listed = json.loads(listing.read_text("utf-8"))
        packages = tuple(_package(each) for each in listed["packages"])
        is_there = image.is_file() and all(Path(package.folder).is_dir() for package in packages)
        if is_there and not _is_denied(package.name for package in packages):
            return Prepared(image, str(listed["build_id"]), tuple(listed["in_image"]), packages)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _package(listed: dict[str, Any]) -> PreparedPackage:
    listed["modules"], listed["needs"] = tuple(listed["modules"]), tuple(listed["needs"])
    return PreparedPackage(**listed)
