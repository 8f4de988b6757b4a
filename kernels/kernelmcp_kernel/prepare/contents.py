"""The modules and requirements of an unpacked package. Its files are hostile: names are read, nothing is run."""

from __future__ import annotations

import re
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.distribution import guest_markers
from kernelmcp_kernel.packages.store import metadata_file

_MAX_NAMES = 500
_MODULE = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(\.py|(\.cpython-[a-z0-9-]+|\.abi3)?\.so)?")


def modules_of(folder: Path) -> list[str]:
    """The top-level modules that it provides, except private ones."""
    found = [match[1] for entry in folder.iterdir() if (match := _MODULE.fullmatch(entry.name)) and _is_module(entry)]
    return sorted(set(found))[:_MAX_NAMES]


def _is_module(entry: Path) -> bool:
    return entry.is_file() or next(entry.glob("*.py"), None) is not None or next(entry.glob("*/*.py"), None) is not None


def needs_of(folder: Path) -> list[str]:
    """The names of its dependencies in a guest, without those of its extras."""
    file = metadata_file(folder)
    found: list[str] = []
    for text in (Distribution.at(file.parent).requires or []) if file else []:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({**guest_markers(), "extra": ""}):
                found.append(canonicalize_name(requirement.name))
        except (InvalidRequirement, RecursionError, ValueError):
            continue
    return found[:_MAX_NAMES]
