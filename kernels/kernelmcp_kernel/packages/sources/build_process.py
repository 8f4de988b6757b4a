"""Runs the build of a source in a separate guest process: confined, without network, without a writable folder.

It knows no names and no cache. The source comes in by one descriptor, the wheel goes out by another: both are files
whose size the system limits, and nothing is left when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelmcp_kernel.guests.memory_watchdog import MemoryWatchdog
from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import PrivateDirectory
from kernelmcp_kernel.runtime.guest_process import spawn_filter
from kernelmcp_kernel.runtime.node import node_launch, status_of
from kernelmcp_kernel.runtime.places import HOST, INSIDE, RUNTIME, packages_root
from kernelmcp_kernel.sandbox.cgroup import MAX_TASKS

# The largest pure Python sources take a few seconds.
BUILD_SECONDS = 60.0
# Same as in host/wheel.mjs.
_NO_COMPILER, _FAILED, _MORE = 3, 4, 5
_MAX_SAID_CHARS = 120
_MAX_LIST_BYTES = 1 << 16


@dataclass(frozen=True)
class Job:
    """A build: the packages of the backend, as in `Package.mount`, and how to call it."""

    packages: list[dict[str, str]]
    backend: str
    paths: list[str]
    look_for_more: bool
    """Ask for further build requirements first."""
    left_out: list[str]
    """Modules that are unavailable because they compile."""


class NotBuilt(Exception):
    """A source has no wheel. The text, the reason, completes a sentence that begins with `its source`. `lasting`: a
    retry would not help."""

    def __init__(self, why: str, *, lasting: bool = True) -> None:
        super().__init__(why)
        self.lasting = lasting


async def run_build(source: Path, job: Job, max_bytes: int) -> bytes | list[str]:
    """The wheel, which is hostile; or further requirements of the build. Raises NotBuilt, OSError."""
    sandbox = PrivateDirectory()
    try:
        with source.open("rb") as given, tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as said:
            descriptors = [given.fileno(), made.fileno(), said.fileno()]
            ended = await _run(sandbox, job, max_bytes, descriptors)
            made.seek(0)
            status, words = status_of(ended, said)
            if status == 0:
                return _read(made.read(max_bytes + 1), max_bytes)
            if status == _MORE:
                return _names(made.read(_MAX_LIST_BYTES))
    finally:
        sandbox.close()
    if status == _NO_COMPILER:
        raise NotBuilt("needs a compiler")
    if status == _FAILED:
        text = " ".join("".join(c if c.isprintable() else " " for c in words).split())[:_MAX_SAID_CHARS]
        raise NotBuilt(f"does not build in the sandbox ({text})" if text else "does not build in the sandbox")
    # Its own fault, or other processes took the CPU or memory: a retry may help.
    raise NotBuilt("takes more than a build may", lasting=False)


def _read(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise NotBuilt("makes a wheel that is too large")
    return data


def _names(text: bytes) -> list[str]:
    try:
        found = json.loads(text)
        return [str(name) for name in found]
    except (ValueError, TypeError, RecursionError):
        raise NotBuilt("does not build in the sandbox") from None


async def _run(sandbox: PrivateDirectory, job: Job, max_bytes: int, descriptors: list[int]) -> int:
    """The exit status; -9 for a build that was killed."""
    try:
        image = plain_image()
    except BuildError as error:
        raise NotBuilt("cannot be built now", lasting=False) from error
    script, before = image.program("wheel.mjs")
    arguments = [*before, RUNTIME, INSIDE, image.path, image.build_id, json.dumps(asdict(job))]
    readable = (RUNTIME, HOST, INSIDE, *image.files, packages_root() / "unpacked", packages_root() / "bytecode")
    launch = node_launch(script, map(str, arguments), readable, ())
    try:
        pid = spawn_filter(sandbox, launch, -(-max_bytes >> 20), descriptors)
    except OSError as error:
        raise NotBuilt("cannot be built now", lasting=False) from error
    waiting = asyncio.create_task(asyncio.to_thread(os.waitpid, pid, 0))

    def end(reason: str = "") -> None:
        if not waiting.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    watchdog = MemoryWatchdog(pid, launch.max_resident_mb, end, MAX_TASKS)
    timer = asyncio.get_running_loop().call_later(BUILD_SECONDS, end)
    try:
        _, status = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        end()
        await asyncio.shield(waiting)
        raise
    finally:
        timer.cancel()
        watchdog.stop()
    return os.waitstatus_to_exitcode(status)
