"""Runs programs of host/ that create one file each, confined like a guest: a boot image, or a package's bytecode."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Sequence

from kernelmcp_kernel.languages.python.image import BootImage, plain_image
from kernelmcp_kernel.packages.package_errors import PackageError
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.packages.unpack import unpack
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import PrivateDirectory
from kernelmcp_kernel.runtime.guest_process import spawn_builder
from kernelmcp_kernel.runtime.node import COMPILED_LATER, node_launch, status_of
from kernelmcp_kernel.runtime.places import HOST, INSIDE, RUNTIME, packages_root

# The largest take a minute; the import of a package may also never end.
BUILD_SECONDS = 300.0
_MAX_ERROR_CHARS = 2000
_MAX_BYTECODE_BYTES = 512 << 20


def run_builder(main: str, max_bytes: int, arguments: Sequence[str], image: BootImage | None = None) -> bytes:
    """Run a module of host/; return what it wrote. Its arguments are the runtime folder, our inside/ folder, the file
    to write, and `arguments`. It may read the packages and its own files, and `image`, if its Python starts from one.
    Raises BuildError."""
    sandbox = PrivateDirectory()
    try:
        file = sandbox.tmp / "made"
        script, before = image.program(main) if image else (HOST / main, [])
        readable = (RUNTIME, HOST, INSIDE, packages_root() / "unpacked", packages_root() / "bytecode")
        readable += image.files if image else ()
        given = [*before, str(RUNTIME), str(INSIDE), str(file), *arguments]
        launch = node_launch(script, given, readable, (sandbox.tmp,), flags=(COMPILED_LATER,))
        with tempfile.TemporaryFile() as errors:
            pid = spawn_builder(sandbox, launch, max_bytes >> 20, errors.fileno())
            killer = threading.Timer(BUILD_SECONDS, os.kill, (pid, signal.SIGKILL))
            killer.start()
            try:
                _, status = os.waitpid(pid, 0)
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
            finally:
                killer.cancel()
            ended, said = status_of(os.waitstatus_to_exitcode(status), errors)
        if ended != 0:
            raise BuildError(f"{main} ended with {ended}: {said.strip()[-_MAX_ERROR_CHARS:]}")
        return _read(os.fspath(file), max_bytes)
    finally:
        sandbox.close()


def _read(file: str, max_bytes: int) -> bytes:
    """The output of a hostile process, read without following links. Raises BuildError if it is too large."""
    # With an opener: `os.fdopen` refuses a directory and leaves its descriptor open.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(file, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BuildError(f"what was made is larger than {max_bytes >> 20} MB")
    return data


def make_bytecode(store: Store, sha256: str) -> None:
    """Compile a package that is unpacked and has no bytecode: this halves the time of an import. Raises BuildError,
    PackageError, OSError.

    A guest's Python compiles it, and imports nothing of the package. Its output is an archive, unpacked like a wheel.
    """
    if store.bytecode(sha256) is not None:
        return
    image = plain_image()
    arguments = [str(image.path), image.build_id, str(store.unpacked / sha256)]
    archive = run_builder("compile.mjs", _MAX_BYTECODE_BYTES, arguments, image)
    with store.staging() as staging:
        folder, copy = staging / "bytecode", staging / "bytecode.zip"
        folder.mkdir()
        copy.write_bytes(archive)
        try:
            unpack(copy, folder, _MAX_BYTECODE_BYTES)
        except PackageError as error:
            raise BuildError(f"bytecode that cannot be used was made: {error}") from error
        if any(not name.endswith(".pyc") for _, _, names in os.walk(folder) for name in names):
            raise BuildError("the result is not bytecode")
        store.add_bytecode(sha256, folder)
