"""One run of pip as a confined process: its output, its exit status, and its end if it downloads too much."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

from kernelmcp_kernel.packages import empty_wheels
from kernelmcp_kernel.packages.cache_cap import size_of_files
from kernelmcp_kernel.packages.errors import over_share
from kernelmcp_kernel.sandbox import confine
from kernelmcp_kernel.sandbox.confine import Policy

Say = Callable[[str], None]
"""Receives progress, a line at a time."""

_MAX_LINE_BYTES = 4 << 20
# A fast network transfers 100 MB in this time.
_WATCH_SECONDS = 0.5


async def run(policy: Policy, folder: Path, max_bytes: int, say: Say) -> tuple[int, str]:
    """Run pip until it ends, or until `folder` exceeds `max_bytes`; return its status, and the last line of its output.
    Raises PackageCacheError."""
    program, environment = confine.command(policy)
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd="/",
        env=environment,
        stdin=asyncio.subprocess.PIPE,  # its end tells pip that this process has ended
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_MAX_LINE_BYTES,
    )
    watch = asyncio.create_task(_watch_room(folder, max_bytes, process))
    try:
        last = await _read(process, say)
        status = await process.wait()
    finally:
        watch.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0 and watch.done() and not watch.cancelled() and watch.result():
        raise over_share(max_bytes)
    return status, last


async def _watch_room(folder: Path, max_bytes: int, process: asyncio.subprocess.Process) -> bool:
    """Kill pip if it downloads more than allowed. Returns whether pip was still running."""
    while await asyncio.to_thread(size_of_files, folder) <= max_bytes:  # noqa: ASYNC110  # a folder has no event
        await asyncio.sleep(_WATCH_SECONDS)
    try:
        process.kill()
    except ProcessLookupError:
        return False
    return True


async def _read(process: asyncio.subprocess.Process, say: Say) -> str:
    last = ""
    async for raw in cast("asyncio.StreamReader", process.stdout):
        line = raw.decode("utf-8", "replace").strip()
        last = line or last
        shown = _progress(line)
        if shown and not empty_wheels.is_one(shown):
            say(shown)
    return last


def _progress(line: str) -> str | None:
    """The part of a line that is useful to a person, without paths of this machine; None for all other lines."""
    if match := re.match(r"WARNING: (\S+ \S+ does not provide the extra '[^']{1,100}')$", line):
        return match[1]
    if match := re.match(r"(Collecting .+?)(?: \(from .*)?$", line):
        return match[1]
    if match := re.match(
        r"(?:Downloading|Using cached|Processing) (?:\S*/)?([^/\s]+\.(?:whl|tar\.gz))(?: \((\d[^)]*)\))?(?:\s|$)", line
    ):
        return f"  {match[1]}" + (f" ({match[2]})" if match[2] else "")
    return None
