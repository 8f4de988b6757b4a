"""Unpacked packages, and the result of an installation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.languages.python import companions
from kernelmcp_kernel.packages.empty_wheels import Present, extras_of
from kernelmcp_kernel.packages.requirements import needed, pin_key
from kernelmcp_kernel.packages.store import MAX_METADATA_BYTES, Wheel, metadata_file

# Requirements of a package, more than any real one has. Each is parsed at every later installation.
_MAX_REQUIRES = 2000
# The server accepts no longer ones.
_MAX_NOTE_CHARS = 300
_MAX_NOTES = 50
# The parent folder of packages in the guest, each in its own folder.
_MOUNT_POINT = "/lib/packages"


@dataclass(frozen=True)
class Package:
    """An unpacked package: its location on the host, and its mount point in the guest."""

    wheel: Wheel
    folder: Path
    bytecode: Path | None = None

    @property
    def point(self) -> str:
        return f"{_MOUNT_POINT}/{self.wheel.name}-{self.wheel.version}"

    @property
    def title(self) -> str:
        return f"{self.wheel.name} {self.wheel.version}"

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.wheel.name, self.wheel.version, self.wheel.sha256

    @property
    def note(self) -> str:
        """The note about it; may be empty."""
        what = {"built": "was built from its source, in pure Python", "stand-in": "stands in for the compiled package"}
        return f"{self.title} {what[self.wheel.source]}" if self.wheel.source in what else ""

    def requires(self) -> list[str]:
        """Lines of its METADATA, which is hostile. importlib.metadata would also read other files, of any size."""
        if (file := metadata_file(self.folder)) is None:
            return []
        with file.open("rb") as stream:
            text = stream.read(MAX_METADATA_BYTES).decode(errors="replace")
        return HeaderParser().parsestr(text).get_all("Requires-Dist", [])[:_MAX_REQUIRES]

    def as_present(self) -> Present:
        """Uses the name and version of the file name: those in the metadata were not checked."""
        return Present(self.wheel.name, self.wheel.version, extras_of(self.requires()))

    def mount(self) -> dict[str, str]:
        """The data with which the guest's host mounts it."""
        shown = {"folder": str(self.folder), "point": self.point}
        return shown | {"bytecode": str(self.bytecode)} if self.bytecode else shown


def came_with(asked: Iterable[Requirement], packages: Iterable[Package]) -> dict[str, list[set[str]]]:
    """The requests that brought the packages that were not asked for, by the keys of their pins: each name of those
    asked for that needs one, or all of them if that is not known of any, as with extras."""
    every: set[str] = {canonicalize_name(requirement.name) for requirement in asked}
    named: dict[str, Package] = {canonicalize_name(package.wheel.name): package for package in packages}
    needs = {name: _needs(name, package) for name, package in named.items()} if len(every) > 1 else {}
    brought = {name: _closure(name, needs) for name in every}
    return {
        pin_key(Requirement(f"{name}=={package.wheel.version}")): found or [every]
        for name, package in named.items()
        if name not in every
        for found in [[{each} for each in every if name in brought[each]]]
    }


def _needs(name: str, package: Package) -> set[str]:
    return {*companions.small([name]), *(canonicalize_name(each.name) for each in needed(package.requires()))}


def _closure(name: str, needs: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [name]
    while left:
        new = needs.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _line(text: str) -> str:
    """The text as one printable line."""
    return "".join(each if each.isprintable() else " " for each in text)[:_MAX_NOTE_CHARS]


@dataclass(frozen=True)
class Outcome:
    """The result of an install: the new packages, and the requested ones that were already present."""

    installed: list[Package]
    already_present: list[Present]
    notes: tuple[str, ...] = ()
    """Other information, for human readers."""
    requirements: tuple[str, ...] = ()
    """The requirements, by package name."""

    def as_json(self) -> dict[str, Any]:
        """The value of application/vnd.kernelmcp.packages+json."""
        new = [{"name": p.wheel.name, "version": p.wheel.version, "source": p.wheel.source} for p in self.installed]
        return {
            "installed": new,
            "already_present": [{"name": package.name, "version": package.version} for package in self.already_present],
            "notes": [_line(note) for note in self.notes[:_MAX_NOTES]],
        }

    def __str__(self) -> str:
        lines: list[str] = []
        if self.already_present:
            names = ", ".join(f"{package.name}-{package.version}" for package in self.already_present)
            lines.append(f"Already installed: {names}")
        if self.installed:
            lines.append(
                "Successfully installed " + " ".join(f"{p.wheel.name}-{p.wheel.version}" for p in self.installed)
            )
        return "\n".join([*lines, *self.notes])
