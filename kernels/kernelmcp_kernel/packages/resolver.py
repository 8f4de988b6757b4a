"""Asks pip which wheels a request needs, and for the wheels themselves.

pip knows the index, proxies, certificates and credentials that the user of this machine has configured; it resolves and
verifies hashes. `pip download` does all of it and runs no code of a package. It is a process of its own
(`pip_main`), under a time limit, confined to a folder of its own (`pip_policy`), which is where the wheels arrive.

What the guest has already joins as wheels with nothing in them that go before all others of their version: pip takes
them as they are, and so neither fetches nor replaces them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernelmcp_kernel.packages import distribution, pip_output, pip_policy
from kernelmcp_kernel.packages.cache_cap import size_of_files
from kernelmcp_kernel.packages.errors import PackageError, PackageTimeout, PackageUnreachable, over_share
from kernelmcp_kernel.packages.requirements import checked
from kernelmcp_kernel.packages.store import sha256_of, wheel_identity
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.sandbox import confine
from kernelmcp_kernel.sandbox.confine import Policy
from kernelmcp_kernel.settings import PackageSettings

Say = Callable[[str], None]
"""Told about progress, a line at a time."""

_MAIN = Path(__file__).with_name("pip_main.py")
_MAX_LINE_BYTES = 4 << 20
_MAX_OUTPUT_CHARS = 4 << 20
# pip's default of five, with its growing pauses, takes half a minute where there is no network.
_RETRIES = 1
# A fast network brings 100 MB in it.
_WATCH_SECONDS = 0.5
# Goes before every real wheel of its version, whose build tags are dates at most.
_STUB_BUILD = "99999999"


@dataclass(frozen=True)
class Present:
    """A package that the guest has. `extras` are those of its requirements that hold only for an extra."""

    name: str
    version: str
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What to resolve, for a guest that has `present`. The `cached` wheels (by sha256) are for want of a network."""

    settings: PackageSettings
    requirements: list[Requirement]
    present: Mapping[str, Present]
    cached: list[tuple[str, Path]]
    max_bytes: int
    """What may lie in the folder while pip fetches."""


async def download(request: Request, folder: Path, say: Say) -> list[Path]:
    """The wheels of a request, in folders beneath `folder`, an empty one. Raises PackageError.

    A source that does not answer is left out in a further try: first Pyodide's distribution (PyPI has most of it), then
    all that is not cached.
    """
    seconds = request.settings.install_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            return await _download(request, folder, say)
    except TimeoutError:
        names = ", ".join(map(str, request.requirements))
        raise PackageTimeout(
            f"{names}: not there after {seconds:g} s (packages.install_timeout_seconds); try again, part by part"
        ) from None


async def _download(request: Request, folder: Path, say: Say) -> list[Path]:
    page = distribution.distribution_page(request.settings)
    try:
        return await _run_pip(request, folder / "all", say, page)
    except PackageUnreachable as error:
        unreachable: PackageError = error
    say("A package source does not answer; trying the others.")
    try:
        return await _run_pip(request, folder / "index", say, None)
    except PackageUnreachable:
        pass
    except PackageError:
        unreachable = _distribution_needed(request)
    cached = await asyncio.to_thread(_cached_page, request)
    with contextlib.suppress(PackageError):
        return await _run_pip(request, folder / "cached", say, cached, "--no-index")
    raise unreachable


def _cached_page(request: Request) -> str:
    """The cached wheels as a page of links, without those that are damaged."""
    whole = [(sha256, file.as_uri()) for sha256, file in request.cached if sha256_of(file) == sha256]
    return distribution.link_page(whole)


def _distribution_needed(request: Request) -> PackageUnreachable:
    """The index answers and does not have it, so it must be what Pyodide's distribution has."""
    names = ", ".join(str(requirement) for requirement in request.requirements)
    origin = f"{names}: this (or what it needs) comes from Pyodide's distribution, and"
    host = distribution.distribution_url(request.settings).partition("://")[2].partition("/")[0]
    if not host:
        return PackageUnreachable(
            f"{origin} the folder that packages.pyodide_url names does not have the file. Whoever runs the "
            "server can put it there"
        )
    return PackageUnreachable(
        f"{origin} {host} does not answer. It cannot be had until it does; whoever runs the server can name a mirror "
        "or a folder (packages.pyodide_url in mcp.toml)"
    )


async def _run_pip(request: Request, folder: Path, say: Say, page: str | None, *options: str) -> list[Path]:
    """One run of pip, with a page of links as a further source."""
    await asyncio.to_thread(_lay_out, request, folder, page)
    arguments = _arguments(request, folder, has_page=page is not None)
    policy = await asyncio.to_thread(_policy, request, folder, [*arguments, *options])
    program, environment = confine.command(policy)
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd="/",
        env=environment,
        stdin=asyncio.subprocess.PIPE,  # its end tells pip that this process is gone
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_MAX_LINE_BYTES,
    )
    watch = asyncio.create_task(_watch_room(folder.parent, request.max_bytes, process))
    try:
        output = await _read(process, say)
        status = await process.wait()
    finally:
        watch.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0 and watch.done() and not watch.cancelled() and watch.result():
        raise over_share(request.max_bytes)
    if status != 0:
        raise pip_output.explain(output, _log_lines(folder / "log"))
    wheels = (folder / "wheels").glob("*.whl")
    return [file for file in wheels if canonicalize_name(wheel_identity(file.name)[0]) not in request.present]


def _policy(request: Request, folder: Path, arguments: list[str]) -> Policy:
    """pip, isolated from the environment's Python settings and the user's own packages, and what it may do."""
    markers = json.dumps(distribution.guest_markers())
    program = [sys.executable, "-I", "-B", str(_MAIN), str(pip_policy.pip_folder()), markers, *arguments]
    settings = request.settings
    links = [*distribution.wheel_folders(settings), packages_root() / "wheels"]
    for url in filter(None, (settings.index_url, distribution.distribution_url(settings))):
        links += map(Path, pip_policy.local_paths(url))
    links += {file.parents[1] for _, file in request.cached}
    return pip_policy.policy(program, settings, pip_policy.environment(settings, folder / "empty"), folder, links)


async def _watch_room(folder: Path, max_bytes: int, process: asyncio.subprocess.Process) -> bool:
    """End pip when more is being fetched than may be. Returns whether pip still ran."""
    while await asyncio.to_thread(size_of_files, folder) <= max_bytes:  # noqa: ASYNC110  # a folder has no event
        await asyncio.sleep(_WATCH_SECONDS)
    try:
        process.kill()
    except ProcessLookupError:
        return False
    return True


async def _read(process: asyncio.subprocess.Process, say: Say) -> str:
    lines: list[str] = []
    chars = 0
    async for raw in cast("asyncio.StreamReader", process.stdout):
        line = raw.decode("utf-8", "replace")
        chars += len(line)
        if chars < _MAX_OUTPUT_CHARS:
            lines.append(line)
        shown = pip_output.progress(line)
        if shown and _STUB_BUILD not in shown:
            say(shown)
    return "".join(lines)


def _lay_out(request: Request, folder: Path, page: str | None) -> None:
    for name in ("empty", "wheels", "present"):
        (folder / name).mkdir(parents=True)
    constraints: list[str] = []
    for package in request.present.values():
        _write_stub(package, folder / "present")
        constraints.append(checked(f"{canonicalize_name(package.name)}=={Version(package.version)}") + "\n")
    (folder / "constraints.txt").write_text("".join(constraints), "utf-8")
    (folder / "requirements.txt").write_text(
        "".join(f"{checked(str(wanted))}\n" for wanted in request.requirements), "utf-8"
    )
    if page is not None:
        (folder / "page.html").write_text(page, "utf-8")


def _write_stub(package: Present, folder: Path) -> None:
    stem = f"{canonicalize_name(package.name).replace('-', '_')}-{package.version}"
    lines = ["Metadata-Version: 2.4", f"Name: {package.name}", f"Version: {package.version}"]
    lines += [f"Requires-Dist: {plain}" for text in package.extras if (plain := _plain_dependency(text))]
    with zipfile.ZipFile(folder / f"{stem}-{_STUB_BUILD}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


def _plain_dependency(text: str) -> str | None:
    """A line of a package's metadata, which is a stranger's, written again; None for an address or nonsense."""
    try:
        found = Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None
    return None if found.url else " ".join(str(found).split())


def _arguments(request: Request, folder: Path, *, has_page: bool) -> list[str]:
    settings = request.settings
    links = [folder / "present", *distribution.wheel_folders(settings), *([folder / "page.html"] if has_page else [])]
    return [
        "download",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--no-color",
        f"--retries={_RETRIES}",
        f"--dest={folder / 'wheels'}",
        f"--log={folder / 'log'}",
        *distribution.guest_tags(),
        *(f"--find-links={link}" for link in links),
        f"--constraint={folder / 'constraints.txt'}",
        f"--requirement={folder / 'requirements.txt'}",
    ]


def _log_lines(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return file.read_text("utf-8", "replace").splitlines()
    return []
