"""One run of pip for a request: its folder, its arguments, its confined process, and the resulting wheels.

It must not know the purpose of the run, which `resolver` knows.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernelmcp_kernel.packages import distribution, empty_wheels, pip_policy
from kernelmcp_kernel.packages.cache_cap import size_of_files
from kernelmcp_kernel.packages.empty_wheels import Present
from kernelmcp_kernel.packages.failures.reasons import Reasons, told_in
from kernelmcp_kernel.packages.from_pip import line
from kernelmcp_kernel.packages.index.answers import IndexAnswers
from kernelmcp_kernel.packages.package_errors import over_share
from kernelmcp_kernel.packages.requirements import PLAIN, Options, checked
from kernelmcp_kernel.packages.sources.source_builder import Builder, Say
from kernelmcp_kernel.packages.sources.source_offers import Absent, Offers, is_source, name_of
from kernelmcp_kernel.packages.store import wheel_identity
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.sandbox import confined_process
from kernelmcp_kernel.sandbox.confined_process import Policy
from kernelmcp_kernel.settings import PackageSettings

_MAIN = Path(__file__).with_name("pip_main.py")
# pip's default of five, with growing pauses, takes half a minute without a network.
_RETRIES = 1
_MAX_LINE_BYTES = 4 << 20
# A fast network transfers 100 MB in this time.
_WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Request:
    """The requirements to resolve, for a guest that has `present`. `cached` wheels (by sha256) are for lack of a
    network."""

    settings: PackageSettings
    requirements: list[Requirement]
    present: Mapping[str, Present]
    max_bytes: int
    """Maximum size of the folder while pip downloads."""
    answers: IndexAnswers
    cached: Sequence[tuple[str, Path]] = ()
    options: Options = PLAIN
    from_distribution: bool = False
    """The requirements are from Pyodide's distribution, and no other source is used for them."""
    constraints: Mapping[str, str] = field(default_factory=dict[str, str])
    """The only versions that are allowed of some packages."""
    builder: Builder | None = None
    """None: no source is built."""
    files: Literal["fetch", "name", "size"] = "fetch"
    """`name`: nothing is downloaded, and the resulting files are empty, with the names of the chosen ones. `size`: each
    of them contains the size of the chosen one in bytes, if it is known."""

    @property
    def names_only(self) -> bool:
        """True if nothing is downloaded."""
        return self.files != "fetch"

    @property
    def names(self) -> str:
        return ", ".join(map(str, self.requirements))

    @property
    def asked(self) -> set[str]:
        """Names, without versions."""
        return {canonicalize_name(requirement.name) for requirement in self.requirements}


async def run_pip(
    request: Request,
    folder: Path,
    say: Say,
    page: str,
    *options: str,
    listing: Path | None = None,
    offers: Offers | None = None,
) -> list[Path]:
    """Run pip once, with a page of links as another source, and a folder of packages that are known by their metadata.
    Returns wheels, and sources if these may be offered. Raises PackageError, Absent."""
    await asyncio.to_thread(_lay_out, request, folder, page)
    links = [folder / "present", folder / "page.html", *distribution.wheel_folders(request.settings)]
    links += [listing] if listing else []
    arguments = [*_arguments(request, folder), *(f"--find-links={link}" for link in links), *options]
    rules = offers.write(folder) if offers else ""
    policy = await asyncio.to_thread(_policy, request, folder, arguments, rules)
    status, last_line = await _run_process(policy, folder.parent, request.max_bytes, say)
    await asyncio.to_thread(request.answers.read, folder)
    if status != 0:
        absent = offers.absent if offers else {}
        told = await asyncio.to_thread(told_in, folder, last_line)
        if told.get("kind") == "absent" and (name := line(told.get("what"))) in absent:
            raise Absent(name)
        raise Reasons(told, list(map(str, request.requirements)), request.answers.failed, absent).error()
    if offers:
        await asyncio.to_thread(offers.read, folder)
    found = [*(folder / "wheels").glob("*.whl"), *(folder / "wheels").glob("*.tar.gz")]
    return [file for file in found if file_name_of(file) not in request.present]


def file_name_of(file: Path) -> str:
    """The package name in a file's name."""
    return name_of(file) if is_source(file) else canonicalize_name(wheel_identity(file.name)[0])


def _policy(request: Request, folder: Path, arguments: list[str], rules: str = "") -> Policy:
    """The policy for pip, isolated from the environment's Python settings and the user's own packages."""
    markers = json.dumps(distribution.guest_markers())
    watch = request.answers.write(folder)
    own = [str(_MAIN), str(pip_policy.pip_folder()), markers, empty_wheels.LISTED_TAG, watch, rules, request.files]
    program = [sys.executable, "-I", "-B", *own, *arguments]
    settings = request.settings
    links = [*distribution.wheel_folders(settings), packages_root() / "wheels"]
    for url in filter(None, (settings.index_url, distribution.distribution_url(settings))):
        links += map(Path, pip_policy.local_paths(url))
    links += {file.parents[1] for _, file in request.cached}
    links += [folder.parents[1], packages_root() / empty_wheels.LISTINGS]  # downloaded packages, and known ones
    return pip_policy.policy(program, settings, pip_policy.environment(settings, folder / "empty"), folder, links)


def _lay_out(request: Request, folder: Path, page: str) -> None:
    for name in ("empty", "wheels", "present"):
        (folder / name).mkdir(parents=True)
    constraints = [checked(f"{name}=={Version(version)}") + "\n" for name, version in request.constraints.items()]
    for package in request.present.values():
        empty_wheels.write_present(package, folder / "present")
        constraints.append(checked(f"{canonicalize_name(package.name)}=={Version(package.version)}") + "\n")
    (folder / "constraints.txt").write_text("".join(constraints), "utf-8")
    (folder / "requirements.txt").write_text(
        "".join(f"{checked(str(wanted))}\n" for wanted in request.requirements), "utf-8"
    )
    (folder / "page.html").write_text(page, "utf-8")


def _arguments(request: Request, folder: Path) -> list[str]:
    return [
        "download",
        "--progress-bar=off",
        "--no-input",
        "--disable-pip-version-check",
        "--no-color",
        f"--retries={_RETRIES}",
        *distribution.guest_tags(),
        *request.options.for_pip(),
        f"--dest={folder / 'wheels'}",
        f"--constraint={folder / 'constraints.txt'}",
        f"--requirement={folder / 'requirements.txt'}",
    ]


async def _run_process(policy: Policy, folder: Path, max_bytes: int, say: Say) -> tuple[int, str]:
    """Run pip until it ends, or until `folder` exceeds `max_bytes`; return its status, and the last line of its output.
    Raises PackageCacheError."""
    program, environment = confined_process.command(policy)
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd="/",
        env=environment,
        stdin=asyncio.subprocess.PIPE,  # its end tells pip that this process has ended
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_MAX_LINE_BYTES,
    )
    watch = asyncio.create_task(_watch_room(folder, max_bytes, process))
    try:
        last = await _read(process, say)
        status = await process.wait()
    finally:
        watch.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0 and watch.done() and not watch.cancelled() and watch.result():
        raise over_share(max_bytes)
    return status, last


async def _watch_room(folder: Path, max_bytes: int, process: asyncio.subprocess.Process) -> bool:
    """Kill pip if it downloads more than allowed. Returns whether pip was still running."""
    while await asyncio.to_thread(size_of_files, folder) <= max_bytes:  # noqa: ASYNC110  # a folder has no event
        await asyncio.sleep(_WATCH_SECONDS)
    try:
        process.kill()
    except ProcessLookupError:
        return False
    return True


async def _read(process: asyncio.subprocess.Process, say: Say) -> str:
    stream = cast("asyncio.StreamReader", process.stdout)
    last = ""
    while True:
        try:
            raw = await stream.readline()
        except ValueError:  # longer than _MAX_LINE_BYTES
            continue
        if not raw:
            return last
        line = raw.decode("utf-8", "replace").strip()
        last = line or last
        shown = _progress(line)
        if shown and not empty_wheels.is_one(shown):
            say(shown)


def _progress(line: str) -> str | None:
    """The part of a line that is useful to a person, without paths of this machine; None for all other lines."""
    if match := re.match(r"WARNING: (\S+ \S+ does not provide the extra '[^']{1,100}')$", line):
        return match[1]
    if match := re.match(r"(Collecting .+?)(?: \(from .*)?$", line):
        return match[1]
    if match := re.match(
        r"(?:Downloading|Using cached|Processing) (?:\S*/)?([^/\s]+\.(?:whl|tar\.gz))(?: \((\d[^)]*)\))?(?:\s|$)", line
    ):
        return f"  {match[1]}" + (f" ({match[2]})" if match[2] else "")
    return None
