"""Selects the boot image for a guest, with its bundle. The image itself is made and read by host/image.mjs, which
checks it.

The installed image is used if it was built from the installed sources; otherwise one in the user's data directory. An
image that a guest rejects (stale, damaged) is replaced: in the installation if it is writable, otherwise in the data
directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kernelmcp_kernel.languages import kept_builds
from kernelmcp_kernel.languages.python.guest_bundle import code_of, find_bundle, native_of
from kernelmcp_kernel.languages.python.prepared import Prepared, PreparedPackage
from kernelmcp_kernel.runtime.build_identity import BEING_REPLACED, build_id
from kernelmcp_kernel.runtime.places import HOST, PACKAGE, RUNTIME
from kernelmcp_kernel.settings import data_home

# Time for another kernel's build, which takes 8 s of a processor: a server's kernel may take 60 s to start.
_OTHERS_SECONDS = 45.0
_LANGUAGE = "python"
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class BootImage:
    """An image file, the id that it must carry, and the packages in its guest."""

    path: Path
    build_id: str
    packages: tuple[PreparedPackage, ...] = ()
    bundle: Path | None = None
    """The script that starts a guest. None if there is none of the installed sources."""
    version: tuple[int, int] | None = None
    """Of the file, before the guest was started that may reject it (`version_of`)."""
    package: Path = PACKAGE
    """The installation, or a kept build: the folder of host/ and _runtime/."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a guest reads to start from this image."""
        return self.path, *self._scripts

    def program(self, main: str) -> tuple[Path, list[str]]:
        """The script to start for `main`, a module of host/, and the arguments before those of `main`."""
        host = self.package / "host"
        if not self.bundle:
            return host / main, []
        return host / "start_guest.cjs", [*map(str, self._scripts), main]

    @property
    def _scripts(self) -> tuple[Path, ...]:
        return (self.bundle, code_of(self.bundle), native_of(self.bundle)) if self.bundle else ()


def plain_image() -> BootImage:
    """The image without packages. It may be stale, damaged or missing: then use `rebuild_image`."""
    return _plain_of(build_id(PACKAGE))


def _plain_of(wanted: str) -> BootImage:
    own = _own_image(wanted)
    return _plain(own if own.exists() else RUNTIME / "boot.img", wanted)


def _plain(path: Path, wanted: str) -> BootImage:
    return BootImage(path, wanted, bundle=find_bundle(path, wanted))


def version_of(path: Path) -> tuple[int, int] | None:
    """Inode and time of a file; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def prepared_image(prepared: Prepared, plain: BootImage) -> BootImage:
    """The image with packages. Its guests run the same JavaScript as those of the plain one."""
    packages = tuple(prepared.with_needs(prepared.in_image))
    return BootImage(prepared.image, prepared.build_id, packages, plain.bundle, package=plain.package)


def kept_image(identity: str) -> BootImage | None:
    """The image without packages of an earlier build, if that is kept."""
    if (package := kept_builds.find(_LANGUAGE, identity, _abi())) is None:
        return None
    path = package / "_runtime" / "boot.img"
    return BootImage(path, identity, bundle=find_bundle(path, identity), package=package)


def keep_plain_image(identity: str) -> bool:
    """Keep the installation for later ones. Returns False if it is of another build: it was replaced while this kernel
    ran. Raises OSError, BuildError, ValueError, KeyError."""
    if _installed() != identity:
        return kept_image(identity) is not None
    image = _plain_of(identity)
    parts = {f"_runtime/{name}": RUNTIME / name for name in ("pyodide", "site", "vega")}
    made = {f"_runtime/boot{file.suffix}": file for file in image.files}
    every = {"host": HOST, **parts, **made}
    return kept_builds.keep(_LANGUAGE, identity, _abi(), every, lambda: build_id(PACKAGE) == identity)


def image_of(identity: str) -> BootImage | None:
    """The image without packages of a build: the installation's, or of one that is kept."""
    return _plain_of(identity) if identity == _installed() else kept_image(identity)


def own_image() -> BootImage:
    """The image without packages that fits this process."""
    if (installed := _installed()) and installed == own_build():
        return _plain_of(installed)
    return kept_image(own_build()) or plain_image()


def is_current() -> bool:
    """False if the installation was replaced since this process found it, or is just being replaced."""
    return (installed := _installed()) is not None and installed == own_build()


def still_there(image: BootImage) -> BootImage:
    """This image, also if the installation was replaced while this kernel runs: then from the kept build. The
    installation's, if it is not kept."""
    identity = image.build_id.partition("+")[0]
    if image.package != PACKAGE or identity == _installed():
        return image
    if (kept := kept_image(identity)) is None:
        return plain_image()
    return replace(image, path=image.path if image.packages else kept.path, bundle=kept.bundle, package=kept.package)


def _installed() -> str | None:
    """The id of the installation; None while it is being replaced."""
    try:
        return build_id(PACKAGE)
    except BEING_REPLACED:
        return None


@cache
def own_build() -> str:
    """The id of the installation as this process has found it first: it may be replaced later. Forks have that of their
    fork server. Raises BuildError, KeyError, OSError."""
    _abi()
    return build_id(PACKAGE)


@cache
def _abi() -> str:
    """What a guest's Python must have in common with the packages of a home; also as it was found first."""
    info = json.loads((RUNTIME / "pyodide" / "pyodide-lock.json").read_text("utf-8"))["info"]
    return f"{info['python']} {info['abi_version']}"


def rebuild_image(bad: BootImage) -> BootImage:
    """Build a replacement for an image that a guest has rejected (about 8 s). Raises BuildError, OSError.

    One kernel builds it, and those that wait meanwhile use it too: variables saved with one build are of no use with
    another.
    """
    from kernelmcp_kernel.languages.python.build import build_image, made_with  # heavy, and rarely needed

    if bad.build_id.partition("+")[0] != build_id(PACKAGE):
        return plain_image()  # the installation was replaced
    if bad.packages:
        if version_of(bad.path) == bad.version:  # otherwise another kernel has replaced it meanwhile
            for file in (bad.path, bad.path.with_suffix(".json")):  # what is wanted is prepared again at the next start
                file.unlink(missing_ok=True)
        return plain_image()
    installed, own = RUNTIME / "boot.img", _own_image(build_id(PACKAGE))
    target = installed if os.access(RUNTIME, os.W_OK) else own
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(target.parent):
        found = plain_image()
        if found.path == bad.path and version_of(found.path) not in (None, bad.version):
            return found
        build_image(PACKAGE, target)
        if target is installed:
            for file in made_with(own):  # otherwise it would be preferred
                file.unlink(missing_ok=True)
        return plain_image()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other kernel builds here, but not for ever: whoever may read the folder can lock it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _OTHERS_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(fd)


def _own_image(wanted: str) -> Path:
    return data_home() / "images" / f"{wanted[:32]}.img"
