"""What a guest is made of: Node, the runtime folder, the boot image, and the command line that joins them.

Above: `guest` and the launcher. Below: `confine`. Imports little: a guest is spawned before the heavy imports of
the kernel process, so that the two start side by side.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.berth import Berth
from kernelmcp_kernel.confine import Policy, spawn
from kernelmcp_kernel.identity import node_binary

PACKAGE = Path(__file__).resolve().parent
RUNTIME = PACKAGE / "_runtime"
HOST = PACKAGE / "host"

# The wasm memory of a guest, in MB, when the environment does not say. The boot image alone takes about 60.
DEFAULT_MEMORY_MB = 1024
_WASM_PAGE_BYTES = 64 * 1024

# What Node's JavaScript heap may take, in MB: Pyodide's own objects and those that guest code makes.
_JAVASCRIPT_HEAP_MB = 256

_NODE_FLAGS = (
    "--experimental-wasm-jspi",
    "--permission",
    "--disallow-code-generation-from-strings",
    "--disable-proto=delete",
    "--no-addons",
    "--disable-sigusr1",
    "--no-experimental-websocket",
    "--no-experimental-sqlite",
    "--no-experimental-webstorage",
    "--no-warnings",
    f"--max-old-space-size={_JAVASCRIPT_HEAP_MB}",
    # These save 10 MB of private memory: the garbage of loading is collected once, and young objects live in 1 MB
    # instead of 8.
    "--expose-gc",
    "--max-semi-space-size=1",
    "--freeze-flags-after-init",
)


@dataclass(frozen=True)
class Spawned:
    """A guest process and our ends of its pipes."""

    pid: int
    requests: int
    frames: int
    interrupts: int
    errors: int


def memory_mb() -> int:
    """The cap of the guest's wasm memory: KERNELMCP_MEMORY_MB, else the default."""
    return int(os.environ.get("KERNELMCP_MEMORY_MB") or DEFAULT_MEMORY_MB)


def guest_program(berth: Berth, image: Path, build_id: str) -> list[str]:
    """The command line of a guest."""
    settings = {
        "runtime": str(RUNTIME),
        "image": str(image),
        "build_id": build_id,
        "workspace": str(berth.workspace),
        "tmp": str(berth.tmp),
    }
    readable = (RUNTIME, HOST, image, berth.path)
    return [
        str(node_binary()),
        *_NODE_FLAGS,
        f"--wasm-max-mem-pages={memory_mb() * 1024 * 1024 // _WASM_PAGE_BYTES}",
        *(f"--allow-fs-read={path}" for path in readable),
        f"--allow-fs-write={berth.path}",
        str(HOST / "main.mjs"),
        json.dumps(settings),
    ]


def spawn_guest(berth: Berth, image: Path, build_id: str) -> Spawned:
    """Start a confined guest process."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    errors, errors_theirs = os.pipe()
    requests_theirs, requests = os.pipe()
    frames, frames_theirs = os.pipe()
    interrupts_theirs, interrupts = os.pipe()
    os.set_blocking(interrupts_theirs, False)
    theirs = [null, errors_theirs, errors_theirs, requests_theirs, frames_theirs, interrupts_theirs]
    try:
        pid = spawn(Policy(guest_program(berth, image, build_id), theirs, environment={}))
    finally:
        for fd in set(theirs):
            os.close(fd)
    return Spawned(pid, requests, frames, interrupts, errors)
