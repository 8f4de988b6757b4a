"""Bytecode of unpacked packages, which halves the time of an import.

Compiled by a guest's own Python, in a process that is confined like a guest and imports nothing of the package. Its
output is an archive, unpacked as carefully as a wheel.
"""

from __future__ import annotations

import os

from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.packages.errors import PackageError
from kernelmcp_kernel.packages.store import Store
from kernelmcp_kernel.packages.unpack import unpack
from kernelmcp_kernel.prepare.builder import run_builder
from kernelmcp_kernel.runtime.identity import BuildError

_MAX_BYTES = 512 << 20


def make_bytecode(store: Store, sha256: str) -> None:
    """Compile a package that is unpacked and has no bytecode. Raises BuildError, PackageError, OSError."""
    if store.bytecode(sha256) is not None:
        return
    image = plain_image()
    before = [str(image.path), image.build_id, str(store.unpacked / sha256)]
    with (
        run_builder("compile.mjs", before, _MAX_BYTES, readable=(image.path,)) as archive,
        store.staging() as staging,
    ):
        folder, copy = staging / "bytecode", staging / "bytecode.zip"
        folder.mkdir()
        copy.write_bytes(archive)
        try:
            unpack(copy, folder, _MAX_BYTES)
        except PackageError as error:
            raise BuildError(f"bytecode that cannot be used was made: {error}") from error
        if any(not name.endswith(".pyc") for _, _, names in os.walk(folder) for name in names):
            raise BuildError("the result is not bytecode")
        store.add_bytecode(sha256, folder)
