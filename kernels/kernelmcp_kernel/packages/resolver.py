"""Asks pip which wheels a request needs, and for the wheels themselves.

pip knows the index, proxies, certificates and credentials that the user of this machine has configured; it resolves and
verifies hashes. `pip download` does all of it and runs no code of a package. It is a process of its own
(`pip_main`), under a time limit, confined to a folder of its own (`pip_policy`), which is where the wheels arrive.

What the guest has already joins as wheels with nothing in them that go before all others of their version: pip takes
them as they are, and so neither fetches nor replaces them. So do the packages of Pyodide's distribution whose files are
not on this machine, with what they need, behind all others of their version: which of them a request needs is known
before any is fetched, and one that cannot be had is that error, never another version that somebody had years ago.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernelmcp_kernel.packages import distribution, empty_wheels, pip_output, pip_policy, pip_process
from kernelmcp_kernel.packages.distribution import Listed
from kernelmcp_kernel.packages.empty_wheels import Present
from kernelmcp_kernel.packages.errors import ANOTHER_SESSION, PackageError, PackageTimeout, PackageUnreachable
from kernelmcp_kernel.packages.pip_process import Say
from kernelmcp_kernel.packages.requirements import PLAIN, Options, checked
from kernelmcp_kernel.packages.store import sha256_of, wheel_identity
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.sandbox.confine import Policy
from kernelmcp_kernel.settings import PackageSettings

_MAIN = Path(__file__).with_name("pip_main.py")
# pip's default of five, with its growing pauses, takes half a minute where there is no network.
_RETRIES = 1
# For one page of the index.
_NEWEST_SECONDS = 20
# Each brings files of the distribution whose true metadata asks for more.
_MAX_RUNS = 6


@dataclass(frozen=True)
class Request:
    """What to resolve, for a guest that has `present`. The `cached` wheels (by sha256) are for want of a network."""

    settings: PackageSettings
    requirements: list[Requirement]
    present: Mapping[str, Present]
    cached: list[tuple[str, Path]]
    max_bytes: int
    """What may lie in the folder while pip fetches."""
    options: Options = PLAIN
    from_distribution: bool = False
    """The requirements are of Pyodide's distribution, and are taken from nowhere else."""

    @property
    def names(self) -> str:
        return ", ".join(map(str, self.requirements))


@dataclass(frozen=True)
class Download:
    """The wheels of a request."""

    files: list[Path]
    complete: bool
    """Every source answered: another time would give the same."""


class DistributionNeeded(PackageUnreachable):
    """A file of Pyodide's distribution is needed, and cannot be had: no other source is asked for it."""


async def download(request: Request, folder: Path, say: Say) -> Download:
    """The wheels of a request, in folders beneath `folder`, an empty one. Raises PackageError.

    Where the index does not answer, what is cached and Pyodide's distribution are tried without it.
    """
    seconds = request.settings.install_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            return await _download(request, folder, say)
    except DistributionNeeded as error:
        raise PackageUnreachable(str(error)) from error
    except TimeoutError:
        raise PackageTimeout(
            f"{request.names}: not there after {seconds:g} s (packages.install_timeout_seconds); try it in parts"
        ) from None


async def _download(request: Request, folder: Path, say: Say) -> Download:
    if request.from_distribution:
        return Download(await _resolve_distribution(request, folder, say), complete=True)
    try:
        return Download(await _resolve(request, folder / "all", say), complete=True)
    except DistributionNeeded:
        raise
    except PackageUnreachable as error:
        unreachable = error
    say("A package source does not answer; trying the others.")
    try:
        return Download(await _resolve(request, folder / "cached", say, "--no-index"), complete=False)
    except DistributionNeeded:
        raise
    except PackageError:
        raise unreachable from None


async def _resolve_distribution(request: Request, folder: Path, say: Say) -> list[Path]:
    """All from the distribution; else what it needs from the index as well, when only that cannot be had there."""
    try:
        return await _resolve(request, folder / "listed", say, "--no-index")
    except DistributionNeeded as error:
        needed = error
    asked = {canonicalize_name(requirement.name) for requirement in request.requirements}
    wheels = await _resolve(request, folder / "all", say)
    known = distribution.distribution_hashes(request.settings)
    theirs = [wheel for wheel in wheels if _name_of(wheel) in asked]
    if any(sha256_of(wheel) not in known for wheel in theirs):
        raise needed
    return wheels


async def _resolve(request: Request, folder: Path, say: Say, *options: str) -> list[Path]:
    """Runs of pip until it chooses nothing that is still to be fetched: each time with the true metadata of more."""
    packages = {package.name: package for package in distribution.listed(request.settings)}
    listing = await asyncio.to_thread(empty_wheels.listing, list(packages.values()))
    links = await asyncio.to_thread(_at_hand, request, packages.values(), cached_too=bool(options))
    for number in range(_MAX_RUNS):
        run = folder / str(number)
        page = distribution.link_page((digest, file.as_uri()) for digest, file in links)
        wheels = await _run_pip(request, run, say, page, *options, listing=listing)
        chosen = [packages[_name_of(wheel)] for wheel in wheels if wheel.name.endswith(empty_wheels.LISTED_TAG)]
        if not chosen:
            return wheels
        fetched = await _fetch(request, run / "fetched", say, chosen)
        links += [(package.sha256, file) for package in chosen for file in fetched if file.name == package.file]
    raise PackageError(f"{request.names}: what is needed changes with all that is fetched; ask for part of it")


def _at_hand(request: Request, packages: Iterable[Listed], *, cached_too: bool) -> list[tuple[str, Path]]:
    """The files that need not be fetched, with their sha256: of the distribution, and what is cached without an index.
    Without those that are damaged."""
    known = {package.sha256 for package in packages}
    found = [(sha256, file) for sha256, file in request.cached if cached_too or sha256 in known]
    found = [(sha256, file) for sha256, file in found if sha256_of(file) == sha256]
    have = {sha256 for sha256, _ in found}
    local = [(package.sha256, distribution.local_file(request.settings, package)) for package in packages]
    return found + [(sha256, file) for sha256, file in local if file is not None and sha256 not in have]


async def _fetch(request: Request, folder: Path, say: Say, packages: list[Listed]) -> list[Path]:
    """Files of the distribution. Raises DistributionNeeded."""
    if distribution.distribution_url(request.settings).startswith("file:"):  # what it has was at hand
        raise _distribution_needed(request, packages)
    wanted = [Requirement(f"{package.name}=={package.version}") for package in packages]
    page = distribution.distribution_page(request.settings, packages)
    try:
        return await _run_pip(
            replace(request, requirements=wanted, options=Options(no_deps=True)), folder, say, page, "--no-index"
        )
    except PackageUnreachable as error:
        raise _distribution_needed(request, packages) from error


def _distribution_needed(request: Request, packages: list[Listed]) -> DistributionNeeded:
    asked = {canonicalize_name(requirement.name) for requirement in request.requirements}
    needed = [package.name for package in packages if package.name not in asked]
    own = ["it"] if len(needed) < len(packages) else []
    what = " and ".join([*own, *([f"{', '.join(needed)} (which it needs)"] if needed else [])])
    come, files, them = ("comes", "file", "it") if len(packages) == 1 else ("come", "files", "them")
    host = distribution.distribution_url(request.settings).partition("://")[2].partition("/")[0]
    why = f"{host} does not answer. Try again when it does; whoever runs the server can name a mirror or a folder"
    if not host:
        why = f"the folder for it does not have the {files}. Whoever runs the server can put {them} there"
    return DistributionNeeded(
        f"{request.names}: {what} {come} from Pyodide's distribution, and {why} (packages.pyodide_url in mcp.toml)"
    )


def _name_of(wheel: Path) -> str:
    return canonicalize_name(wheel_identity(wheel.name)[0])


async def _run_pip(
    request: Request, folder: Path, say: Say, page: str, *options: str, listing: Path | None = None
) -> list[Path]:
    """One run of pip, with a page of links as a further source, and a folder with what is known by its metadata."""
    await asyncio.to_thread(_lay_out, request, folder, page)
    arguments = [*_arguments(request, folder), *_find_links(request, folder, listing), *options]
    policy = await asyncio.to_thread(_policy, request, folder, arguments)
    status, output = await pip_process.run(policy, folder.parent, request.max_bytes, say)
    if status != 0:
        asked = [str(requirement) for requirement in request.requirements]
        raise pip_output.explain(output, pip_output.log_lines(folder / "log"), asked)
    wheels = (folder / "wheels").glob("*.whl")
    return [file for file in wheels if _name_of(file) not in request.present]


async def about_newer(request: Request, folder: Path, there: Present) -> str:
    """Whether there is a newer version of a package that the guest has, in words. The request is for it alone, and the
    folder is empty."""
    listing = await asyncio.to_thread(empty_wheels.listing, distribution.listed(request.settings))
    await asyncio.to_thread(_lay_out, request, folder, "")
    (asked,) = request.requirements
    name = checked(canonicalize_name(asked.name))
    arguments = ["index", "versions", name, *_habits(folder), *_find_links(request, folder, listing)]
    policy = await asyncio.to_thread(_policy, request, folder, [*arguments, *request.options.for_pip()[:1]])
    try:
        async with asyncio.timeout(_NEWEST_SECONDS):
            _, output = await pip_process.run(policy, folder.parent, request.max_bytes, lambda line: None)
    except TimeoutError:
        output = ""
    newest = pip_output.newest(output, name)
    if newest is None:
        return f"{there.name} {there.version} stays as it is: whether there is a newer one cannot be told now"
    if Version(newest) <= Version(there.version):
        return f"{there.name} {there.version} is the newest that there is for this sandbox"
    return f"{there.name} {there.version} stays as it is. For {newest}, the newest, {ANOTHER_SESSION}"


def _policy(request: Request, folder: Path, arguments: list[str]) -> Policy:
    """pip, isolated from the environment's Python settings and the user's own packages, and what it may do."""
    markers = json.dumps(distribution.guest_markers())
    own = [str(_MAIN), str(pip_policy.pip_folder()), markers, empty_wheels.LISTED_TAG]
    program = [sys.executable, "-I", "-B", *own, *arguments]
    settings = request.settings
    links = [*distribution.wheel_folders(settings), packages_root() / "wheels"]
    for url in filter(None, (settings.index_url, distribution.distribution_url(settings))):
        links += map(Path, pip_policy.local_paths(url))
    links += {file.parents[1] for _, file in request.cached}
    links += [folder.parents[1], packages_root() / empty_wheels.LISTINGS]  # what is fetched, and what is known
    return pip_policy.policy(program, settings, pip_policy.environment(settings, folder / "empty"), folder, links)


def _lay_out(request: Request, folder: Path, page: str) -> None:
    for name in ("empty", "wheels", "present"):
        (folder / name).mkdir(parents=True)
    constraints: list[str] = []
    for package in request.present.values():
        empty_wheels.write_present(package, folder / "present")
        constraints.append(checked(f"{canonicalize_name(package.name)}=={Version(package.version)}") + "\n")
    (folder / "constraints.txt").write_text("".join(constraints), "utf-8")
    (folder / "requirements.txt").write_text(
        "".join(f"{checked(str(wanted))}\n" for wanted in request.requirements), "utf-8"
    )
    (folder / "page.html").write_text(page, "utf-8")


def _find_links(request: Request, folder: Path, listing: Path | None) -> list[str]:
    own = [folder / name for name in ("present", "page.html")]
    links = [*own, *distribution.wheel_folders(request.settings), *([listing] if listing else [])]
    return [f"--find-links={link}" for link in links]


def _habits(folder: Path) -> list[str]:
    return [
        "--no-input",
        "--disable-pip-version-check",
        "--no-color",
        f"--retries={_RETRIES}",
        f"--log={folder / 'log'}",
        *distribution.guest_tags(),
    ]


def _arguments(request: Request, folder: Path) -> list[str]:
    return [
        "download",
        "--progress-bar=off",
        *_habits(folder),
        *request.options.for_pip(),
        f"--dest={folder / 'wheels'}",
        f"--constraint={folder / 'constraints.txt'}",
        f"--requirement={folder / 'requirements.txt'}",
    ]
