"""Launch options for JavaScript in Node: its flags, its permission model and the memory of its WebAssembly."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch, volume_paths
from kernelmcp_kernel.runtime.told_status import told_status
from kernelmcp_kernel.settings import settings

_WASM_PAGE_BYTES = 64 * 1024

# Limit of Node's JavaScript heap, in MB: Pyodide's own objects and those that guest code creates.
_JAVASCRIPT_HEAP_MB = 256

# Node's memory besides the wasm memory, in MB: its code, its heaps, its threads' stacks and malloc's reservations. It
# starts with 750; the rest is for JavaScript's array buffers, which no V8 flag limits.
_NODE_MEMORY_MB = 1200

# Resident memory above which it is killed, in MB beyond the wasm memory.
_RESIDENT_MB = 1400

# Below the system's limit for the main thread's stack (enter.py: 8 MB), in kB.
_STACK_KB = 7000

_NODE_FLAGS = (
    "--experimental-wasm-jspi",
    "--permission",
    "--disallow-code-generation-from-strings",
    "--disable-proto=delete",
    "--no-addons",
    f"--openssl-config={os.devnull}",  # the system's file is not readable
    "--disable-sigusr1",
    "--no-experimental-websocket",
    "--no-experimental-sqlite",
    "--no-experimental-webstorage",
    "--no-warnings",
    f"--max-old-space-size={_JAVASCRIPT_HEAP_MB}",
    # These save 10 MB of private memory: garbage from loading is collected once; young objects have 1 MB, not 8.
    "--expose-gc",
    "--max-semi-space-size=1",
    # V8 begins with a limit of a few MB, WebAssembly's memory included, and collects whenever a start or a saved state
    # grows beyond it: 100 ms of CPU. The first collection sets a limit that fits.
    "--initial-old-space-size=128",
    # Stacks of JavaScript and of each chain of WebAssembly calls; the smaller value applies. Python's check only sees
    # WebAssembly's stack in memory, so a C recursion over nested data (a linked list that is freed) ends the guest at
    # the end of V8's: this is 7 times Node's default. V8 has room for more than a hundred of them.
    f"--stack-size={_STACK_KB}",
    f"--wasm-stack-switching-stack-size={_STACK_KB}",
    "--freeze-flags-after-init",
)


# V8 compiles a function anew, with more optimization, once it has run through 13 MB of its code. Functions that set up
# the modules of numpy and pandas have 220 kB and jump to and fro: they run once, and took 1.5 s to compile. A loop
# of a third of a second still gets there.
COMPILED_LATER = "--wasm-tiering-budget=400000000"


def node_guest(
    script: Path,
    arguments: Iterable[str],
    sandbox: SandboxDirectory,
    readable: tuple[Path, ...],
    flags: tuple[str, ...] = (),
) -> Launch:
    """A guest that runs a script in Node. The script and what it imports must be in `readable`."""
    writable = (sandbox.workspace, sandbox.tmp, *volume_paths("rw"))
    return node_launch(script, arguments, (*readable, sandbox.offered), writable, volume_paths("ro"), flags)


def node_launch(
    script: Path,
    arguments: Iterable[str],
    readable: tuple[Path, ...],
    writable: tuple[Path, ...],
    volumes: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (),
) -> Launch:
    """Run a script in Node. Writable paths are also readable, as are `volumes`, which are in every guest's policy."""
    memory_mb = settings().memory_mb
    program = [
        str(node_binary()),
        *flags,
        *node_flags(),
        *(f"--allow-fs-read={path}" for path in grants((*readable, *volumes, *writable))),
        *(f"--allow-fs-write={path}" for path in grants(writable)),
        str(script),
        *arguments,
    ]
    return Launch(program, readable, memory_mb + _NODE_MEMORY_MB, memory_mb + _RESIDENT_MB)


def node_flags(memory_mb: int | None = None) -> list[str]:
    """Node's options for a guest, without its permissions. V8's code of a script is valid with the same ones only, but
    whatever the memory is. `memory_mb`: in place of the setting."""
    limit_mb = settings().memory_mb if memory_mb is None else memory_mb
    return [*_NODE_FLAGS, f"--wasm-max-mem-pages={limit_mb * 1024 * 1024 // _WASM_PAGE_BYTES}"]


_MAX_SAID_BYTES = 1 << 16


def status_of(status: int, descriptor_2: BinaryIO) -> tuple[int, str]:
    """The exit status and the last output of a program of host/, which may have ended by leave.mjs."""
    descriptor_2.seek(max(0, descriptor_2.seek(0, os.SEEK_END) - _MAX_SAID_BYTES))
    return told_status(status, descriptor_2.read(_MAX_SAID_BYTES))


def grants(paths: Iterable[Path]) -> list[str]:
    """Permission options for Node that grant all these paths.

    Node refuses a directory (but not its contents) if the path of another grant begins with the same letters: beside
    `/srv/x2` it refuses `/srv/x`. So those two become `/srv/x*`. That also grants `/srv/x3`, which the guest still
    cannot access: the operating system has the exact paths.
    """
    found: list[str] = []
    for path in sorted({str(path) for path in paths}):
        last = found[-1].removesuffix("*") if found else None
        if last is None or not path.startswith(last):
            found.append(path)
        elif not path.startswith(last + "/"):  # paths below it are granted with it
            found[-1] = last + "*"
    return found
