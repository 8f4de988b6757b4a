"""Interprets pip's output: lines worth showing while it runs, and a typed error if it failed.

pip has no interface for programs; these are the sentences of its user interface, which have not changed for years.
Unknown output becomes a plain PackageError with pip's own words.

It is long because each of these sentences has its pattern and its meaning here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from kernelmcp_kernel.packages.distribution import guest_markers
from kernelmcp_kernel.packages.errors import (
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
from kernelmcp_kernel.packages.index.answers import Failure

_NO_MATCH = re.compile(r"No matching distribution found for (?P<what>.+?)\s*$", re.MULTILINE)
_VERSIONS = re.compile(r"\(from versions: (?P<versions>.*?)\)", re.DOTALL)
_UNREACHABLE = re.compile(
    r"Failed to establish a new connection|Failed to resolve|NameResolutionError|Connection refused|Max retries"
    r"|ConnectTimeout|Read timed out|connection broken by|connection timed out|Network is unreachable"
    r"|Are you connected to the Internet"
)
_SKIPPED = re.compile(r"Skipping link: (No sources permitted|none of the wheel's tags)")
_NO_FILE = re.compile(r"No such file or directory: '(?:.*/)?(?P<file>[^/']+\.whl)'")
_UNWRITABLE = re.compile(r"\[Errno (?P<number>28|30|122)\] (?P<what>[A-Za-z ]+)")
# Names one of our files, and stands for the requirement on that line of it.
_FROM_FILE = re.compile(r" ?\(from -r .*?\(line \d+\)\)")
_LINE_OF_FILE = re.compile(r"-r (?:(?!-r ).)*?\(line (?P<line>\d+)\)")
_FULL = ("28", "122")
_ADDRESS = re.compile(r"(\S+) is asked for by an address")
_CONFLICT = re.compile(r"ResolutionImpossible|conflicting dependencies")
_REASONS = re.compile(r"The conflict is caused by:\n(?P<reasons>(?: +\S.*\n)+)")
_REASON = re.compile(r"^ +(?P<who>\S.*?) depends on (?P<what>(?P<name>[\w.-]+).*?)\s*$", re.MULTILINE)
_MISSING = re.compile(r"no matching distributions available for your environment:\n(?P<names>(?: +\S+\n)+)")
# In a folder, or on our page: somebody chose it.
_CHOSEN_LINK = re.compile(r"Found link file:(?!.*\(from (?!\S*/page\.html\)))")
_FOUND_LINK = re.compile(r"Found link \S*/(?P<file>[^/#\s]+\.whl)(?:#\S*)? .*, version: (?P<version>\S+)$")

_CAUSES = re.compile(
    r"(?P<package>\S+ \S+) depends on (?P<needed>.+)|The user requested (?:\(constraint\) (?P<here>.+)|(?P<asked>.+))"
)
_ASKED = "The user requested "
_THERE = re.compile(r"The user requested \(constraint\) (?P<name>[^\s=]+)==")
# An absolute path; a URL has no space or quote before its slashes.
_PATH = re.compile(r"(?<![^\s'\"(=])(?:file://)?/[^\s'\":,)]+")
_BAD_WHEEL = re.compile(
    r"Wheel '(?P<damaged>[^']+)' located at .* is invalid|(?P<name>\S+) has an invalid wheel, (?P<why>.+)"
)
_BAD_METADATA = re.compile(
    r"^Requested (?P<name>\S+) from .*? has (?P<what>invalid metadata|inconsistent (?:version|name)): (?P<why>.+)$",
    re.MULTILINE,
)
_DISCARDED = re.compile(r"^Discarding \S+ \(from \S+\): ", re.MULTILINE)
_OTHER_PYTHON = re.compile(r"Package '(?P<name>[^']+)' requires a different Python: \S+ not in '(?P<python>[^']+)'")
_OTHER_PYTHONS = re.compile(r"that require a different python version: (?P<versions>.+)")
_YANKED = re.compile(r"Ignored the following yanked versions: (?P<versions>.+)")
_NOT_SECURE = re.compile(r"The repository located at (?P<host>\S+) is not a trusted or secure host")
_STATUS = re.compile(r"because of HTTP error (?P<status>\d+).*? for url: \S{0,2000}?(?P<file>[^/\s]{1,200}\.whl)")
_CONNECTION = re.compile(r"Failed to connect to (?P<host>\S+) while fetching (?:\S*/)?(?P<file>[^/\s]+)")
_REFUSED = re.compile(r"^kernelmcp-refused (?P<name>\S+) (?P<why>.{1,300})$", re.MULTILINE)
_MISSED = re.compile(r"^ERROR: kernelmcp-missed (?P<name>[a-z0-9-]+)\s*$", re.MULTILINE)
_NEEDED_BY = re.compile(r"satisfies the requirement (?P<what>.+?) \(from (?!versions)(?P<by>[^)]+)\)")

# Maximum length of quoted pip output.
_MAX_CHARS = 1500
_MAX_NAMED_CHARS = 200
_MAX_CAUSES = 4
_MAX_VERSIONS = 12


def progress(line: str) -> str | None:
    """The part of a line that is useful to a person, without paths of this machine; None for all other lines."""
    line = line.strip()
    if match := re.match(r"WARNING: (\S+ \S+ does not provide the extra '[^']{1,100}')$", line):
        return match[1]
    if match := re.match(r"(Collecting .+?)(?: \(from .*)?$", line):
        return match[1]
    if match := re.match(
        r"(?:Downloading|Using cached|Processing) (?:\S*/)?([^/\s]+\.(?:whl|tar\.gz))(?: \((\d[^)]*)\))?(?:\s|$)", line
    ):
        return f"  {match[1]}" + (f" ({match[2]})" if match[2] else "")
    return None


def log_lines(file: Path) -> list[str]:
    """pip's log, if there is one."""
    with contextlib.suppress(OSError):
        return file.read_text("utf-8", "replace").splitlines()
    return []


def is_unreachable(output: str) -> bool:
    """Return whether some source did not answer."""
    return _UNREACHABLE.search(output) is not None


def explain(
    output: str,
    log: Sequence[str],
    asked: Sequence[str],
    failed: Mapping[str, Failure],
    absent: Mapping[str, str] = {},  # never modified
) -> PackageError:
    """The error for pip's output. `log`: the lines of its log file, which list skipped files; `asked`: those of its
    requirements file; `failed`: the names for which an index gave no answer; `absent`: packages of Pyodide's
    distribution whose files are unavailable, with their versions."""
    output = _LINE_OF_FILE.sub(lambda match: asked[int(match["line"]) - 1], _FROM_FILE.sub("", output))
    if (error := _about_files(output)) is not None:
        return error
    output = _DISCARDED.sub("", output)
    if match := _MISSED.search(output):
        return no_wheel(f"{', '.join(asked)}: {match['name']} (which it needs)", _refusal(match["name"], output))
    if "DO NOT MATCH THE HASHES" in output:
        found = re.search(r"^\s+(\S.*?) from (\S+):?$", output, re.MULTILINE)
        return PackageHashMismatch(
            f"{found[1] if found else 'a package'}: what came is not the file that was announced (its sha256 differs), "
            "so it was thrown away. Try again later; if it stays so, the source is damaged or tampered with"
        )
    if match := _ADDRESS.search(output):
        return PackageInvalid(f"{match[1]} is needed by its address, which is not taken; install another version")
    if _CONFLICT.search(output):
        return _needs_what_is_missing(output, log, asked, failed, absent) or PackageConflict(
            f"{_conflict(output, asked)}. Ask for other versions. What is installed in a session stays as it is: for "
            f"another version {ANOTHER_SESSION}"
        )
    if "resolution-too-deep" in output:
        return PackageConflict(
            f"{', '.join(asked)}: no compatible versions of its dependencies were found among recent ones. Ask for an "
            "older version, or install it in parts"
        )
    if match := _NO_MATCH.search(output):
        what = match["what"].partition(" (from ")[0]
        error = _no_match(what, output, log, failed, absent)
        return error if what in asked else error.with_text(f"{', '.join(asked)}: {error}")
    if is_unreachable(output):
        found = _CONNECTION.search(output)
        what = f"{found['file']}: {found['host']}" if found else "a package source"
        return PackageUnreachable(f"{what} does not answer. Try again later, or ask for another version")
    return _about_wheel(output) or PackageError(f"pip could not do it: {_last_error(output)}")


def _about_wheel(output: str) -> PackageError | None:
    """The error for a wheel that pip has downloaded but cannot use."""
    if match := _OTHER_PYTHON.search(output):
        return _other_python(match["name"], f"Requires-Python {match['python']}")
    if match := _BAD_WHEEL.search(output):
        name, why = match["damaged"] or match["name"], match["why"] or "it is damaged, or no zip archive"
        return PackageInvalid(f"{name}: its wheel is invalid ({why[:_MAX_NAMED_CHARS]}); install another version")
    if match := _STATUS.search(output):
        why = "is not there" if match["status"] == "404" else f"is refused (HTTP {match['status']})"
        return PackageUnreachable(f"{match['file']} is listed by a package source, but {why}; ask for another version")
    return None


def _other_python(name: str, versions: str) -> PackageError:
    python = guest_markers()["python_version"]
    return PackageNotSupported(
        f"{name}: there is no version for Python {python}, which this sandbox has ({versions[:_MAX_NAMED_CHARS]})"
    )


def _about_files(output: str) -> PackageError | None:
    """The error for a file that pip could not read or write."""
    if "[Errno 27]" in output:  # EFBIG: the file size limit of pip's process
        return PackageTooLarge(
            "a wheel of it is larger than packages.max_package_mb; use a smaller package, or ask for a higher limit"
        )
    if "[Errno 13]" in output:  # it writes only our own files
        return PackageUnreachable(
            "a package source lies in a folder that pip may not read. The server's operator can name the folder in "
            "packages.wheel_folders (docs/packages.md says what pip may read)"
        )
    if match := _NO_FILE.search(output):
        return PackageUnreachable(f"{match['file']} is listed by a package source, but is not there")
    if match := _UNWRITABLE.search(output):
        return unwritable("is full" if match["number"] in _FULL else f"cannot be written ({match['what']})")
    return None


def _no_match(
    what: str, output: str, log: Iterable[str], failed: Mapping[str, Failure], absent: Mapping[str, str]
) -> PackageError:
    name = _name_in(what)
    own = re.compile(rf"{re.escape(name)}(?![\w.-])")
    by = [match["by"] for match in _NEEDED_BY.finditer(output) if own.match(match["what"])]
    needed = f" (which {by[-1][:_MAX_NAMED_CHARS]} needs)" if by else ""
    plain = what.partition(" (from ")[0]
    what = f"{plain}{needed}"
    if failure := failed.get(canonicalize_name(name)):
        return failure.error(what)
    if match := _BAD_METADATA.search(output):
        why = match["why"][:_MAX_NAMED_CHARS]
        return PackageInvalid(f"{match['name']}: its metadata is not valid ({why}); install another version")
    missing = absent.get(canonicalize_name(name))
    if error := _about_versions(plain, needed, output, missing):
        return error
    if match := _OTHER_PYTHONS.search(output):
        return _other_python(f"{name}{needed}", match["versions"])
    if match := _YANKED.search(output):
        text = match["versions"][:_MAX_NAMED_CHARS]
        error = PackageNotFound(f"{what}: its versions were withdrawn by their makers: {text}")
        error.instead = _with_versions(plain, f"=={match['versions'].rpartition(', ')[2]}")
        return error
    if match := _NOT_SECURE.search(output):
        return PackageUnreachable(
            f"{what}: the package index {match['host'][:_MAX_NAMED_CHARS]} is not asked, because its address is not "
            "https. The server's operator can name another (packages.index_url in mcp.toml), or trust it "
            "(trusted-host in pip.conf)"
        )
    if there := _found_versions(plain, filter(_CHOSEN_LINK.search, log)):
        return _no_such_version(plain, needed, there, missing)
    wanted = re.compile(rf"Skipping link: .*\b{canonicalize_name(name).replace('-', '[-_.]+')}\b", re.IGNORECASE)
    name += needed
    if any(_SKIPPED.search(line) and wanted.search(line) for line in log):
        return no_wheel(name, _refusal(name.partition(" ")[0], output))
    return PackageNotFound(
        f"{name}: no source has a package of this name. Check the spelling: names on PyPI may differ from import "
        "names (`pip install scikit-learn`, `import sklearn`)"
    )


def _about_versions(plain: str, needed: str, output: str, missing: str | None) -> PackageError | None:
    """The error if there are versions, but all are too old, or none matches the request."""
    found = _VERSIONS.search(output)
    known = [version.strip() for version in found["versions"].split(",")] if found else ["none"]
    if known == ["none"]:
        return None
    old = [version for version in known if version != missing and _admits(plain, [version])]
    if not old:
        return _no_such_version(plain, needed, known, missing)
    error = PackageNotSupported(
        f"{_name_in(plain)}: it exists, but only in versions from years ago as a wheel that runs in WebAssembly. Use "
        "another package"
    )
    error.instead = _with_versions(plain, f"{Requirement(plain).specifier},<={old[-1]}")
    return error


def _no_such_version(plain: str, needed: str, there: Sequence[str], missing: str | None) -> PackageNotFound:
    """`missing`: a version in Pyodide's distribution whose file is unavailable."""
    shown = ", ".join(there[-_MAX_VERSIONS:])
    but = f" (not {missing} now: the folder for Pyodide's distribution does not have its file)"
    error = PackageNotFound(
        f"{plain}{needed}: there is no such version for this sandbox; there are: {shown}"
        f"{but if missing in there else ''}"
    )
    if not needed:  # otherwise no other version is possible
        error.instead = _with_versions(plain, f"!={missing}" if missing else "")
    return error


def _with_versions(plain: str, versions: str) -> Requirement | None:
    """A requirement, as pip writes it, with its versions replaced."""
    try:
        requirement = Requirement(plain)
        requirement.specifier = SpecifierSet(versions)
    except (InvalidRequirement, InvalidSpecifier):
        return None
    return requirement


def _name_in(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]


def _refusal(name: str, output: str) -> str | None:
    """The reason why the source of a package was refused, or None."""
    found = [match["why"] for match in _REFUSED.finditer(output) if canonicalize_name(name) == match["name"]]
    return found[-1] if found else None


def _conflict(output: str, asked: Sequence[str]) -> str:
    """The conflicting requirements, without the line that names one of our files, and without pip's advice."""
    _, _, rest = output.partition("The conflict is caused by:")
    lines = list(dict.fromkeys(line.strip() for line in rest.strip().partition("\n\n")[0].splitlines()))
    # For each package with a dependency, its newest version, which comes first; other lines are requested packages or
    # the session's.
    newest = {line if line.startswith(_ASKED) else line.partition(" ")[0]: line for line in reversed(lines)}
    causes = [_CAUSES.sub(_cause, line) for line in lines if line in newest.values()][:_MAX_CAUSES]
    more = f"; and {len(lines) - len(causes)} more" if len(lines) > len(causes) else ""
    text = f"{', '.join(asked)} cannot be installed: {'; '.join(causes)}{more}"
    return text[:_MAX_CHARS] if causes else _last_error(output)


def _cause(found: re.Match[str]) -> str:
    if found["needed"] is not None:
        return f"{found['package']} needs {found['needed']}"
    if (here := found["here"]) is None:
        return f"{found['asked']} is asked for"
    return f"this session has {here}" if "==" in here else f"pip's configuration (constraint) allows only {here}"


def _needs_what_is_missing(
    output: str, log: Sequence[str], asked: Sequence[str], failed: Mapping[str, Failure], absent: Mapping[str, str]
) -> PackageError | None:
    """The error for a conflict, in pip's terms, whose cause is a dependency that is unavailable to the guest."""
    missing = _MISSING.search(output)
    if missing is None:
        return None
    # There may be another version of a package in the guest, but it is never replaced.
    there = {canonicalize_name(found["name"]) for found in _THERE.finditer(output)}
    names = {canonicalize_name(name) for name in missing["names"].split()} - there
    for reason in _REASON.finditer(output):  # the newest version's comes first
        what = reason["what"].replace(" and ", ",")  # pip's separator before the last of several
        # If some source has it, requirements contradict each other.
        if canonicalize_name(reason["name"]) in names and not _admits(what, _found_versions(what, log)):
            error = _no_match(what, output, log, failed, absent)
            who = "" if reason["who"].split()[0] in asked else f"{', '.join(asked)}: "
            return error.with_text(f"{who}{reason['who']} needs {error}")
    # pip's configuration may have a constraint on it, which pip then reports as the reason.
    for what in asked:
        name = canonicalize_name(_name_in(what))
        if name in names and not _found_versions(what, log):
            error = _no_match(what, output, log, failed, absent)
            return error if len(asked) == 1 else error.with_text(f"{', '.join(asked)}: {error}")
    return None


def _found_versions(what: str, log: Iterable[str]) -> list[str]:
    """The versions with a wheel that runs here in any source, without duplicates."""
    name = canonicalize_name(_name_in(what))
    links = filter(None, map(_FOUND_LINK.search, log))
    own = [link["version"] for link in links if canonicalize_name(link["file"].partition("-")[0]) == name]
    return list(dict.fromkeys(own))


def _admits(requirement: str, versions: Iterable[str]) -> bool:
    """Return whether a requirement, as pip writes it, allows one of these versions."""
    try:
        specifier = Requirement(requirement).specifier
        return any(specifier.contains(version, prereleases=False) for version in versions)
    except InvalidRequirement:
        return False


def _last_error(output: str) -> str:
    """The last error that pip shows, or the exception that ended it; without paths of this machine."""
    lines = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    text = lines[-1] if lines else (output.strip().splitlines() or ["it said nothing"])[-1]
    if text == "Exception:":
        text = output.strip().splitlines()[-1]
    return _PATH.sub(lambda path: path[0].rpartition("/")[2], text)[:_MAX_CHARS]
