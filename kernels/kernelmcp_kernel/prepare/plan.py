"""The files that preparing packages would download, for confirmation. Also detects near misses of names."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.languages.python import companions, prepared
from kernelmcp_kernel.packages import distribution
from kernelmcp_kernel.packages.errors import PackageError
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.packages.resolver import Planned
from kernelmcp_kernel.packages.standins import module_names
from kernelmcp_kernel.packages.store import Store, Wheel
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.settings import settings

# Similarity of two names, from 0 to 1: `pandsa` and `pandas` have 0.83.
_NEARLY = 0.8


@dataclass(frozen=True)
class Plan:
    """The plan for one requirement."""

    asked: str
    files: list[Planned]
    """Empty: the package is present, or in the cache."""
    meant: str | None = None
    """A known package with almost the same name."""
    error: str | None = None
    """The reason why it is unavailable."""


def plans(requirements: Sequence[str], chosen: Collection[str]) -> Iterator[Plan]:
    """One plan for each requirement that is neither in Pyodide's distribution nor `chosen` (names that need no
    confirmation)."""
    installer = Installer(settings().packages, Store(packages_root(), settings().packages.max_cache_mb << 20))
    asyncio.run(installer.take([Wheel(**wheel) for wheel in prepared.read_setup().wheels]))
    listed = {each.name for each in distribution.listed(settings().packages)}
    of_modules = set(distribution.packages_by_import(settings().packages))
    known = {*chosen} | listed | module_names.packages() | set(companions.every(listed))
    for text in requirements:
        try:
            name = canonicalize_name(Requirement(text).name)
        except InvalidRequirement as error:
            yield Plan(text, [], error=str(error))
            continue
        if name in listed or name in of_modules or name in chosen:
            continue
        near = [] if name in known else difflib.get_close_matches(name, sorted(known), 1, _NEARLY)
        try:
            yield Plan(text, asyncio.run(installer.plan([text])), *near)
        except PackageError as error:
            yield Plan(text, [], near[0] if near else None, str(error))
