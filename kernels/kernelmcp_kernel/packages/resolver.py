"""Asks pip which wheels a request needs, and downloads them.

pip uses the index, proxies, certificates and credentials that this machine's user has configured; it resolves and
verifies hashes. `pip download` does all of it and runs no package code. It is a separate process (`pip_main`) with a
time limit, confined to its own folder (`pip_policy`), where the wheels arrive.

The guest's packages take part as empty wheels that sort before all others of their version: pip uses them unchanged,
and so neither downloads nor replaces them. The packages of Pyodide's distribution whose files are not on this machine
also take part, with their dependencies, sorted after all others of their version: so it is known which of them a
request needs before any is downloaded, and if one is unavailable, that is the error, never an old version of it.
If what has come needs nothing else, it is the choice; otherwise pip chooses again, by the files' own metadata.

If there is no wheel, pip chooses a source, which is built (`sources`), and runs again.
"""

from __future__ import annotations

import asyncio
import re
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import VERSION_PATTERN

from kernelmcp_kernel.packages import distribution, empty_wheels
from kernelmcp_kernel.packages.distribution import Listed
from kernelmcp_kernel.packages.package_errors import (
    PackageConflict,
    PackageError,
    PackageInvalid,
    PackageNotFound,
    PackageNotSupported,
    PackageTimeout,
    PackageUnreachable,
)
from kernelmcp_kernel.packages.pip_run import Request, file_name_of, run_pip
from kernelmcp_kernel.packages.requirements import Options
from kernelmcp_kernel.packages.sources.source_builder import Say
from kernelmcp_kernel.packages.sources.source_offers import Absent, Offers, is_source
from kernelmcp_kernel.packages.standins import wheels as standins
from kernelmcp_kernel.packages.store import sha256_of, wheel_identity

# Each run adds files of the distribution, or built ones, whose real metadata may require more.
_MAX_RUNS = 9
# A refusal takes at most ten seconds: an alternative that has not been resolved by then is not suggested.
_REFUSAL_SECONDS = 9.0
_NEWEST_SECONDS = 20.0
_MAX_DIGITS = 15  # of a size
_VERSION = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Download:
    """The wheels of a request."""

    files: list[Path]
    complete: bool
    """Every source answered, and nothing was left out: a repetition would give the same result."""
    notes: tuple[str, ...] = ()
    """Descriptions of what was left out."""


# Cached packages to name.
_MAX_NAMED = 10


class DistributionNeeded(PackageUnreachable):
    """A file of Pyodide's distribution is needed, and unavailable: no other source is asked for it."""


async def download(request: Request, folder: Path, say: Say, until: float) -> Download:
    """The wheels of a request, in folders below `folder`, which must be empty. Raises PackageError, also if it is not
    done at `until` (the loop's time).

    If the index does not answer, tries cached files and Pyodide's distribution without it.
    """
    seconds = request.settings.install_timeout_seconds
    refused_at = asyncio.get_running_loop().time() + _REFUSAL_SECONDS
    try:
        async with asyncio.timeout_at(until):
            return await _download(request, folder, say)
    except DistributionNeeded as error:
        raise PackageUnreachable(str(error)) from error
    except TimeoutError:
        raise PackageTimeout(
            f"{request.names}: not installed after {seconds:,.15g} s (packages.install_timeout_seconds); try it in "
            "parts"
        ) from None
    except PackageError as error:
        raise await _with_advice(error, request, folder / "instead", refused_at) from None


async def _with_advice(error: PackageError, request: Request, folder: Path, until: float) -> PackageError:
    """The error, with a version that can be installed instead if one is found before `until` (the loop's time)."""
    if error.instead is None:
        return error
    name = canonicalize_name(error.instead.name)
    others = [each for each in request.requirements if canonicalize_name(each.name) != name]
    with suppress(PackageError, TimeoutError, ValueError):  # the text of a dependency may be anything
        async with asyncio.timeout_at(until):
            version = await _version_of(name, replace(request, requirements=[*others, error.instead]), folder)
            return error.with_text(f"{error}; {name}=={version} can be installed") if version else error
    return error


async def newest_version(request: Request, name: str, folder: Path) -> str | None:
    """The newest version of a package that can be installed. None if it is unknown now."""
    listed = [each for each in distribution.listed(request.settings) if each.name == name]
    absent = listed if distribution.is_folder(request.settings) else []
    others = [f"!={each.version}" for each in absent if distribution.local_file(request.settings, each) is None]
    with suppress(PackageError, TimeoutError):
        async with asyncio.timeout(_NEWEST_SECONDS):
            wanted = Requirement(name + ",".join(others))
            return await _version_of(name, replace(request, requirements=[wanted]), folder)
    return None


async def _version_of(name: str, request: Request, folder: Path) -> str | None:
    """The version of a package that a request would install, or None: resolves everything, downloads and builds
    nothing. Raises PackageError."""
    found = await _resolve(replace(request, builder=None, files="name"), folder, lambda line: None)
    return next((wheel_identity(file.name)[1] for file in found.files if file_name_of(file) == name), None)


@dataclass(frozen=True)
class Planned:
    """A file that an installation would download, with the name and version of its package."""

    name: str
    version: str
    source: Literal["index", "pyodide", "local", "cache"]
    size: int | None
    """In bytes; None if unknown."""
    built: bool
    """It is a source, from which a wheel would be built in the sandbox."""


async def planned(request: Request, folder: Path) -> list[Planned]:
    """The files that a request would download: resolves it, downloads only what the resolution must read, and builds
    nothing. The dependencies of sources are unknown before they are built. Raises PackageError."""
    seconds = request.settings.install_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            found = await _resolve(replace(request, files="size"), folder, lambda line: None)
    except TimeoutError:
        raise PackageTimeout(
            f"{request.names}: not resolved after {seconds:,.15g} s (packages.install_timeout_seconds)"
        ) from None
    # Elsewhere, a real file with such a name is an index's.
    is_folder = distribution.is_folder(request.settings)
    own = {each.file for each in distribution.listed(request.settings)} if is_folder else set[str]()
    local = {name for name, _, _ in distribution.local_wheels(request.settings)}
    return [_planned(file, own, local) for file in sorted(found.files)]


def _planned(file: Path, own: set[str], local: set[str]) -> Planned:
    listed = file.name.endswith(empty_wheels.LISTED_TAG)
    name, version = file_name_of(file), "" if is_source(file) else wheel_identity(file.name)[1]
    with suppress(InvalidSdistFilename):
        version = version or str(parse_sdist_filename(file.name)[1])
    if not version or not _NAME.fullmatch(name):
        raise PackageInvalid("pip chose a file whose name is not a package's")
    source = "pyodide" if listed or file.name in own else "local" if file.name in local else "index"
    return Planned(name, version, source, None if listed else _size_in(file), is_source(file))


def _size_in(file: Path) -> int | None:
    """The digits that pip's process wrote; None for anything else."""
    with file.open("rb") as stream:
        text = stream.read(_MAX_DIGITS + 1)
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


async def _download(request: Request, folder: Path, say: Say) -> Download:
    if request.from_distribution:
        return await _resolve_distribution(request, folder, say)
    try:
        return await _resolve(request, folder / "all", say)
    except DistributionNeeded:
        raise
    except PackageUnreachable as error:
        unreachable = error
    say("A package source cannot be asked; trying the others.")
    try:
        return replace(await _resolve(request, folder / "cached", say, "--no-index"), complete=False)
    except DistributionNeeded:
        raise
    except PackageError:
        raise unreachable from None


async def _resolve_distribution(request: Request, folder: Path, say: Say) -> Download:
    """Everything from the distribution; if only dependencies are unavailable there, these from the index as well. The
    requested packages are the distribution's own files: neither from the index nor built."""
    needed: DistributionNeeded | None = None
    every = distribution.listed(request.settings)
    cached = {file_name_of(file) for _, file in request.cached}
    host = distribution.host(request.settings)
    absent = [package for package in every if package.name in request.asked - cached]
    # Do not wait again for a host that gave no answer a few minutes ago: imports are often repeated.
    if host and absent and await asyncio.to_thread(request.answers.was_silent, host):
        raise _distribution_needed(request, absent)
    try:
        found = await _resolve(request, folder / "listed", say, "--no-index", whole=True)
    except (DistributionNeeded, PackageConflict, PackageNotFound, PackageNotSupported) as error:
        if host and absent and isinstance(error, DistributionNeeded):
            raise  # no index has the requested package
        needed = error if isinstance(error, DistributionNeeded) else None
        found = await _resolve_with_index(request, every, folder, say)
    known = distribution.distribution_hashes(request.settings) | standins.hashes(every)
    others = {file_name_of(wheel) for wheel in found.files if sha256_of(wheel) not in known} & request.asked
    if others:
        listed = [package for package in every if package.name in others]
        raise needed or _distribution_needed(request, listed)
    return found


async def _resolve_with_index(request: Request, every: Iterable[Listed], folder: Path, say: Say) -> Download:
    """From all sources; packages that the distribution lists are in its version, unless the request would then fail or
    leave something out. For them, an older version of another package may be chosen."""
    local = await asyncio.to_thread(distribution.local_wheels, request.settings)
    free = {canonicalize_name(distribution.wheel_name(file)) for file, *_ in local} | set(request.present)
    versions = {
        package.name: package.version
        for package in every
        if package.name not in free and _VERSION.fullmatch(package.version)
    }
    same: Download | None = None
    with suppress(DistributionNeeded, PackageConflict, PackageNotFound, PackageNotSupported):
        same = await _resolve(replace(request, constraints=versions), folder / "same", say)
        if not same.notes:
            return same
    found = await _resolve(request, folder / "all", say)
    return same if same and same.notes == found.notes else found


async def _resolve(request: Request, folder: Path, say: Say, *options: str, whole: bool = False) -> Download:
    """Run pip until all chosen files are downloaded: each run has more real metadata. `whole`: with all dependencies
    that the distribution lists, and not only the package's own."""
    packages = {package.name: package for package in distribution.listed(request.settings)}
    listing = await asyncio.to_thread(empty_wheels.listing, list(packages.values()))
    links = await asyncio.to_thread(_at_hand, request, packages.values(), cached_too=bool(options))
    links += await asyncio.to_thread(standins.make_of_index, folder / "stand-ins")
    offers = Offers(request.builder, request.asked if request.from_distribution else ())
    await offers.begin()
    have = {sha256 for sha256, _ in links}
    if not whole:
        at_hand = [package for package in packages.values() if package.sha256 in have]
        offers.distribution = {each.name: [each.sha256, each.version, *each.depends] for each in at_hand}
    needed: DistributionNeeded | None = None  # files needed from the distribution, which did not answer
    came: dict[str, Path] = {}  # files of the distribution, by package
    if distribution.is_folder(request.settings):
        await _do_without(offers, packages.values(), links, folder)
    try:
        for number in range(_MAX_RUNS):
            run = folder / str(number)
            page = distribution.link_page((digest, file.as_uri()) for digest, file in links)
            wheels = await run_pip(request, run, say, page, *options, listing=listing, offers=offers)
            chosen = _listed(wheels, packages)
            sources = [file for file in wheels if is_source(file)]
            if request.names_only and chosen and distribution.is_folder(request.settings):
                raise _distribution_needed(request, chosen)
            left_out = offers.left_out({file_name_of(wheel) for wheel in wheels} | set(request.present))
            is_complete = not left_out and request.answers.complete
            if request.names_only or not (chosen or sources):
                return Download(wheels, is_complete, tuple(left_out))
            try:
                fetched = await _fetch(request, run / "fetched", say, chosen) if chosen else []
                came |= {package.name: file for package in chosen for file in fetched if file.name == package.file}
                if len(chosen) == len(wheels) and (
                    all_of_it := await asyncio.to_thread(_settled, came, packages, request)
                ):
                    return Download(all_of_it, is_complete, tuple(left_out))
                links += [(package.sha256, came[package.name]) for package in chosen if package.name in came]
            except DistributionNeeded as error:
                if offers.absent or options or not offers.possible:
                    raise
                needed = error
                await _do_without(offers, packages.values(), links, folder)
                continue
            await offers.build(sources, run, request.asked, say)
    except Absent as name:
        raise needed or _distribution_needed(request, [packages[str(name)]]) from None
    raise PackageError(f"{request.names}: its dependencies change with everything that is fetched; ask for part of it")


def _listed(wheels: list[Path], packages: Mapping[str, Listed]) -> list[Listed]:
    """The packages of the distribution that pip chose. Raises PackageInvalid for another file with their tag."""
    found: list[Listed] = []
    for wheel in wheels:
        if wheel.name.endswith(empty_wheels.LISTED_TAG):
            package = packages.get(file_name_of(wheel))
            if package is None or wheel.name.split("-")[1] != package.version:
                raise PackageInvalid(
                    f"{wheel.name} has a tag that only Pyodide's distribution uses; install another version"
                )
            found.append(package)
    return found


async def _do_without(offers: Offers, packages: Iterable[Listed], links: list[tuple[str, Path]], folder: Path) -> None:
    """Offer replacements for the distribution's unavailable files: stand-ins, and sources."""
    have = {sha256 for sha256, _ in links}
    absent = [package for package in packages if package.sha256 not in have]
    made = await asyncio.to_thread(standins.make, absent, folder / "stand-ins")
    links += made.values()
    offers.absent = {package.name: package.version for package in absent if package.name not in made}


def _at_hand(request: Request, packages: Iterable[Listed], *, cached_too: bool) -> list[tuple[str, Path]]:
    """The files that need no download, with their sha256: those of the distribution, and without an index all cached
    ones. Excludes damaged files, and those that another process has deleted meanwhile."""
    known = {package.sha256 for package in packages}
    found = [(sha256, file) for sha256, file in request.cached if cached_too or sha256 in known]
    found = [(sha256, file) for sha256, file in found if _is_whole(file, sha256)]
    have = {sha256 for sha256, _ in found}
    local = [(package.sha256, distribution.local_file(request.settings, package)) for package in packages]
    return found + [(sha256, file) for sha256, file in local if file is not None and sha256 not in have]


def _is_whole(file: Path, sha256: str) -> bool:
    try:
        return sha256_of(file) == sha256
    except OSError:
        return False


async def _fetch(request: Request, folder: Path, say: Say, packages: list[Listed]) -> list[Path]:
    """Download files of the distribution. Raises DistributionNeeded."""
    if distribution.is_folder(request.settings):  # its files were at hand
        raise _distribution_needed(request, packages)
    wanted = [Requirement(f"{package.name}=={package.version}") for package in packages]
    base = distribution.distribution_url(request.settings)
    page = distribution.link_page((package.sha256, base + quote(package.file)) for package in packages)
    try:
        return await run_pip(
            replace(request, requirements=wanted, options=Options(no_deps=True)), folder, say, page, "--no-index"
        )
    except PackageUnreachable as error:
        raise _distribution_needed(request, packages) from error


def _settled(came: Mapping[str, Path], packages: Mapping[str, Listed], request: Request) -> list[Path]:
    """Those of these files of the distribution that the request needs by their own metadata, if they and what the guest
    has are all that it needs: pip would choose them again. Otherwise none."""
    present: dict[str, str] = {canonicalize_name(name): each.version for name, each in request.present.items()}
    found: dict[str, Path] = {}
    needed = list(request.requirements)
    while needed:
        each = needed.pop()
        name = canonicalize_name(each.name)
        file = came.get(name)
        version = present.get(name) if file is None else packages[name].version
        if each.url or each.extras or version is None or not each.specifier.contains(version, prereleases=True):
            return []
        if file is not None and name not in found:
            if sha256_of(file) != packages[name].sha256:
                return []
            found[name] = file
            needed += _required_by(file)
    return list(found.values())


def _required_by(wheel: Path) -> list[Requirement]:
    """The requirements of a wheel that apply in the guest; one that nothing fulfils if they cannot be read. The wheel
    must be trusted."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            [name] = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            metadata = HeaderParser().parsestr(archive.read(name).decode())
        every = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    except (OSError, ValueError, zipfile.BadZipFile, InvalidRequirement):
        return [Requirement("metadata==0")]
    markers = distribution.guest_markers() | {"extra": ""}
    return [each for each in every if each.marker is None or each.marker.evaluate(markers)]


def _distribution_needed(request: Request, packages: list[Listed]) -> DistributionNeeded:
    needed = [package.name for package in packages if package.name not in request.asked]
    own = [package.name for package in packages if package.name in request.asked]
    it, needs = ("it", "it needs") if len(request.asked) == 1 else ("they", "they need")
    asked = it if len(own) == len(request.asked) else ", ".join(own)
    what = " and ".join([*([asked] if own else []), *([f"{', '.join(needed)} (which {needs})"] if needed else [])])
    come, files, them = ("comes", "file", "it") if len(packages) == 1 else ("come", "files", "them")
    host = distribution.host(request.settings)
    why = f"{host} does not answer. Try again when it does; the server's operator can name a mirror or a folder"
    if not host:
        why = f"the folder for it does not have the {files}. The server's operator can put {them} there"
    return DistributionNeeded(
        f"{request.names}: {what} {come} from Pyodide's distribution, and {why} (packages.pyodide_url in mcp.toml). "
        f"Until then the standard library works (csv, sqlite3, statistics){_cached(request)}"
    )


def _cached(request: Request) -> str:
    names = sorted({file_name_of(file) for _, file in request.cached})
    more = ", ..." if len(names) > _MAX_NAMED else ""
    return f", and so does what is cached: {', '.join(names[:_MAX_NAMED])}{more}" if names else ""
