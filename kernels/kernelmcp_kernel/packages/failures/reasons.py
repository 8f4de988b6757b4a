"""Words why pip failed, from the description that `failure_report` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from kernelmcp_kernel.packages.distribution import guest_markers
from kernelmcp_kernel.packages.from_pip import line, read, table, tables, texts
from kernelmcp_kernel.packages.index.answers import Failure
from kernelmcp_kernel.packages.package_errors import (
    ANOTHER_SESSION,
    PackageConflict,
    PackageError,
    PackageHashMismatch,
    PackageInvalid,
    PackageNotFound,
    PackageNotSupported,
    PackageTooLarge,
    PackageUnreachable,
    no_wheel,
    unwritable,
)

_FAILURE = "failure.json"  # same as in `failure_report`
# An absolute path; a URL has no space or quote before its slashes.
_PATH = re.compile(r"(?<![^\s'\"(=])(?:file://)?/[^\s'\":,)]+")
# Maximum lengths of quoted text.
_MAX_CHARS = 1500
_MAX_BYTES = 8 << 20
_MAX_NAMED_CHARS = 200
_MAX_CAUSES = 4
_MAX_VERSIONS = 12

# By the description's kind. The texts of pip's process are arguments of these sentences, never templates.
_SENTENCES: dict[str, tuple[type[PackageError], str]] = {
    "hash": (
        PackageHashMismatch,
        (
            "{what}: what came is not the file that was announced (its sha256 differs), so it was thrown away. Try "
            "again later; if it stays so, the source is damaged or tampered with"
        ),
    ),
    "address": (PackageInvalid, "{what} is needed by its address, which is not taken; install another version"),
    "deep": (
        PackageConflict,
        (
            "{asked}: no compatible versions of its dependencies were found among recent ones. Ask for an older "
            "version, or install it in parts"
        ),
    ),
    "metadata": (PackageInvalid, "{what}: its metadata is not valid ({why}); install another version"),
    "wheel": (PackageInvalid, "{what}: its wheel is invalid ({why}); install another version"),
    "gone": (
        PackageUnreachable,
        "{what} is listed by a package source, but is not there; ask for another version",
    ),
    "status": (
        PackageUnreachable,
        "{what} is listed by a package source, but is refused (HTTP {why}); ask for another version",
    ),
    "silent": (PackageUnreachable, "{what} does not answer. Try again later, or ask for another version"),
    # pip writes only our own files.
    "unreadable": (
        PackageUnreachable,
        (
            "a package source lies in a folder that pip may not read. The server's operator can name the folder in "
            "packages.wheel_folders (docs/packages.md says what pip may read)"
        ),
    ),
    "large": (
        PackageTooLarge,
        "a wheel of it is larger than packages.max_package_mb; use a smaller package, or ask for a higher limit",
    ),
    "python": (
        PackageNotSupported,
        "{what}: there is no version for Python {python}, which this sandbox has ({why})",
    ),
}


def told_in(run: Path, last_line: str) -> dict[str, Any]:
    """The description in the folder of a run of pip; only the last line of its output if there is none. Blocking."""
    return table(read(run / _FAILURE, _MAX_BYTES)) or {"why": last_line}


@dataclass(frozen=True)
class Reasons:
    """The reasons why pip failed for a request."""

    told: Mapping[str, Any]
    """pip's description, which may be anything."""
    asked: Sequence[str]
    """The requirements."""
    failed: Mapping[str, Failure]
    """By name: the indexes that gave no answer."""
    absent: Mapping[str, str]
    """Packages of Pyodide's distribution whose files are unavailable, with their versions."""

    def error(self) -> PackageError:
        """The error for the request."""
        kind, what, why = (self._part(key) for key in ("kind", "what", "why"))
        match kind:
            case "conflict":
                return self._needs_what_is_missing() or self._conflict()
            case "missing":
                what = line(self.told.get("what"))
                error = self._missing(what, self._part("by"), self._versions(what))
                return error if what in self.asked else error.with_text(f"{self._asked}: {error}")
            case "missed":
                return no_wheel(f"{self._asked}: {what} (which it needs)", self._refusal(what))
            case "full":
                return unwritable("is full")
            case "read-only":
                return unwritable(f"cannot be written ({why})")
            case _:
                return self._sentence(kind, what or "a package", why)

    @property
    def _asked(self) -> str:
        return ", ".join(self.asked)

    def _part(self, key: str) -> str:
        return line(self.told.get(key))[:_MAX_NAMED_CHARS]

    def _sentence(self, kind: str, what: str, why: str) -> PackageError:
        if kind in _SENTENCES:
            error, text = _SENTENCES[kind]
            python = guest_markers()["python_version"]
            return error(text.format(asked=self._asked, what=what, why=why, python=python))
        text = _PATH.sub(lambda path: path[0].rpartition("/")[2], line(self.told.get("why")))
        return PackageError(f"pip could not do it: {text or 'it said nothing'}")

    def _refusal(self, name: str) -> str | None:
        """The reason why the source of a package was refused, or None."""
        return line(table(self.told.get("refused")).get(canonicalize_name(name)))[:_MAX_NAMED_CHARS] or None

    def _links(self, requirement: str) -> dict[str, Any]:
        """The files of a project, as pip judged them."""
        return table(table(self.told.get("links")).get(_name_in(requirement)))

    def _versions(self, requirement: str) -> list[str]:
        """The versions of a project with a wheel that runs here in any source, from the oldest."""
        return texts(self._links(requirement).get("versions"))

    def _missing(self, plain: str, by: str = "", versions: Sequence[str] = ()) -> PackageError:
        """The error for a requirement that nothing satisfies. `by`: the name of the package that needs it; `versions`:
        others."""
        name, links = _spelled_in(plain), self._links(plain)
        needed = f" (which {by} needs)" if by else ""
        if silent := self.failed.get(_name_in(plain)):
            return silent.error(f"{plain}{needed}")
        if failure := table(links.get("failure")):
            kind, what, why = (line(failure.get(key))[:_MAX_NAMED_CHARS] for key in ("kind", "what", "why"))
            return self._sentence(kind, what or name, why)
        if versions:
            return _about_versions(plain, needed, versions, self.absent.get(_name_in(plain)))
        if python := line(links.get("python"))[:_MAX_NAMED_CHARS]:
            return self._sentence("python", f"{name}{needed}", python)
        if yanked := texts(links.get("yanked")):
            error = PackageNotFound(
                f"{plain}{needed}: its versions were withdrawn by their makers: {', '.join(yanked[-_MAX_VERSIONS:])}"
            )
            error.instead = _with_versions(plain, f"=={yanked[-1]}")
            return error
        if host := self._part("insecure"):
            return PackageUnreachable(
                f"{plain}{needed}: the package index {host} is not asked, because its address is not https. The "
                "server's operator can name another (packages.index_url in mcp.toml), or trust it (trusted-host in "
                "pip.conf)"
            )
        if links.get("unusable"):
            return no_wheel(f"{name}{needed}", self._refusal(name))
        return PackageNotFound(
            f"{name}{needed}: no source has a package of this name. Check the spelling: names on PyPI may differ from "
            "import names (`pip install scikit-learn`, `import sklearn`)"
        )

    @property
    def _causes(self) -> list[tuple[str, str]]:
        """The causes of a conflict: a package with its version, empty for the request, and what it needs."""
        return [(line(each.get("who")), line(each.get("what"))) for each in tables(self.told.get("causes"))]

    def _conflict(self) -> PackageError:
        """The error for requirements that contradict each other, or what the session has."""
        lines: dict[str, str] = {}
        every = 0
        for who, what in dict.fromkeys(self._causes):
            # For each package, its newest version, which comes first.
            lines.setdefault(
                who.partition(" ")[0] or f" {what}", f"{who} needs {what}" if who else f"{what} is asked for"
            )
            every += 1
        for here in texts(self.told.get("constraints")):
            configured = f"pip's configuration (constraint) allows only {here}"
            lines[f" {here} is here"] = f"this session has {here}" if "==" in here else configured
            every += 1
        causes = list(lines.values())[:_MAX_CAUSES]
        more = f"; and {every - len(causes)} more" if every > len(causes) else ""
        text = f"{self._asked} cannot be installed: {'; '.join(causes)}{more}"
        return PackageConflict(
            f"{text[:_MAX_CHARS]}. Ask for other versions. What is installed in a session stays as it is: for another "
            f"version {ANOTHER_SESSION}"
        )

    def _needs_what_is_missing(self) -> PackageError | None:
        """The error for a conflict, in pip's terms, whose cause is a dependency that is unavailable to the guest."""
        # There may be another version of a package in the guest, but it is never replaced.
        there = {_name_in(here) for here in texts(self.told.get("constraints")) if "==" in here}
        names = {_name_in(name) for name in texts(self.told.get("missing"))} - there
        for who, what in self._causes:  # the newest version's comes first
            # If some source has it, requirements contradict each other.
            if who and _name_in(what) in names and not _admits(what, self._versions(what)):
                error = self._missing(what)
                asked = "" if who.split()[0] in self.asked else f"{self._asked}: "
                return error.with_text(f"{asked}{who} needs {error}")
        # pip's configuration may have a constraint on it, which pip then reports as the reason.
        for what in self.asked:
            if _name_in(what) in names and not self._versions(what):
                error = self._missing(what)
                return error if len(self.asked) == 1 else error.with_text(f"{self._asked}: {error}")
        return None


def _about_versions(plain: str, needed: str, known: Sequence[str], missing: str | None) -> PackageError:
    """The error if there are versions, but all are too old, or none matches the request. `missing`: a version in
    Pyodide's distribution whose file is unavailable."""
    if old := [version for version in known if version != missing and _admits(plain, [version])]:
        old_only = PackageNotSupported(
            f"{_spelled_in(plain)}: it exists, but only in versions from years ago as a wheel that runs in "
            "WebAssembly. Use another package"
        )
        old_only.instead = _with_versions(plain, f"{Requirement(plain).specifier},<={old[-1]}")
        return old_only
    but = f" (not {missing} now: the folder for Pyodide's distribution does not have its file)"
    error = PackageNotFound(
        f"{plain}{needed}: there is no such version for this sandbox; there are: {', '.join(known[-_MAX_VERSIONS:])}"
        f"{but if missing in known[-_MAX_VERSIONS:] else ''}"
    )
    if not needed:  # otherwise no other version is possible
        error.instead = _with_versions(plain, f"!={missing}" if missing else "")
    return error


def _with_versions(plain: str, versions: str) -> Requirement | None:
    """The requirement with its versions replaced."""
    try:
        requirement = Requirement(plain)
        requirement.name = canonicalize_name(requirement.name)
        requirement.specifier = SpecifierSet(versions)
    except (InvalidRequirement, InvalidSpecifier):
        return None
    return requirement


def _spelled_in(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]


def _name_in(requirement: str) -> str:
    return canonicalize_name(_spelled_in(requirement))


def _admits(requirement: str, versions: Iterable[str]) -> bool:
    """Return whether a requirement allows one of these versions."""
    try:
        specifier = Requirement(requirement).specifier
        return any(specifier.contains(version, prereleases=False) for version in versions)
    except (InvalidRequirement, InvalidVersion):
        return False
