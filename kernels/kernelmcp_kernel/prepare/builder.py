"""Runs a program of host/ that creates one file, confined like a guest."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernelmcp_kernel.runtime.directory import PrivateDirectory
from kernelmcp_kernel.runtime.guest_process import spawn_builder
from kernelmcp_kernel.runtime.identity import BuildError
from kernelmcp_kernel.runtime.node import node_launch, status_of
from kernelmcp_kernel.runtime.places import HOST, INSIDE, RUNTIME, packages_root

# The largest take a minute; the import of a package may also never end.
BUILD_SECONDS = 300.0
_MAX_ERROR_CHARS = 2000


@contextmanager
def run_builder(
    script: str,
    before: Sequence[str],
    max_bytes: int,
    behind: Sequence[str] = (),
    seconds: float = BUILD_SECONDS,
    readable: Sequence[Path] = (),
) -> Iterator[bytes]:
    """Run the program; give the file that it wrote. Its arguments are the runtime folder, our inside/ folder, `before`,
    the file, and `behind`. It may read `readable`, the packages and its own files. Raises BuildError."""
    sandbox = PrivateDirectory()
    try:
        file = sandbox.tmp / "made"
        arguments = [str(RUNTIME), str(INSIDE), *before, str(file), *behind]
        packages = (packages_root() / "unpacked", packages_root() / "bytecode")
        launch = node_launch(HOST / script, arguments, (RUNTIME, HOST, INSIDE, *packages, *readable), (sandbox.tmp,))
        with tempfile.TemporaryFile() as errors:
            pid = spawn_builder(sandbox, launch, max_bytes >> 20, errors.fileno())
            killer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
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
            raise BuildError(f"{script} ended with {ended}: {said.strip()[-_MAX_ERROR_CHARS:]}")
        yield _read(os.fspath(file), max_bytes)
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
