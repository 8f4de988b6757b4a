"""The host call `install`: a guest requests packages, by `%pip install`, `micropip.install` or an `import`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.jupyter.iopub import PACKAGES_TYPE, OutputForwarder
from kernelmcp_kernel.languages.python.language import LANGUAGE, prepare_meanwhile
from kernelmcp_kernel.languages.python.prepared import is_first_offer
from kernelmcp_kernel.settings import settings

if TYPE_CHECKING:
    from kernelmcp_kernel.packages.installer import Installer
    from kernelmcp_kernel.packages.outcome import Outcome, Package

# How long an import does not retry a package that could not be installed, in seconds: code often repeats imports.
_AGAIN_SECONDS = 60

# Packages with so much Python (pandas, numpy, matplotlib) get bytecode: later sessions import them in half the time.
_LARGE_BYTES = 1 << 20

OFFER = "(Typed once in a terminal, `kernelmcp setup` makes such imports take no time in a session's first cell.)"

Answer = dict[str, Any]


class Installs:
    """Answers a kernel's `install` calls. `mount` mounts the installed packages in the guest and all later guests."""

    def __init__(self, forwarder: OutputForwarder, mount: Callable[[list[dict[str, str]]], None]) -> None:
        self._forwarder = forwarder
        self._mount = mount
        self._made: Installer | None = None
        self._failed: dict[str, tuple[float, Answer]] = {}

    async def answer(self, call: dict[str, Any], request: Request) -> Answer:
        """Install the packages of a host call: {requirements} or {module}. A refusal is also an answer: {error: {name,
        text}}, or {unknown: true} if no package is known for a module. {check: true} returns {unmet}, {available: true}
        returns {available}: the modules that an import may install. With {captured: true}, pip's output is returned as
        {said} and not shown; with {quiet: true}, it is only progress."""
        cell = request.cell
        if "module" in call:
            return await self._install_for(call["module"], cell)
        if "check" in call:
            return {"unmet": self._installer().unmet()}
        if "available" in call:
            from kernelmcp_kernel.packages.distribution import importable

            return {"available": importable(settings().packages)}

        said: list[str] | None = [] if call.get("captured") is True else None

        def say(line: str) -> None:
            if call.get("quiet") is True:
                self._forwarder.tell(cell, f"{line}\n")
            elif said is not None:
                said.append(line)
            else:
                self._forwarder.say(cell, f"{line}\n")

        from kernelmcp_kernel.packages.requirements import Options

        installing = self._installer().install(call.get("requirements"), say, Options.of(call))
        return await self._answer(installing, cell, said=said)

    async def _install_for(self, module: Any, cell: Cell) -> Answer:
        """Install the package that provides a module. pip's output is progress."""
        packages = settings().packages
        if not (isinstance(module, str) and module.isidentifier() and packages.enabled and packages.auto_install):
            return {"unknown": True}
        since, failure = self._failed.get(module, (0.0, {}))
        if failure and time.monotonic() - since < _AGAIN_SECONDS:
            return failure
        before = f"`import {module}` installs:\n"

        def say(line: str) -> None:
            nonlocal before
            self._forwarder.tell(cell, f"{before}{line}\n")
            before = ""

        answer = await self._answer(self._installer().install_for(module, say), cell, imported=True)
        if "error" in answer:
            if answer["error"]["name"] == "PackageUnreachable" and (package := _pure_package(module)):
                answer["error"]["text"] += f". `%pip install {package}` asks an index, too"
            self._failed[module] = time.monotonic(), answer
        return answer

    def _installer(self) -> Installer:
        from kernelmcp_kernel.packages.installer import Installer

        if self._made is None:
            self._made = Installer(settings().packages)
        self._made.take_as_present(LANGUAGE.packages)
        return self._made

    async def _answer(
        self,
        installing: Awaitable[Outcome | None],
        cell: Cell,
        *,
        imported: bool = False,
        said: list[str] | None = None,
    ) -> Answer:
        from kernelmcp_kernel.packages.package_errors import PackageError

        try:
            outcome = await installing
        except PackageError as error:
            return {"error": {"name": type(error).__name__, "text": str(error)}}
        if outcome is None:
            return {"unknown": True}
        mounts = [package.mount() for package in outcome.installed]
        self._mount(mounts)
        text = f"{outcome}\n{OFFER}" if imported and outcome.installed and is_first_offer() else str(outcome)
        shown = {} if said is not None else {"text/plain": text}
        self._forwarder.show(cell, {PACKAGES_TYPE: outcome.as_json(), **shown})
        asyncio.get_running_loop().run_in_executor(None, _compile_meanwhile, outcome.installed)  # nobody waits for it
        return {"points": [mount["point"] for mount in mounts], "said": [*(said or []), text]}


def _compile_meanwhile(installed: Sequence[Package]) -> None:
    with suppress(OSError):  # the cache was deleted, or no process can start: the package works without
        missing = [package for package in installed if package.bytecode is None]
        large = [package.wheel.sha256 for package in missing if _python_bytes(package.folder) > _LARGE_BYTES]
        if large:
            prepare_meanwhile("--compile", ",".join(large))


def _python_bytes(folder: Path) -> int:
    return sum(file.stat(follow_symlinks=False).st_size for file in folder.rglob("*.py"))


def _pure_package(module: str) -> str | None:
    """The package of a module, if an index may also have it. Compiled packages exist nowhere but in Pyodide's
    distribution."""
    from kernelmcp_kernel.packages.distribution import listed, packages_by_import

    name = packages_by_import(settings().packages).get(module)
    return next(
        (each.name for each in listed(settings().packages) if each.name == name and "-none-any" in each.file), None
    )
