"""`python -m kernelmcp_kernel.prepare`: creates the packages that languages/python/prepared.py finds.

Run by `kernelmcp setup` (first with --plan, which lists the files to download), and by a kernel process
(--in-background) that finds nothing for its settings, or that has installed a large package (--compile), so that the
next session imports it in half the time. A file lock prevents parallel runs. Finished steps are kept:
after an interruption, the next run continues from there. Lines on stdout report progress; kernels start without the
packages until it has finished, and retry later if it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kernelmcp_kernel.languages.python import companions, prepared
from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.languages.python.prepared import IN_IMAGE, Prepared, PreparedPackage
from kernelmcp_kernel.packages import distribution
from kernelmcp_kernel.packages.index.answers import SilentHosts
from kernelmcp_kernel.packages.installer import Installer, name_packages
from kernelmcp_kernel.packages.outcome import Package
from kernelmcp_kernel.packages.package_errors import (
    REMOVE_FIRST,
    PackageError,
    PackageNotFound,
    PackageNotSupported,
    for_operator,
)
from kernelmcp_kernel.packages.requirements import check_allowed, needed
from kernelmcp_kernel.packages.resolver import DistributionNeeded
from kernelmcp_kernel.packages.store import Store, Wheel
from kernelmcp_kernel.prepare.archive import read_archive, write_archive
from kernelmcp_kernel.prepare.guest_builds import make_bytecode, run_builder
from kernelmcp_kernel.prepare.plan import plans
from kernelmcp_kernel.runtime.build_identity import BuildError, build_id
from kernelmcp_kernel.runtime.places import PACKAGE, open_package_cache, packages_root
from kernelmcp_kernel.settings import settings

# Honest packages do not make an image larger than this.
MAX_IMAGE_BYTES = 1 << 30
# Images that are kept, for kernels with different settings.
MAX_IMAGES = 3
_NICE = 10
_DRAFT = ".preparing"
_MAX_MODULES = 500
# The exit code if nothing could be prepared, for another reason than a package that is unavailable.
UNPREPARED = 2
_MODULE = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(\.py|(\.cpython-[a-z0-9-]+|\.abi3)?\.so)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns exit code 0 if everything is available, 1 if a package is not, `UNPREPARED` for all else."""
    parser = argparse.ArgumentParser(prog="python -m kernelmcp_kernel.prepare")
    parser.add_argument("requirements", nargs="*")
    parser.add_argument("--offline", type=Path)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--plan", metavar="NAME,...")
    parser.add_argument("--compile", metavar="SHA256,...")
    parser.add_argument("--in-background", action="store_true")
    parsed = parser.parse_args(argv)
    if parsed.in_background:
        os.nice(_NICE)
    _end_with_server()
    open_package_cache()
    if parsed.compile is not None:
        return _compile(parsed.compile.split(","))
    folder = prepared.files()[0].parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=settings().folder_mode)
        return _run(parsed, folder) if parsed.plan is None else _plan(parsed)
    except OSError as error:
        _say(f"kernelmcp: {error.filename or folder} cannot be written: {error.strerror}", sys.stderr)
        return UNPREPARED


def _plan(parsed: argparse.Namespace) -> int:
    try:
        found = [asdict(each) for each in plans(parsed.requirements, parsed.plan.split(","))]
    except (PackageError, OSError) as error:
        _say(f"kernelmcp: what is prepared cannot be read: {error}", sys.stderr)
        return UNPREPARED
    sys.stdout.write(json.dumps(found))
    return 0


def _run(parsed: argparse.Namespace, folder: Path) -> int:
    """Prepare as `main` was told, alone. Raises OSError."""
    with _locked(prepared.lock_file(), wait=not parsed.in_background) as failed_at:
        if failed_at is None:
            return 0  # another process is preparing
        if parsed.in_background and (not prepared.is_to_make() or prepared.has_failed(failed_at)):
            return 0
        _delete_drafts(folder)
        try:
            missing = _prepare(parsed)
        except (PackageError, BuildError, OSError) as error:
            _say(f"kernelmcp: the packages could not be prepared: {for_operator(error)}", sys.stderr)
            _note(failed_at, failed=True)
            return UNPREPARED
        _note(failed_at, failed=missing)
        return 1 if missing else 0


@contextmanager
def _locked(file: Path, *, wait: bool) -> Iterator[Path | None]:
    """Hold the lock and give its file; None if another process has it."""
    with file.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield None
                return
            _say("waiting for another process that prepares packages")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield file


def _compile(packages: Sequence[str]) -> int:
    """Compile packages that are unpacked in the cache, unless another process does that, or one has just failed."""
    with suppress(OSError), _locked(packages_root() / "compile.lock", wait=False) as failed_at:
        if failed_at is None or prepared.has_failed(failed_at):
            return 0
        store = Store(packages_root(), settings().packages.max_cache_mb << 20)
        try:
            for sha256 in packages:
                store.room.use([sha256])
                make_bytecode(store, sha256)
        except (BuildError, PackageError, OSError):  # it is imported without
            failed_at.write_text("failed\n")
            return 1
        failed_at.write_text("")
    return 0


def _delete_drafts(folder: Path) -> None:
    """Delete the drafts of a killed process, which may have 80 MB; the owner of the lock is alone."""
    for draft in (*folder.glob(f"*{_DRAFT}"), *prepared.setup_file().parent.glob(f"*{_DRAFT}")):
        draft.unlink(missing_ok=True)


def _note(failed_at: Path, *, failed: bool) -> None:
    with suppress(OSError):  # on a full disk, the next process tries again
        failed_at.write_text("failed\n" if failed else "")


def _prepare(parsed: argparse.Namespace) -> bool:
    """Prepare packages, or those of an archive (`offline`), and write an archive (`export`). Returns whether something
    was unavailable."""
    store = Store(packages_root(), settings().packages.max_cache_mb << 20)
    installer = Installer(settings().packages, store)
    setup: prepared.Setup | None = None
    missing = False
    if parsed.offline is not None:
        _get_archived(parsed.offline, installer, store)
    elif not parsed.in_background:
        missing = _get(parsed.requirements, installer, store)
    elif missing := not _get_known(installer):
        setup = prepared.Setup()
    if parsed.export is not None:
        known = prepared.read_setup()
        write_archive(parsed.export, store, known.requirements, _wheels(known))
        _say(f"wrote {parsed.export}")
    if installer.packages and prepared.is_to_make(setup):
        _make(store, installer.packages, prepared.files(setup))
    return missing


def _get_known(installer: Installer) -> bool:
    """Get what was set up from the cache, and packages.preinstalled. Returns False if there are only the latter."""
    gone = asyncio.run(installer.take(_wheels(prepared.permitted(prepared.read_setup()))))
    if gone:
        error = PackageError(f"{_gone(gone)}. `kernelmcp setup` fetches them again")
        if not settings().packages.preinstalled:
            raise error
        _say(f"kernelmcp: {error}", sys.stderr)
    _get_preinstalled(installer)
    return not gone


def _get_preinstalled(installer: Installer) -> None:
    if settings().packages.preinstalled:
        asyncio.run(installer.install(settings().packages.preinstalled, _say))


def _wheels(setup: prepared.Setup) -> list[Wheel]:
    return [Wheel(**wheel) for wheel in setup.wheels]


def _get_archived(archive: Path, installer: Installer, store: Store) -> None:
    """Get the wheels of an archive, and keep what was set up before; of a package in both, the archive's."""
    requirements, wheels = read_archive(archive, store, settings().packages.max_package_mb << 20)
    check_allowed(settings().packages, [Requirement(text) for text in requirements])
    known = prepared.permitted(prepared.read_setup())
    every = {wheel.name: wheel for wheel in (*_wheels(known), *wheels)}
    if gone := asyncio.run(installer.take(list(every.values()))):
        raise PackageError(f"{_gone(gone)}. Run `kernelmcp setup` with a network, or with --remove, first")
    _remember((*known.requirements, *requirements), installer.packages)


def _gone(wheels: list[Wheel]) -> str:
    names = ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)
    return f"the cache no longer has packages that were set up: {names}"


def _get(requirements: Sequence[str], installer: Installer, store: Store) -> bool:
    """Get the wheels, and record them: from then on no network is needed. Returns whether some are missing."""
    known = prepared.permitted(prepared.read_setup())
    _get_again(known, installer, store)
    missing: list[str] = []
    done = list(known.requirements)
    silent: set[str] = set()
    for number, requirement in enumerate(requirements, 1):
        if requirement in silent:
            missing.append(requirement)
            continue
        _say(f"[{number}/{len(requirements)}] {requirement}")
        try:
            outcome = asyncio.run(installer.install([requirement], _say))
        except PackageError as error:
            missing.append(requirement)
            _say(f"kernelmcp: {for_operator(error)}", sys.stderr)
            if isinstance(error.__cause__, DistributionNeeded) and not silent:
                silent = _behind_silent_host(store)
                if rest := [name for name in requirements[number:] if name in silent]:
                    _say(f"kernelmcp: not tried, because they come from there, too: {', '.join(rest)}", sys.stderr)
            continue
        for note in outcome.notes:
            _say(note)
        done += outcome.requirements
        _remember(done, installer.packages)
    if len(missing) < len(requirements):
        _get_companions(installer, done)
    _get_preinstalled(installer)
    return bool(missing)


def _get_again(known: prepared.Setup, installer: Installer, store: Store) -> None:
    """Get what was set up before, as a whole, in the same versions: what the cache has lost is fetched. Raises
    PackageError; then what was fetched until then is in the cache, and the record is as it was."""
    wheels = _wheels(known)
    if not (gone := asyncio.run(installer.take(wheels))):
        return
    _say(f"{_gone(gone)}. They are fetched again")
    again = Installer(replace(settings().packages, allowed=None), store)  # some came as dependencies
    for number, wheel in enumerate(gone, 1):
        _say(f"[{number}/{len(gone)}] {wheel.name} {wheel.version}")
        try:
            asyncio.run(again.fetch_again(wheel, _say))
        except (PackageNotFound, PackageNotSupported) as error:
            raise PackageError(f"{for_operator(error)}. For other versions {REMOVE_FIRST}") from error
    fetched = {package.wheel.name: package.wheel for package in again.packages}  # one that is built has another hash
    if gone := asyncio.run(installer.take([fetched.get(wheel.name, wheel) for wheel in wheels])):
        raise PackageError(f"{_gone(gone)}; try again")
    _remember(known.requirements, installer.packages)


def _behind_silent_host(store: Store) -> set[str]:
    """The packages of Pyodide's distribution that are not cached, if its host does not answer."""
    if distribution.host(settings().packages) not in SilentHosts(packages_root()).read():
        return set()
    cached = {sha256 for sha256, _ in store.wheel_files()}
    return {each.name for each in distribution.listed(settings().packages) if each.sha256 not in cached}


def _get_companions(installer: Installer, requirements: Sequence[str]) -> None:
    """Also get what the packages need later. It was not requested: if unavailable, it does not count as missing."""
    for name in companions.every(["python", *(canonicalize_name(each.wheel.name) for each in installer.packages)]):
        if installer.version_of(name) is not None:
            continue
        try:
            asyncio.run(installer.install([name], _say))
        except PackageError as error:
            _say(f"{name}, which some functions of other packages need, is unavailable: {for_operator(error)}")
            continue
        _remember(requirements, installer.packages)


def _remember(requirements: Iterable[str], packages: list[Package]) -> None:
    wheels = [asdict(package.wheel) for package in packages]
    text = json.dumps({"requirements": list(dict.fromkeys(requirements)), "wheels": wheels}, indent=1) + "\n"
    _write(prepared.setup_file(), text.encode())


def _make(store: Store, packages: list[Package], files: tuple[Path, Path]) -> None:
    for number, package in enumerate(packages, 1):
        if store.bytecode(package.wheel.sha256) is None:
            _say(f"[{number}/{len(packages)}] compiling {package.wheel.name} {package.wheel.version}")
            try:
                make_bytecode(store, package.wheel.sha256)
            except BuildError as error:
                _say(f"kernelmcp: {package.wheel.name} has no bytecode: {error}", sys.stderr)
    listed = [_listed(store, package, {each.wheel.name for each in packages}) for package in packages]
    image, listing = files
    identity = f"{build_id(PACKAGE)}+{image.stem}"
    every = [Requirement(text) for text in settings().packages.preinstalled]
    name_packages(every, settings().packages)
    prepared_now = Prepared(image, identity, (), tuple(listed))
    needed = prepared_now.with_needs(canonicalize_name(requirement.name) for requirement in every)
    imported = [name for package in needed for name in package.modules]
    there = {module for package in listed for module in package.modules}
    imported += [name for name in IN_IMAGE if name.partition(".")[0] in there]
    roots = {name.partition(".")[0] for name in imported}
    in_image = [package.name for package in listed if not roots.isdisjoint(package.modules)]
    _say(f"making an image with {', '.join(in_image) or 'no packages'}")
    mounts = json.dumps([package.mount() for package in listed])
    _write_image(image, identity, mounts, imported)
    packages_json = [asdict(package) for package in listed]
    _write(listing, json.dumps({"build_id": identity, "in_image": in_image, "packages": packages_json}).encode())
    _delete_old_images(image.parent)
    _say(f"{len(listed)} {'package is' if len(listed) == 1 else 'packages are'} prepared")


def _delete_old_images(folder: Path) -> None:
    """Keep only the newest: each has 80 MB, and each change of the settings or the installation creates another."""
    listings = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for listing in listings[MAX_IMAGES:]:
        listing.unlink(missing_ok=True)
        listing.with_suffix(".img").unlink(missing_ok=True)


def _write_image(image: Path, identity: str, mounts: str, imported: list[str]) -> None:
    base = plain_image()
    arguments = [identity, str(base.path), base.build_id, mounts, json.dumps(imported)]
    try:
        made = run_builder("build_image.mjs", MAX_IMAGE_BYTES, arguments, base)
        _write(image, made)
    except BuildError as error:
        if not imported:
            raise
        _say(f"kernelmcp: they are not in the image, and take longer to import: {error}", sys.stderr)
        _write_image(image, identity, mounts, [])


def _listed(store: Store, package: Package, known: set[str]) -> PreparedPackage:
    wheel, bytecode = package.wheel, store.bytecode(package.wheel.sha256)
    return PreparedPackage(
        name=wheel.name,
        version=wheel.version,
        sha256=wheel.sha256,
        file=wheel.file,
        source=wheel.source,
        folder=str(package.folder),
        point=package.point,
        bytecode=str(bytecode) if bytecode else None,
        modules=tuple(_modules_of(package.folder)),
        needs=tuple(name for each in needed(package.requires()) if (name := canonicalize_name(each.name)) in known),
    )


def _modules_of(folder: Path) -> list[str]:
    """The top-level modules of an unpacked package, except private ones. Its files are hostile: only names are read."""
    found = [match[1] for entry in folder.iterdir() if (match := _MODULE.fullmatch(entry.name)) and _is_module(entry)]
    return sorted(set(found))[:_MAX_MODULES]


def _is_module(entry: Path) -> bool:
    return entry.is_file() or next(entry.glob("*.py"), None) is not None or next(entry.glob("*/*.py"), None) is not None


def _write(file: Path, content: bytes) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}{_DRAFT}")
    draft.write_bytes(content)
    os.replace(draft, file)


def _say(line: str, stream: TextIO | None = None) -> None:
    """Print one line, whatever a package has put into it: it goes to a terminal, or to the server's log."""
    text = "".join(each if each.isprintable() else " " for each in line)
    print(text, file=stream or sys.stdout, flush=True)


def _end_with_server() -> None:
    """End when the server, or `kernelmcp setup`, ends: nobody else waits for the result."""
    server = int(os.environ.get("JPY_PARENT_PID") or 0)
    if server:
        threading.Thread(target=_watch, args=(server,), daemon=True).start()


def _watch(server: int) -> None:
    while True:
        time.sleep(1)
        try:
            os.kill(server, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C at the terminal of `kernelmcp setup` is that command's
    sys.exit(main())
