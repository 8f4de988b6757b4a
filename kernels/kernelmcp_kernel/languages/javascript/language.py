"""Starts guests that run JavaScript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from kernelmcp_kernel.languages import kept_builds
from kernelmcp_kernel.languages.interface import ANOTHER_BUILD, Language, file_options
from kernelmcp_kernel.languages.javascript.bundle import BUNDLE, entry, sources
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
_NAME = "javascript"


class JavaScript(Language):
    language_info: ClassVar[dict[str, Any]] = {
        "mimetype": "text/javascript",
        "file_extension": ".js",
        "pygments_lexer": "javascript",
    }
    host_calls = frozenset({"fetch", "tools"})

    def __init__(self) -> None:
        self._kept: tuple[str, Path] | None = None
        """The id and the folder of the build that guests are started from, if it is not the installed one."""

    def prepare(self) -> None:
        if not (ENGINE / "stamp").is_file():
            raise BuildError("QuickJS is missing from this installation: install kernelmcp again")

    @property
    def image(self) -> str:
        """A state is all of QuickJS's memory, which fits a guest of the same sources."""
        return self._kept[0] if self._kept else sources(FOLDER)

    def use_image(self, image: str) -> str | None:
        if image == self.image:
            return None
        if image == sources(FOLDER):
            self._kept = None
        elif folder := kept_builds.find(_NAME, image, ""):
            self._kept = (image, folder)
        else:
            return ANOTHER_BUILD
        return None

    def keep_image(self) -> None:
        script = entry(FOLDER)
        if not self._kept and script.is_relative_to(FOLDER / BUNDLE):
            kept_builds.keep(_NAME, self.image, "", {"bundle": script.parent})

    def mend(self, exit_code: int) -> None:
        self._kept = None

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        script, readable = entry(FOLDER), (FOLDER, HOST)
        if self._kept:
            folder = self._kept[1]
            script, readable = folder / "bundle" / script.name, (folder,)
        return node_guest(script, [json.dumps(file_options(sandbox))], sandbox, readable, (_COMPILED_LATER,))


LANGUAGE = JavaScript()
