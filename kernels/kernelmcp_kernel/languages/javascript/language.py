"""Starts guests that run JavaScript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from kernelmcp_kernel.languages.interface import ANOTHER_BUILD, Language, file_options
from kernelmcp_kernel.languages.javascript.bundle import entry, sources
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.node import node_guest
from kernelmcp_kernel.runtime.places import HOST

FOLDER = Path(__file__).parent
ENGINE = FOLDER / "node_modules"
# V8 recompiles QuickJS with more optimization while the first cell waits: 70 ms of CPU time that few cells are worth.
# This budget must be used first: a loop of half a second triggers it within its own cell, and later cells benefit.
_COMPILED_LATER = "--wasm-tiering-budget=1000000000"


class JavaScript(Language):
    language_info: ClassVar[dict[str, Any]] = {
        "mimetype": "text/javascript",
        "file_extension": ".js",
        "pygments_lexer": "javascript",
    }
    host_calls = frozenset({"fetch", "tools"})

    def prepare(self) -> None:
        if not (ENGINE / "stamp").is_file():
            raise BuildError("QuickJS is missing from this installation: install kernelmcp again")

    @property
    def image(self) -> str:
        """A state is all of QuickJS's memory, which fits a guest of the same sources."""
        return sources(FOLDER)

    def use_image(self, image: str) -> str | None:
        return None if image == self.image else ANOTHER_BUILD

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        options = json.dumps(file_options(sandbox))
        return node_guest(entry(FOLDER), [options], sandbox, (FOLDER, HOST), (_COMPILED_LATER,))


LANGUAGE = JavaScript()
