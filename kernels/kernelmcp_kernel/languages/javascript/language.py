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
        self._image: str | None = None
        """The build that guests are started from."""
        self._own: str | None = None
        """That of the first one, which is of the same build as this kernel process."""

    def prepare(self) -> None:
        if not (ENGINE / "stamp").is_file():
            raise BuildError("QuickJS is missing from this installation: install kernelmcp again")

    @property
    def image(self) -> str | None:
        """A state is all of QuickJS's memory, which fits a guest of the same sources."""
        return self._image

    def use_image(self, image: str) -> str | None:
        if image != self._image:
            if image != sources(FOLDER) and kept_builds.find(_NAME, image, "") is None:
                return ANOTHER_BUILD
            self._image = image
        return None

    def use_own_image(self) -> None:
        self._image = self._own

    def keep_image(self) -> bool:
        script = entry(FOLDER)
        if self._image is None or self._image != sources(FOLDER) or not script.is_relative_to(FOLDER / BUNDLE):
            return self._image is not None and kept_builds.find(_NAME, self._image, "") is not None
        parts = {"bundle": script.parent}
        return kept_builds.keep(_NAME, self._image, "", parts, lambda: sources(FOLDER) == self._image)

    def mend(self, exit_code: int) -> None:
        self._image = self._own = None  # a kept build may be damaged

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        script, readable, installed = entry(FOLDER), (FOLDER, HOST), sources(FOLDER)
        if self._image not in (None, installed) and (kept := kept_builds.find(_NAME, self._image, "")):
            script, readable = kept / "bundle" / script.name, (kept,)
        else:
            self._image = installed
        self._own = self._own or self._image
        return node_guest(script, [json.dumps(file_options(sandbox))], sandbox, readable, (_COMPILED_LATER,))


LANGUAGE = JavaScript()
