"""The sources of one resolution: the rules for pip, the builds of the sources that it chooses, and the dependencies
that it may leave out.

`source_candidates` reads the rules at the other end.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from kernelmcp_kernel.packages.from_pip import read, table
from kernelmcp_kernel.packages.package_errors import PackageNotSupported, no_wheel
from kernelmcp_kernel.packages.sources.build_process import NotBuilt
from kernelmcp_kernel.packages.sources.source_builder import Builder, Say
from kernelmcp_kernel.packages.standins.known_packages import DISPENSABLE
from kernelmcp_kernel.packages.standins.wheels import OF_INDEX
from kernelmcp_kernel.packages.store import sha256_of

# Builds of one installation: each takes a few seconds.
MAX_BUILDS = 5
# Nobody reads more.
_MAX_LEFT_OUT = 20
# Same as in `source_candidates`.
_FOLDER, _FACTS, _RULES, _LEFT_OUT = "sources", "facts.json", "rules.json", "left-out.json"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ANY = "*"


class Absent(Exception):
    """A needed package of the distribution whose file is unavailable. The text is its name."""


class Offers:
    """The builds for one request. `builder`: None if nothing may be built. `never`: names for which only files are
    used, and no source or wheel from an index."""

    def __init__(self, builder: Builder | None, never: Iterable[str]) -> None:
        self._builder = builder
        self._files_only = list(never)
        self._never = self._files_only if builder else [_ANY]
        self._built: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._builds = 0
        self.absent: dict[str, str] = {}
        """Packages of the distribution whose files are unavailable, with their versions."""
        self.distribution: dict[str, list[str]] = {}
        """Packages of the distribution whose files are at hand: sha256, version, dependencies there."""
        self._left_out: list[tuple[str, str, str]] = []

    @property
    def possible(self) -> bool:
        return self._builder is not None

    async def begin(self) -> None:
        """Load the results of earlier builds."""
        if self._builder:
            wheels, self._refused = await asyncio.to_thread(self._builder.known)
            self._built = {source: str(wheel) for source, wheel in wheels.items()}

    def write(self, run: Path) -> str:
        """Write the rules for one run of pip into its folder; return the file's path."""
        file = run / _RULES
        rules = {
            "folder": str(run / _FOLDER),
            "built": self._built,
            "refused": self._refused,
            "absent": self.absent,
            "never": self._never,
            "files_only": self._files_only,
            "behind": list(OF_INDEX),
            "dispensable": {name: list(needs) for name, needs in DISPENSABLE.items()},
            "distribution": self.distribution,
        }
        file.write_text(json.dumps(rules), "utf-8")
        return str(file)

    def read(self, run: Path) -> None:
        """Read the dependencies that a run of pip left out, from its folder."""
        self._left_out = _triples(run / _LEFT_OUT)

    def left_out(self, there: Container[str]) -> list[str]:
        """Notes on what was left out, for the packages that are present in the end (names)."""
        return [
            _left_out(how, name, need)
            for how, name, need in self._left_out
            if name in there and (how == "another" or need not in there) and self._is_known(how, name, need)
        ]

    def _is_known(self, how: str, name: str, need: str) -> bool:
        """Check an entry: it was written by a process that reads hostile text."""
        listed = self.distribution.get(name)
        if how == "another":
            return listed is not None and need in listed[2:]
        return need in DISPENSABLE.get(name, {}) or listed is not None

    async def build(self, chosen: Sequence[Path], run: Path, asked: set[str], say: Say) -> None:
        """Build the sources that a run of pip has chosen: the next run finds wheels, or the reasons why there are none.
        Raises PackageError, Absent, OSError."""
        facts = table(await asyncio.to_thread(read, run / _FOLDER / _FACTS))
        for source in sorted(chosen, key=lambda source: name_of(source) not in asked):  # their failure is final
            self._builds += 1
            if self._builder is None or self._builds > MAX_BUILDS:
                raise PackageNotSupported(
                    f"{', '.join(sorted(asked))}: more than {MAX_BUILDS} packages that it needs are to be built from "
                    "their source; install some of them first, in parts"
                )
            sha256 = await asyncio.to_thread(sha256_of, source)
            try:
                self._built[sha256] = str(await self._builder.build(source, facts.get(source.name), say))
            except NotBuilt as error:
                name = name_of(source)
                self._refused[sha256] = self._refused[name] = str(error)  # another version would fail alike
                if name in self.absent:
                    raise Absent(name) from error
                if name in asked:
                    raise no_wheel(name, str(error)) from error


def _left_out(how: str, name: str, need: str) -> str:
    if how == "another":
        return f"{name} goes with {need} in the version that Pyodide's distribution has, not in one that it asks for"
    why = DISPENSABLE.get(name, {}).get(need, "Pyodide's distribution has it without, and no source has it")
    return f"{name} is without {need} here: {why}"


def _triples(file: Path) -> list[tuple[str, str, str]]:
    """Entries (kind, package, dependency), written by pip's process."""
    try:
        triples = [(how, who, what) for how, who, what in read(file) or ()][:_MAX_LEFT_OUT]
        return [each for each in triples if all(isinstance(text, str) and _NAME.fullmatch(text) for text in each)]
    except (ValueError, TypeError):
        return []


def is_source(file: Path) -> bool:
    return file.name.endswith(".tar.gz")


def name_of(source: Path) -> str:
    """The name from the file name. A name that `source_candidates` would not write matches no package."""
    try:
        return canonicalize_name(parse_sdist_filename(source.name)[0])
    except InvalidSdistFilename:
        return ""
