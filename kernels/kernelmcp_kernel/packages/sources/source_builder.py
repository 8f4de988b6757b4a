"""From a source to a wheel: its build tools, the guest that runs the build, the check of the result, the cache.

`resolver` uses it, to get existing wheels and to have more built; it must not know pip.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from kernelmcp_kernel.packages.outcome import Package
from kernelmcp_kernel.packages.package_errors import (
    InvalidRequirement,
    PackageCacheError,
    PackageDenied,
    PackageError,
    PackageTimeout,
    PackageUnreachable,
)
from kernelmcp_kernel.packages.requirements import check_not_denied
from kernelmcp_kernel.packages.sources.build_cache import BuildCache
from kernelmcp_kernel.packages.sources.build_process import Job, NotBuilt, run_build
from kernelmcp_kernel.packages.sources.compilers import COMPILING, LEFT_OUT
from kernelmcp_kernel.packages.sources.rewrite import BadWheel, rewrite
from kernelmcp_kernel.packages.store import Store, Wheel, sha256_of
from kernelmcp_kernel.settings import PackageSettings

Say = Callable[[str], None]
"""Receives progress, a line at a time."""
Install = Callable[[list[str], Say], Awaitable[list[Package]]]
"""Returns unpacked packages. Raises PackageError."""

# Held in memory. Pure Python packages are smaller.
_MAX_WHEEL_BYTES = 64 << 20
_BACKEND = re.compile(r"[A-Za-z_][\w.]{0,200}(:[A-Za-z_][\w.]{0,200})?")


class Builder:
    """Builds sources for one session. All sessions get the results."""

    def __init__(self, settings: PackageSettings, store: Store, install: Install) -> None:
        self._settings = settings
        self._store = store
        self._install = install
        self._cache = BuildCache(store)

    def known(self) -> tuple[dict[str, Path], dict[str, str]]:
        """The built wheels, and the reasons why others were not built, by the sha256 of the source. Blocking."""
        wheels, refused = self._cache.read()
        return {source: self._store.wheel_file(wheel) for source, wheel in wheels.items()}, refused

    def built(self) -> set[str]:
        """The sha256 of the built wheels. Blocking."""
        return {wheel.sha256 for wheel in self._cache.read()[0].values()}

    async def build(self, source: Path, facts: Any, say: Say) -> Path:
        """The wheel of a source, in the cache; `facts` describe its build, as determined by `reading`. Raises NotBuilt,
        PackageDenied, PackageCacheError, PackageTimeout, OSError."""
        try:
            name, version = parse_sdist_filename(source.name)
        except InvalidSdistFilename:
            raise NotBuilt("is damaged", lasting=False) from None
        check_not_denied(self._settings, [name])
        sha256 = await asyncio.to_thread(sha256_of, source)
        say(f"Building {name} {version} from its source")
        try:
            wheel = await self._build(source, str(name), str(version), _checked(facts), say)
        except NotBuilt as error:
            if error.lasting:
                await asyncio.to_thread(self._cache.add_refusal, sha256, str(error))
            raise
        await asyncio.to_thread(self._cache.add_wheel, sha256, wheel)
        return self._store.wheel_file(wheel)

    async def _build(self, source: Path, name: str, version: str, facts: dict[str, Any], say: Say) -> Wheel:
        max_bytes = min(self._settings.max_package_mb << 20, _MAX_WHEEL_BYTES)
        requires: list[str] = facts["requires"]
        look_for_more = facts["setup_requires"] or not facts["backend"].startswith("setuptools.")
        made = await self._run(source, facts, requires, look_for_more, max_bytes, say)
        if isinstance(made, list):
            more = [each for each in made if _name(each) not in LEFT_OUT]
            if compiling := sorted(COMPILING.intersection(map(_name, more))):
                raise NotBuilt(f"needs a compiler ({', '.join(compiling)})")
            made = await self._run(source, facts, [*requires, *more], False, max_bytes, say)
        if isinstance(made, list):
            raise NotBuilt("does not build in the sandbox")
        with self._store.staging() as staging:
            try:
                file = await asyncio.to_thread(rewrite, made, name, version, staging, max_bytes)
            except BadWheel as error:
                raise NotBuilt(str(error)) from error
            return await asyncio.to_thread(self._store.add_wheel, file, "built")

    async def _run(
        self, source: Path, facts: dict[str, Any], requires: list[str], look_for_more: bool, max_bytes: int, say: Say
    ) -> bytes | list[str]:
        tools = await self._tools(requires, say)
        mounts = [package.mount() for package in tools]
        job = Job(mounts, facts["backend"], facts["paths"], look_for_more, sorted(LEFT_OUT))
        return await run_build(source, job, max_bytes)

    async def _tools(self, requires: list[str], say: Say) -> list[Package]:
        """The packages of the build backend. Raises NotBuilt."""
        if not requires:
            return []
        try:
            return await self._install(requires, lambda line: None)
        except PackageUnreachable as error:
            raise NotBuilt("cannot be built now: what that needs cannot be fetched", lasting=False) from error
        except InvalidRequirement as error:
            raise NotBuilt("is built with something that has no plain name") from error
        except (PackageCacheError, PackageDenied, PackageTimeout):
            raise  # says nothing about the source
        except PackageError as error:
            tools = ", ".join(map(_name, requires))[:100]
            raise NotBuilt(f"is built with {tools}, which is not available", lasting=False) from error


def _name(requirement: str) -> str:
    return canonicalize_name(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0])


def _checked(facts: Any) -> dict[str, Any]:
    """Check the facts from pip's process, which has read hostile text. Raises NotBuilt."""
    try:
        requires, paths = list(map(str, facts["requires"])), list(map(str, facts["paths"]))
        backend, setup_requires = str(facts["backend"]), bool(facts["setup_requires"])
    except (KeyError, TypeError):
        raise NotBuilt("is damaged", lasting=False) from None
    if not _BACKEND.fullmatch(backend) or len(requires) > 100 or len(paths) > 10:
        raise NotBuilt("is damaged", lasting=False)
    return {"requires": requires, "paths": paths, "backend": backend, "setup_requires": setup_requires}
