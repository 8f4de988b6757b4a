"""What pip's output means: lines worth showing while it works, and a typed error when it failed.

pip has no interface for programs; these are the sentences of its user interface, which have been the same for years.
What is not understood becomes a plain PackageError with pip's own words.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.errors import (
    PackageConflict,
    PackageError,
    PackageHashMismatch,
    PackageInvalid,
    PackageNotFound,
    PackageNotSupported,
    PackageTooLarge,
    PackageUnreachable,
    unwritable,
)

_NO_MATCH = re.compile(r"No matching distribution found for (?P<what>.+?)\s*$", re.MULTILINE)
_VERSIONS = re.compile(r"\(from versions: (?P<versions>.*?)\)", re.DOTALL)
_UNREACHABLE = re.compile(
    r"Failed to establish a new connection|Failed to resolve|NameResolutionError|Connection refused|Max retries"
    r"|ConnectTimeout|Read timed out|connection broken by|connection timed out|Network is unreachable"
)
_SKIPPED = re.compile(r"Skipping link: (No sources permitted|none of the wheel's tags)")
_NO_FILE = re.compile(r"No such file or directory: '(?:.*/)?(?P<file>[^/']+\.whl)'")
_UNWRITABLE = re.compile(r"\[Errno (?P<number>28|30|122)\] (?P<what>[A-Za-z ]+)")
# Names a file of ours, and stands for the requirement in that line of it.
_FROM_FILE = re.compile(r" ?\(from -r .*?\(line \d+\)\)")
_LINE_OF_FILE = re.compile(r"-r (?:(?!-r ).)*?\(line (?P<line>\d+)\)")
_FULL = ("28", "122")
_ADDRESS = re.compile(r"(\S+) is asked for by an address")
_CONFLICT = re.compile(r"ResolutionImpossible|conflicting dependencies")
_REASONS = re.compile(r"The conflict is caused by:\n(?P<reasons>(?: +\S.*\n)+)")
_REASON = re.compile(r"^ +(?P<who>\S.*?) depends on (?P<what>(?P<name>[\w.-]+).*?)\s*$", re.MULTILINE)
_MISSING = re.compile(r"no matching distributions available for your environment:\n(?P<names>(?: +\S+\n)+)")
_FOUND_LINK = re.compile(r"Found link \S*/(?P<file>[^/#\s]+)(?:#\S*)? .*, version: (?P<version>\S+)$")

# Shown of pip's own words.
_MAX_CHARS = 1500
_MAX_REASONS = 4
_MAX_VERSIONS = 12


def progress(line: str) -> str | None:
    """The part of a line that a person wants to see, without paths of this machine; None for the rest."""
    line = line.strip()
    if match := re.match(r"(Collecting .+?)(?: \(from .*)?$", line):
        return match[1]
    if match := re.match(
        r"(?:Downloading|Using cached|Processing) (?:\S*/)?([^/\s]+\.whl)(?: \((\d[^)]*)\))?(?:\s|$)", line
    ):
        return f"  {match[1]}" + (f" ({match[2]})" if match[2] else "")
    return None


def log_lines(file: Path) -> list[str]:
    """pip's log, if there is one."""
    with contextlib.suppress(OSError):
        return file.read_text("utf-8", "replace").splitlines()
    return []


def is_unreachable(output: str) -> bool:
    """Did some source not answer?"""
    return _UNREACHABLE.search(output) is not None


def explain(output: str, log: Sequence[str], asked: Sequence[str]) -> PackageError:
    """The error for pip's output; `log` are the lines of its log file, which say what it left out, and `asked` those of
    its requirements file."""
    output = _LINE_OF_FILE.sub(lambda match: asked[int(match["line"]) - 1], _FROM_FILE.sub("", output))
    if (error := _about_files(output)) is not None:
        return error
    if "DO NOT MATCH THE HASHES" in output:
        found = re.search(r"^\s+(\S.*?) from (\S+):?$", output, re.MULTILINE)
        return PackageHashMismatch(
            f"{found[1] if found else 'a package'}: what came is not the file that was announced (its sha256 differs), "
            "so it was thrown away. Try again later; if it stays so, the source is damaged or tampered with"
        )
    if match := _ADDRESS.search(output):
        return PackageInvalid(f"{match[1]} is needed by its address, which is not taken; install another version")
    if _CONFLICT.search(output):
        return _needs_what_is_missing(output, log, asked) or PackageConflict(
            f"{_conflict(output, asked)}. Ask for other versions. What is installed in a session stays as it is: for "
            "another version use a new session, or reset_workspace with scope all"
        )
    if "resolution-too-deep" in output:
        return PackageConflict(
            f"{', '.join(asked)}: no versions of what is needed were found that fit together, among the new ones. Ask "
            "for an older version, or install it in parts"
        )
    if match := _NO_MATCH.search(output):
        what = match["what"].partition(" (from ")[0]
        error = _no_match(what, output, log)
        return error if what in asked else type(error)(f"{', '.join(asked)}: {error}")
    if is_unreachable(output):
        return PackageUnreachable(f"a package source does not answer: {_last_error(output)}")
    if "is invalid" in output or ("Wheel" in output and "invalid" in output.lower()):
        return PackageInvalid(f"{_last_error(output)}; install another version")
    return PackageError(f"pip failed: {_last_error(output)}")


def _about_files(output: str) -> PackageError | None:
    """The error for what pip could not read or write."""
    if "[Errno 27]" in output:  # EFBIG: the limit that pip runs under
        return PackageTooLarge(
            "a wheel of it is larger than packages.max_package_mb; use a smaller package, or ask for a higher limit"
        )
    if "[Errno 13]" in output:  # it writes only what is ours
        return PackageUnreachable(
            "a package source lies in a folder that pip may not read. Whoever runs the server can name the folder in "
            "packages.wheel_folders (docs/packages.md says what pip may read)"
        )
    if match := _NO_FILE.search(output):
        return PackageUnreachable(f"{match['file']} is listed by a package source, but is not there")
    if match := _UNWRITABLE.search(output):
        return unwritable("is full" if match["number"] in _FULL else f"cannot be written ({match['what']})")
    return None


def _no_match(what: str, output: str, log: Iterable[str]) -> PackageError:
    name = re.split(r"[\s<>=!~;\[(]", what, maxsplit=1)[0]
    if is_unreachable(output):
        return PackageUnreachable(
            f"{what}: the package index does not answer, and the cache does not have it. Try again when there is a "
            "network, or put its wheel into a wheel folder of the server"
        )
    versions = _VERSIONS.search(output)
    known = [version.strip() for version in versions["versions"].split(",")] if versions else ["none"]
    if known != ["none"] and any(
        SpecifierSet(what[len(name) :]).contains(version, prereleases=False) for version in known
    ):
        return PackageNotSupported(
            f"{name}: it exists, but only in versions from years ago as a wheel that runs in WebAssembly. Use another "
            f"package, or ask for {name}=={known[-1]} if that will do"
        )
    if known != ["none"]:
        newest = ", ".join(known[-_MAX_VERSIONS:])
        return PackageNotFound(f"{what}: there is no such version for this sandbox; there are: {newest}")
    wanted = re.compile(rf"Skipping link: .*\b{canonicalize_name(name).replace('-', '[-_.]+')}\b", re.IGNORECASE)
    if any(_SKIPPED.search(line) and wanted.search(line) for line in log):
        return PackageNotSupported(
            f"{name}: it exists, but not as a wheel that runs in WebAssembly (pure Python, or built for "
            "pyemscripten). Use a package in pure Python instead; whoever runs the server can build a wheel "
            "from its source with `kernelmcp build-wheel`"
        )
    return PackageNotFound(
        f"{name}: no source has a package of this name. Check the spelling: names on PyPI may differ from what is "
        "imported (`pip install scikit-learn`, `import sklearn`)"
    )


def _needs_what_is_missing(output: str, log: Sequence[str], asked: Sequence[str]) -> PackageError | None:
    """What pip calls a conflict, when what is needed of a package is nothing that the guest can have."""
    missing = _MISSING.search(output)
    if missing is None:
        return None
    names = {canonicalize_name(name) for name in missing["names"].split()}
    for reason in _REASON.finditer(output):  # that of the newest version comes first
        if canonicalize_name(reason["name"]) in names and not _was_found(reason["what"], log):
            error = _no_match(reason["what"], output, log)
            who = "" if reason["who"].split()[0] in asked else f"{', '.join(asked)}: "
            return type(error)(f"{who}{reason['who']} needs {error}")
    return None


def _was_found(what: str, log: Iterable[str]) -> bool:
    """Did some source have a wheel that would do? Then requirements contradict each other."""
    try:
        wanted = Requirement(what)
    except InvalidRequirement:
        return False
    links = filter(None, map(_FOUND_LINK.search, log))
    versions = [
        link["version"]
        for link in links
        if canonicalize_name(link["file"].partition("-")[0]) == canonicalize_name(wanted.name)
    ]
    return any(wanted.specifier.contains(version, prereleases=False) for version in versions)


def _conflict(output: str, asked: Sequence[str]) -> str:
    """What contradicts what, on one line."""
    found = _REASONS.search(output)
    if found is None:
        return _last_error(output)
    reasons = [line.strip() for line in found["reasons"].splitlines()]
    more = [f"and {len(reasons) - _MAX_REASONS} more"] if len(reasons) > _MAX_REASONS else []
    text = "; ".join([*reasons[:_MAX_REASONS], *more])
    return f"{', '.join(asked)} cannot be installed: {text}"[:_MAX_CHARS]


def _last_error(output: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    text = lines[-1] if lines else (output.strip().splitlines() or ["it said nothing"])[-1]
    return text[:_MAX_CHARS]
