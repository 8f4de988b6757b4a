"""The files that preparing packages would download, for confirmation. Also detects near misses of names."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from kernelmcp_kernel.languages.python import companions, prepared
from kernelmcp_kernel.packages import distribution
from kernelmcp_kernel.packages.installer import Installer, name_packages
from kernelmcp_kernel.packages.package_errors import PackageError, for_operator
from kernelmcp_kernel.packages.requirements import parse_pinned
from kernelmcp_kernel.packages.resolver import Planned
from kernelmcp_kernel.packages.standins import known_packages
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
    """Empty: the package is present."""
    meant: str | None = None
    """A known package with almost the same name."""
    error: str | None = None
    """The reason why it is unavailable."""


def plans(requirements: Sequence[str], chosen: Collection[str]) -> Iterator[Plan]:
    """One plan for each requirement that is neither in Pyodide's distribution nor `chosen` (names that need no
    confirmation)."""
    installer = Installer(settings().packages, Store(packages_root(), settings().packages.max_cache_mb << 20))
    set_up = prepared.permitted(prepared.read_setup())
    asyncio.run(installer.take([Wheel(**wheel) for wheel in set_up.wheels]))
    listed = {each.name for each in distribution.listed(settings().packages)}
    # Names that only Pyodide uses are listed as well, and anybody may take them on an index.
    unquestioned = {*chosen, *distribution.importable(settings().packages)}
    known = unquestioned | listed | known_packages.packages() | set(companions.every(listed))
    for text in requirements:
        near: str | None = None
        try:
            parsed = [requirement for requirement, _ in parse_pinned([text])]
            name_packages(parsed, settings().packages)
            names = [canonicalize_name(requirement.name) for requirement in parsed]
            if unquestioned.issuperset(names) and not any(requirement.extras for requirement in parsed):
                continue
            near = next((each for name in names for each in _nearly(name, known)), None)
            yield Plan(text, asyncio.run(installer.plan([text])), near)
        except PackageError as error:
            yield Plan(text, [], near, for_operator(error))


def _nearly(name: str, known: Collection[str]) -> list[str]:
    return [] if name in known else difflib.get_close_matches(name, sorted(known), 1, _NEARLY)
