"""Installs packages for one guest: parses, resolves, downloads, verifies, unpacks, and remembers them.

It must not know messages or guests.

It is long because an installation is one process: requested, present, prepared, cached or downloaded packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernelmcp_kernel.languages.python import companions
from kernelmcp_kernel.languages.python.prepared import Prepared, PreparedPackage, find_prepared
from kernelmcp_kernel.packages import distribution, empty_wheels
from kernelmcp_kernel.packages.empty_wheels import Present
from kernelmcp_kernel.packages.index.answers import IndexAnswers
from kernelmcp_kernel.packages.outcome import Outcome, Package, came_with
from kernelmcp_kernel.packages.package_errors import (
    ANOTHER_SESSION,
    PackageConflict,
    PackageError,
    PackageInvalid,
    PackageNotFound,
    PackageNotSupported,
    PackageTimeout,
)
from kernelmcp_kernel.packages.pip_run import Request
from kernelmcp_kernel.packages.requirements import (
    PLAIN,
    Options,
    check_allowed,
    check_enabled,
    check_not_denied,
    check_pins,
    holds,
    is_allowed,
    is_exact,
    parse_all,
    parse_pinned,
    pin_key,
    resolution_key,
    unmet,
    without_versions,
)
from kernelmcp_kernel.packages.resolver import Planned, download, newest_version, planned
from kernelmcp_kernel.packages.sources.source_builder import Builder, Say
from kernelmcp_kernel.packages.standins import wheels as standins
from kernelmcp_kernel.packages.standins.known_packages import as_packages, check_useful
from kernelmcp_kernel.packages.store import Store, Wheel
from kernelmcp_kernel.runtime.places import packages_root
from kernelmcp_kernel.settings import PackageSettings

_MAX_UNMET = 50


class Installer:
    """The packages of one session's guest. They survive the guest."""

    def __init__(self, settings: PackageSettings, store: Store | None = None) -> None:
        self._settings = settings
        self._store = store or Store(packages_root(), settings.max_cache_mb << 20)
        self._packages: dict[str, Package] = {}
        self._present: dict[str, Present] = {}
        self._preinstalled: dict[str, Present] = {}
        self._whole = True  # all dependencies of the packages are present
        self._one_at_a_time = asyncio.Lock()
        self._tools = Store(self._store.root, settings.max_cache_mb << 20)  # with its own leases
        self._builder = Builder(settings, self._store, self._for_build)

    @property
    def packages(self) -> list[Package]:
        """The packages installed so far."""
        return list(self._packages.values())

    def version_of(self, name: str) -> str | None:
        """The version of a present package; None if it is not present."""
        present = self._present.get(canonicalize_name(name))
        return present.version if present else None

    def take_as_present(self, packages: Iterable[PreparedPackage]) -> None:
        """Record packages that the guest has from its start, so that they are not installed again. They replace those
        of the guest before it."""
        former = self._preinstalled.keys() - self._packages.keys()
        self._preinstalled = {package.name: Present(package.name, package.version) for package in packages}
        if self._present:
            own = {name: present for name, present in self._present.items() if name not in former}
            self._present = self._preinstalled | own

    async def take(self, wheels: list[Wheel]) -> list[Wheel]:
        """Install exactly these wheels from the cache, or none of them: return those that it no longer has. Raises
        PackageError."""
        await self._find_present()
        found = [(wheel, await self._from_cache([wheel])) for wheel in wheels]
        gone = [wheel for wheel, packages in found if packages is None]
        for package in chain.from_iterable(packages or [] for _, packages in found if not gone):
            self._record(package, await asyncio.to_thread(package.as_present))
        return gone

    async def fetch_again(self, wheel: Wheel, say: Say) -> None:
        """Install this version of a package that the cache has lost, without dependencies. Raises PackageError."""
        await self._install([Requirement(f"{wheel.name}=={wheel.version}")], say, Options(no_deps=True))

    async def _find_present(self) -> None:
        if not self._present:
            self._present = await asyncio.to_thread(empty_wheels.guests_own) | self._preinstalled | self._present

    def _record(self, package: Package, present: Present) -> None:
        name = canonicalize_name(package.wheel.name)
        self._packages[name], self._present[name] = package, present

    async def install_for(self, module: str, say: Say) -> Outcome | None:
        """Install the package of Pyodide's distribution that provides a module, in the distribution's version; one
        that `companions` knows from any source. None if there is no such package. Raises PackageError."""
        prepared = await asyncio.to_thread(find_prepared)
        if prepared and (name := prepared.package_of(module)) and await self._is_at_hand(prepared, Requirement(name)):
            return await self._install([Requirement(name)], say, from_distribution=True)
        name = distribution.packages_by_import(self._settings).get(module)
        listed = distribution.listed(self._settings)
        version = next((each.version for each in listed if each.name == name), None)
        if version is None:  # not a wheel, so it is not installed
            known = companions.on_index(module)
            return await self._install([Requirement(known)], say) if known else None
        return await self._install([Requirement(f"{name}=={version}")], say, from_distribution=True)

    async def install(self, asked: Any, say: Say, options: Options = PLAIN) -> Outcome:
        """Install these requirements (a list of texts, hostile) and their dependencies. Raises PackageError."""
        pinned = parse_pinned(asked)
        requirements = [requirement for requirement, _ in pinned]
        check_enabled(self._settings)
        # A session that is restored has dependencies by these names, in these versions.
        known = await asyncio.to_thread(self._dependencies_in, requirements) if options.no_deps else []
        said = name_packages([each for each in requirements if each not in known], self._settings)
        pins = {str(canonicalize_name(requirement.name)): hashes for requirement, hashes in pinned if hashes}
        if not options.no_deps:  # no checks for a session that is restored as it was
            check_useful(requirements, self._present)
        outcome = await self._install(requirements, say, options, pins=pins, known=known)
        return replace(outcome, notes=(*said, *outcome.notes), requirements=tuple(map(str, requirements)))

    async def plan(self, asked: Any) -> list[Planned]:
        """The files that `install` would download for these requirements, with dependencies. Raises PackageError."""
        requirements = [requirement for requirement, _ in parse_pinned(asked)]
        check_enabled(self._settings)
        name_packages(requirements, self._settings)
        check_useful(requirements, self._present)
        check_allowed(self._settings, requirements)
        wanted, _ = self._sort_out(requirements)
        if not wanted:
            return []
        recalled = await asyncio.to_thread(self._recall, wanted, PLAIN)
        cached = {sha256 for sha256, _ in await asyncio.to_thread(self._store.wheel_files)}
        if recalled is not None and all(wheel.sha256 in cached for wheel in recalled):
            return [Planned(wheel.name, wheel.version, "cache", None, False) for wheel in recalled]
        builder = self._builder if self._settings.build_from_source else None
        with self._store.staging() as staging:
            return await planned(self._request(wanted, self._present, builder=builder), staging)

    def unmet(self) -> list[str]:
        """Missing dependencies of installed packages; only packages installed without dependencies have any."""
        versions = {name: present.version for name, present in self._present.items()}
        packages = self._packages.values()
        lines = [unmet(f"{each.wheel.name} {each.wheel.version}", each.requires(), versions) for each in packages]
        return list(chain.from_iterable(lines))[:_MAX_UNMET]

    async def _install(
        self,
        requirements: list[Requirement],
        say: Say,
        options: Options = PLAIN,
        *,
        from_distribution: bool = False,
        pins: Mapping[str, frozenset[str]] = {},  # never modified
        known: Sequence[Requirement] = (),
    ) -> Outcome:
        check_allowed(self._settings, [each for each in requirements if each not in known])
        async with self._one_at_a_time:
            await self._find_present()
            wanted, there = self._sort_out(requirements)
            own = [self._packages.get(canonicalize_name(present.name)) for present in there]
            check_pins(pins, [package.identity for package in own if package is not None])
            notes = await self._about_upgrades(there, options) if options.upgrade else []
            if not wanted:
                return Outcome([], there, tuple(notes))
            new: list[Package] = []
            try:
                packages, said = await self._fetch_with_companions(wanted, say, options, from_distribution, pins)
                check_pins(pins, [package.identity for package in packages])
                there_now = [await asyncio.to_thread(package.as_present) for package in packages]
                if not options.no_deps:
                    await asyncio.to_thread(lambda: self._store.remember_asked(came_with(wanted, packages)))
                new = packages
            finally:
                used = [package.wheel.sha256 for package in (*self._packages.values(), *new)]
                await asyncio.to_thread(self._store.room.use_only, used)
                await asyncio.to_thread(self._tools.room.end)
            # Last, with nothing to wait for until they are mounted: an interrupt leaves no package that is not.
            for package, present in zip(packages, there_now, strict=True):
                self._record(package, present)
            self._whole = self._whole and not options.no_deps
            self._remember_whole()
            notes += [each.note for each in packages if each.note]
            return Outcome(packages, there, (*notes, *said))

    async def _about_upgrades(self, there: list[Present], options: Options) -> list[str]:
        """The notes for a request for the newest versions of present packages, found in the time of an installation."""
        notes: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.install_timeout_seconds):
                for package in there:
                    notes.append(await self._about_newest(package, options))  # noqa: PERF401  # those in time are kept
        return [*notes, *map(_not_known, there[len(notes) :])]

    async def _about_newest(self, there: Present, options: Options) -> str:
        """The note for a request for the newest version of a present package."""
        name = canonicalize_name(there.name)
        in_every_session = name not in self._preinstalled or bool(self._settings.preinstalled)
        if name not in self._packages and in_every_session:
            return f"{there.name} {there.version} comes with the sandbox, and stays as it is"
        request = self._request([], await asyncio.to_thread(empty_wheels.guests_own), options=options)
        with self._store.staging() as staging:
            newest = await newest_version(request, name, staging / "newest")
        if newest is None:
            return _not_known(there)
        if Version(newest) <= Version(there.version):
            return f"{there.name} {there.version} is the newest available for this sandbox"
        return f"{there.name} {there.version} stays as it is. For {newest}, the newest, {ANOTHER_SESSION}"

    async def _for_build(self, requires: list[str], say: Say) -> list[Package]:
        """The packages for a build: separate from this session's, and wheels only. Uses the newest versions, which are
        cached, if they satisfy the requirements."""
        settings = replace(self._settings, allowed=None, build_from_source=False)
        wanted, newest = parse_all(requires), Installer(settings, self._tools)
        with suppress(PackageConflict, PackageNotFound, PackageNotSupported):
            found = (await newest._install(parse_all([without_versions(each) for each in wanted]), say)).installed
            if all(holds(each, newest.version_of(each.name) or "0") for each in wanted):
                return found
        return (await Installer(settings, self._tools)._install(wanted, say)).installed

    def _sort_out(self, requirements: list[Requirement]) -> tuple[list[Requirement], list[Present]]:
        """The requirements to install, and the packages that are already present."""
        wanted: list[Requirement] = []
        there: list[Present] = []
        for requirement in requirements:
            present = self._present.get(canonicalize_name(requirement.name))
            if present is None or requirement.extras:
                wanted.append(requirement)
            elif holds(requirement, present.version):
                there.append(present)
            else:
                raise PackageConflict(
                    f"{requirement}: this session has {present.name} {present.version}, and an installed package stays "
                    f"as it is. For another version {ANOTHER_SESSION}"
                )
        return wanted, there

    async def _fetch_with_companions(
        self,
        wanted: list[Requirement],
        say: Say,
        options: Options,
        from_distribution: bool,
        pins: Mapping[str, frozenset[str]],
    ) -> tuple[list[Package], tuple[str, ...]]:
        """Like `_fetch`, plus the small companions of the requirements, if these are available too."""
        until = asyncio.get_running_loop().time() + self._settings.install_timeout_seconds
        if not (options.no_deps or pins) and (more := await asyncio.to_thread(self._small_companions, wanted)):
            try:
                return await self._fetch([*wanted, *more], say, options, from_distribution, until)
            except PackageTimeout:
                raise  # there is no time left
            except PackageError:
                pass
        return await self._fetch(wanted, say, options, from_distribution, until)

    def _small_companions(self, wanted: list[Requirement]) -> list[Requirement]:
        """The versions that are prepared, or in Pyodide's distribution; no session should wait for others."""
        names: set[str] = {canonicalize_name(requirement.name) for requirement in wanted}
        if not (small := [name for name in companions.small(names) if name not in {*names, *self._present}]):
            return []
        prepared = find_prepared()
        versions = {each.name: each.version for each in prepared.packages} if prepared else {}
        if not names <= versions.keys():
            versions = self._at_hand(names)
        found = [Requirement(f"{name}=={versions[name]}") for name in small if name in versions]
        with suppress(PackageError):
            check_allowed(self._settings, found)
            return found
        return []

    def _at_hand(self, names: set[str]) -> dict[str, str]:
        """Versions of the distribution's cached packages, or of all its packages if these packages are downloaded."""
        cached = {canonicalize_name(distribution.wheel_name(file.name)) for _, file in self._store.wheel_files()}
        settings, is_asked = self._settings, not names <= cached
        is_remote = not distribution.is_folder(settings)
        return {
            each.name: each.version
            for each in distribution.listed(settings)
            if each.name in cached or (is_asked and (is_remote or distribution.local_file(settings, each)))
        }

    async def _fetch(
        self, wanted: list[Requirement], say: Say, options: Options, from_distribution: bool, until: float
    ) -> tuple[list[Package], tuple[str, ...]]:
        """Resolve and unpack, from prepared or cached packages if possible; return the packages, and notes. What takes
        time, pip, ends at `until` (the loop's time)."""
        store = self._store
        prepared = await asyncio.to_thread(find_prepared) if not (options.pre or options.upgrade) else None
        wheels = self._of_prepared(prepared, wanted, options) if prepared else None
        if wheels and (packages := await self._from_cache(wheels)):
            return packages, ()
        wheels = None if from_distribution else await asyncio.to_thread(self._recall, wanted, options)
        if wheels is not None and (packages := await self._from_cache(wheels)):
            return packages, ()
        builder = self._builder if self._settings.build_from_source else None
        built: set[str] = set() if builder else await asyncio.to_thread(self._builder.built)
        built |= standins.hashes(distribution.listed(self._settings))
        cached = [each for each in await asyncio.to_thread(store.wheel_files) if each[0] not in built]
        request = self._request(
            wanted, self._present, cached=cached, options=options, from_distribution=from_distribution, builder=builder
        )
        with store.staging() as staging:
            found = await download(request, staging, say, until)
            wheels = [await asyncio.to_thread(store.add_wheel, file, "pypi") for file in found.files]
        wheels = await asyncio.to_thread(self._with_sources, wheels)
        packages = await self._from_cache(wheels)
        if packages is None:
            raise PackageInvalid(f"{', '.join(map(str, wanted))}: what was fetched cannot be read back; try again")
        doubts = request.answers.doubts(request.asked)  # the next session should see these, too
        if found.complete and not from_distribution and not doubts:
            key = resolution_key(self._settings, wanted, self._present.values(), options)
            await asyncio.to_thread(store.remember, key, wheels)
        return packages, (*found.notes, *doubts)

    def _request(self, wanted: list[Requirement], present: Mapping[str, Present], **more: Any) -> Request:
        answers = IndexAnswers(self._store.root)
        return Request(self._settings, wanted, present, self._store.room.max_staged_bytes, answers, **more)

    def _of_prepared(self, prepared: Prepared, wanted: list[Requirement], options: Options) -> list[Wheel] | None:
        """The wheels of all requirements with their dependencies, if prepared in versions that fit."""
        by_name = {package.name: package for package in prepared.packages}
        names = [canonicalize_name(requirement.name) for requirement in wanted]
        for name, requirement in zip(names, wanted, strict=True):
            if name not in by_name or requirement.extras or not holds(requirement, by_name[name].version):
                return None
        packages = [by_name[name] for name in names] if options.no_deps else prepared.with_needs(names)
        there = self._present
        if any(each.name in there and there[each.name].version != each.version for each in packages):
            return None
        new = [each for each in packages if each.name not in there]
        return [Wheel(each.name, each.version, each.sha256, each.file, each.source) for each in new]

    async def _is_at_hand(self, prepared: Prepared, wanted: Requirement) -> bool:
        """Return whether this package and what it needs are prepared, fit this session, and are still in the cache."""
        await self._find_present()
        wheels = self._of_prepared(prepared, [wanted], PLAIN)
        return wheels is not None and await self._from_cache(wheels) is not None

    def _recall(self, wanted: list[Requirement], options: Options) -> list[Wheel] | None:
        """An earlier resolution: of exactly this request, or of each requirement alone if these fit together."""
        found = self._remembered(wanted, self._present, options)
        if found is not None:
            return found
        own = {name: present for name, present in self._present.items() if name not in self._packages}
        chosen: dict[str, Wheel] = {}
        for requirement in wanted:
            part = self._remembered([requirement], own, options)
            if part is None or any(chosen.setdefault(wheel.name, wheel) != wheel for wheel in part):
                return None
        there = {name: package.wheel for name, package in self._packages.items()}
        if any(there.get(name, wheel) != wheel for name, wheel in chosen.items()):
            return None
        return [wheel for name, wheel in chosen.items() if name not in there]

    def _remembered(
        self, wanted: list[Requirement], present: Mapping[str, Present], options: Options
    ) -> list[Wheel] | None:
        key = resolution_key(self._settings, wanted, present.values(), options)
        # A resolution with exact versions only never expires: files of a release do not change.
        exact = {canonicalize_name(requirement.name) for requirement in wanted if is_exact(requirement)}
        found = self._store.resolution(key, None)
        if found is not None and {canonicalize_name(wheel.name) for wheel in found} <= exact:
            return found
        return self._store.resolution(key, self._settings.resolution_ttl_seconds)

    async def _from_cache(self, wheels: list[Wheel]) -> list[Package] | None:
        """Unpack the wheels; None if the cache lacks any. Raises PackageDenied, PackageInvalid, PackageTooLarge."""
        check_not_denied(self._settings, [wheel.name for wheel in wheels])
        max_bytes = self._settings.max_package_mb * 2**20
        packages: list[Package] = []
        await asyncio.to_thread(self._store.room.use, [wheel.sha256 for wheel in wheels])
        for wheel in wheels:
            folder = await asyncio.to_thread(self._store.unpack, wheel, max_bytes)
            if folder is None:
                return None
            packages.append(Package(wheel, folder, self._store.bytecode(wheel.sha256)))
        return packages

    def _with_sources(self, wheels: list[Wheel]) -> list[Wheel]:
        local = {name for name, _, _ in distribution.local_wheels(self._settings)}
        sources = dict.fromkeys(self._builder.built(), "built")
        sources |= dict.fromkeys(distribution.distribution_hashes(self._settings), "pyodide")
        sources |= dict.fromkeys(standins.hashes(distribution.listed(self._settings)), "stand-in")
        found = [(wheel, "local" if wheel.file in local else "pypi") for wheel in wheels]
        return [Wheel(w.name, w.version, w.sha256, w.file, sources.get(w.sha256, own)) for w, own in found]

    def _dependencies_in(self, pinned: list[Requirement]) -> list[Requirement]:
        """The pins of packages that came with a request that is allowed, and whose names are pinned here or present: a
        session that is restored requests each of its packages."""
        there = {*self._packages, *self._preinstalled, *(canonicalize_name(each.name) for each in pinned)}
        requests_of = {each: [request.split() for request in self._store.asked(pin_key(each))] for each in pinned}
        return [
            each
            for each, requests in requests_of.items()
            if any(there.issuperset(names) and is_allowed(self._settings, names) for names in requests)
        ]

    def _remember_whole(self) -> None:
        """A session that is restored requests exactly its own packages: save the resolution for that."""
        wheels = [package.wheel for package in self._packages.values()]
        exact = [Requirement(f"{wheel.name}=={wheel.version}") for wheel in wheels]
        own = {name: present for name, present in self._present.items() if name not in self._packages}
        self._store.remember(resolution_key(self._settings, exact, own.values(), Options(no_deps=True)), wheels)
        if self._whole:
            self._store.remember(resolution_key(self._settings, exact, own.values(), PLAIN), wheels)


def name_packages(requirements: list[Requirement], settings: PackageSettings) -> list[str]:
    """Replace the names of modules (cv2, sklearn, serial) in requirements by those of their packages; return notes
    about it. Raises InvalidRequirement."""
    packages = distribution.packages_by_import(settings)
    by_name = {canonicalize_name(module): package for module, package in packages.items()}
    for requirement in requirements:
        if (name := canonicalize_name(requirement.name)) not in packages.values():
            requirement.name = by_name.get(name, requirement.name)
    return as_packages(requirements)


def _not_known(there: Present) -> str:
    return f"{there.name} {there.version} stays as it is: it is unknown now whether there is a newer one"
