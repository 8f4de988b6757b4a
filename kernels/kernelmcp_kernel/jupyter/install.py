"""The host call `install`: a guest asks for packages, by `%pip install` or `micropip.install`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelmcp_kernel.guests.cell import Cell
from kernelmcp_kernel.jupyter.iopub import PACKAGES_TYPE, OutputForwarder
from kernelmcp_kernel.languages.python.image import find_image
from kernelmcp_kernel.settings import settings

if TYPE_CHECKING:
    from kernelmcp_kernel.packages.installer import Installer


class Installs:
    """Answers a kernel's `install` calls. `mount` shows the guest, and those that follow it, what was installed."""

    def __init__(self, forwarder: OutputForwarder, mount: Callable[[list[dict[str, str]]], None]) -> None:
        self._forwarder = forwarder
        self._mount = mount
        self._installer: Installer | None = None

    async def answer(self, call: dict[str, Any], cell: Cell) -> dict[str, Any]:
        """Install what a host call asks for. A refusal is an answer, too: {error: {name, text}}."""
        from kernelmcp_kernel.packages.errors import PackageError
        from kernelmcp_kernel.packages.installer import Installer

        if self._installer is None:
            self._installer = Installer(settings().packages)
            self._installer.take_as_present(find_image().packages)

        def say(line: str) -> None:
            self._forwarder.say(cell, f"{line}\n")

        try:
            outcome = await self._installer.install(call.get("requirements"), say)
        except PackageError as error:
            return {"error": {"name": type(error).__name__, "text": str(error)}}
        mounts = [package.mount() for package in outcome.installed]
        self._mount(mounts)
        self._forwarder.show(cell, {PACKAGES_TYPE: outcome.as_json(), "text/plain": str(outcome)})
        return {"points": [mount["point"] for mount in mounts]}
