"""Starts guests that run JavaScript."""

from __future__ import annotations

import json
from functools import cache
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
        """What takes the place of `own_build`, from which no guest starts."""

    def prepare(self) -> None:
        if not (ENGINE / "stamp").is_file():
            raise BuildError("QuickJS is missing from this installation: install kernelmcp again")

    @property
    def image(self) -> str | None:
        """A state is all of QuickJS's memory, which fits a guest of the same sources."""
        return self._image

    def use_image(self, image: str) -> str | None:
        if image != self._image:
            if image != _installed() and kept_builds.find(_NAME, image, "") is None:
                return ANOTHER_BUILD
            self._image = image
        return None

    def use_own_image(self) -> None:
        self._image = None

    def keep_image(self) -> bool:
        script = entry(FOLDER)
        if self._image is None or self._image != _installed() or not script.is_relative_to(FOLDER / BUNDLE):
            return self._image is not None and kept_builds.find(_NAME, self._image, "") is not None
        parts = {"bundle": script.parent}
        return kept_builds.keep(_NAME, self._image, "", parts, lambda: _installed() == self._image)

    def mend(self, exit_code: int) -> None:
        self._image = self._own = sources(FOLDER)  # a kept build may be damaged

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        wanted, installed = self._image or self._own or own_build(), _installed()
        if wanted != installed and (kept := kept_builds.find(_NAME, wanted, "")):
            script, readable = kept / "bundle" / entry(FOLDER).name, (kept,)
        else:
            wanted, script, readable = installed or sources(FOLDER), entry(FOLDER), (FOLDER, HOST)
        self._image = wanted
        return node_guest(script, [json.dumps(file_options(sandbox))], sandbox, readable, (_COMPILED_LATER,))


@cache
def own_build() -> str:
    """The digest of the installation as this process has found it first, as for Python. Raises OSError."""
    return sources(FOLDER)


def _installed() -> str | None:
    """The digest of the installation; None while it is being replaced."""
    try:
        return sources(FOLDER)
    except OSError:
        return None


LANGUAGE = JavaScript()
