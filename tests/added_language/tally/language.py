"""How a guest that runs Tally is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from kernelmcp_kernel.languages.interface import Language
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.node import node_guest
from kernelmcp_kernel.runtime.places import HOST

FOLDER = Path(__file__).parent


class Tally(Language):
    language_info: ClassVar[dict[str, Any]] = {"mimetype": "text/plain", "file_extension": ".tally"}
    host_calls = frozenset()

    def prepare(self) -> None:
        pass

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        return node_guest(FOLDER / "main.mjs", [str(sandbox.workspace)], sandbox, (FOLDER, HOST))


LANGUAGE = Tally()
