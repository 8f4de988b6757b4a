"""Unpacked packages, and what an installation did."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from kernelmcp_kernel.packages.empty_wheels import Present
from kernelmcp_kernel.packages.store import Wheel, metadata_file

# Of a package, and more than any has. Each is parsed at each further installation.
_MAX_REQUIRES = 2000
# The server takes no longer ones.
_MAX_NOTE_CHARS = 300
_MAX_NOTES = 50
# Where packages appear in the guest, each in a folder of its own.
_MOUNT_POINT = "/lib/packages"


@dataclass(frozen=True)
class Package:
    """A package that is unpacked: where it lies on the host and where a guest sees it."""

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
    def note(self) -> str:
        """What is to be said of it, if anything is."""
        what = {"built": "was built from its source, in pure Python", "stand-in": "stands in for the compiled package"}
        return f"{self.title} {what[self.wheel.source]}" if self.wheel.source in what else ""

    def requires(self) -> list[str]:
        """Lines of its metadata, a stranger's."""
        file = metadata_file(self.folder)
        return list(Distribution.at(file.parent).requires or [])[:_MAX_REQUIRES] if file else []

    def mount(self) -> dict[str, str]:
        """What the guest's host needs to show it."""
        shown = {"folder": str(self.folder), "point": self.point}
        return shown | {"bytecode": str(self.bytecode)} if self.bytecode else shown


def _line(text: str) -> str:
    """As one line that can be printed."""
    return "".join(each if each.isprintable() else " " for each in text)[:_MAX_NOTE_CHARS]


@dataclass(frozen=True)
class Outcome:
    """What an install did: the packages that are new, and what had been asked for and was there."""

    installed: list[Package]
    already_present: list[Present]
    notes: tuple[str, ...] = ()
    """What there is to know besides, for who reads."""
    requirements: tuple[str, ...] = ()
    """What was asked for, by the names of packages."""

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
