"""`python -m kernelmcp_kernel.packages.preinstalled`: the packages that every session has, and a boot image with them.

Run by a kernel process that finds no image for its settings. A file lock keeps others from doing the same meanwhile.
Importing a package runs its code, so the image is made by a process that is confined as a guest is. What goes wrong is
said on stderr; kernels then start without the packages, and try again after a pause.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from kernelmcp_kernel.languages.python.image import Preinstalled, baked_files, find_baked
from kernelmcp_kernel.packages.errors import PackageError
from kernelmcp_kernel.packages.installer import Installer
from kernelmcp_kernel.runtime.directory import PrivateDirectory
from kernelmcp_kernel.runtime.guest_process import spawn_builder
from kernelmcp_kernel.runtime.identity import BuildError, build_id
from kernelmcp_kernel.runtime.node import node_launch
from kernelmcp_kernel.runtime.places import HOST, INSIDE, PACKAGE, RUNTIME, packages_root
from kernelmcp_kernel.settings import settings

# After a failure no kernel tries again so soon: a start must not wait for the network each time.
RETRY_SECONDS = 300.0
# It takes ten; a package may also never come back from its import.
BUILD_SECONDS = 120.0
# An image larger than this did not come from honest packages.
MAX_IMAGE_BYTES = 1 << 30


def main() -> int:
    """Exit code 0 when the image is there."""
    _end_with_server()
    image, listing = baked_files()
    image.parent.mkdir(parents=True, exist_ok=True, mode=settings().folder_mode)
    with _locked(image.with_suffix(".lock")) as failed_at:
        if find_baked() is not None:
            return 0
        if time.time() - failed_at.stat().st_mtime < RETRY_SECONDS and failed_at.stat().st_size:
            return 1
        try:
            _bake(image, listing)
        except (PackageError, BuildError, OSError) as error:
            sys.stderr.write(f"kernelmcp: the preinstalled packages are not there: {error}\n")
            failed_at.write_text("failed\n")
            return 1
    return 0


@contextmanager
def _locked(file: Path) -> Iterator[Path]:
    with file.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield file


def _bake(image: Path, listing: Path) -> None:
    outcome = asyncio.run(Installer(settings().packages).install(settings().packages.preinstalled, _say))
    packages = [
        Preinstalled(package.wheel.name, package.wheel.version, str(package.folder), package.point)
        for package in outcome.installed
    ]
    identity = f"{build_id(PACKAGE)}+{image.stem}"
    sandbox = PrivateDirectory()
    try:
        made = sandbox.tmp / "image"
        _build([package.mount() for package in packages], sandbox, made, identity)
        draft = image.with_suffix(f".{os.getpid()}.building")
        draft.write_bytes(_read_image(made))
        os.replace(draft, image)
    finally:
        sandbox.close()
    draft = listing.with_suffix(f".{os.getpid()}.building")
    draft.write_text(json.dumps({"build_id": identity, "packages": [asdict(package) for package in packages]}), "utf-8")
    os.replace(draft, listing)


def _build(mounts: list[dict[str, str]], sandbox: PrivateDirectory, file: Path, identity: str) -> None:
    with tempfile.TemporaryFile() as errors:
        arguments = [str(RUNTIME), str(INSIDE), str(file), identity, json.dumps(mounts)]
        readable = (RUNTIME, HOST, INSIDE, packages_root() / "unpacked")
        launch = node_launch(HOST / "build.mjs", arguments, readable, (sandbox.tmp,))
        pid = spawn_builder(sandbox, launch, MAX_IMAGE_BYTES >> 20, errors.fileno())
        killer = threading.Timer(BUILD_SECONDS, os.kill, (pid, signal.SIGKILL))
        killer.start()
        _, status = os.waitpid(pid, 0)
        killer.cancel()
        errors.seek(0)
        said = errors.read(20_000).decode("utf-8", "replace").strip()
    if status != 0:
        raise BuildError(f"a boot image with them could not be made: {said[-2000:]}")


def _read_image(file: Path) -> bytes:
    """Read the image that a hostile process made, without following links. Raises BuildError when it is too large."""
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(MAX_IMAGE_BYTES + 1)
    if len(data) > MAX_IMAGE_BYTES:
        raise BuildError("a boot image with them is too large")
    return data


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _end_with_server() -> None:
    """End when the server does: the kernel process waits for this program and cannot notice it."""
    server = int(os.environ.get("JPY_PARENT_PID") or 0)
    if server:
        threading.Thread(target=_watch, args=(server,), daemon=True).start()


def _watch(server: int) -> None:
    while True:
        time.sleep(1)
        try:
            os.kill(server, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            return


if __name__ == "__main__":
    sys.exit(main())
