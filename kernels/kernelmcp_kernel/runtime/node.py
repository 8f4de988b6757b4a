"""Launches that run JavaScript in Node, with its flags, its permission model and the memory of its WebAssembly."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch, volume_paths
from kernelmcp_kernel.runtime.identity import node_binary
from kernelmcp_kernel.settings import settings

_WASM_PAGE_BYTES = 64 * 1024

# What Node's JavaScript heap may take, in MB: Pyodide's own objects and those that guest code makes.
_JAVASCRIPT_HEAP_MB = 256

# What Node takes beside the wasm memory, in MB: its code, its heaps, its threads' stacks and the reservations of
# malloc. It starts with 750; the rest is for JavaScript's array buffers, which no flag of V8 caps.
_NODE_MEMORY_MB = 1200

# Resident memory above which it is ended, in MB beyond the wasm memory.
_RESIDENT_MB = 1400

# Below what the system allows the first thread (enter.py: 8 MB), in kB.
_STACK_KB = 7000

_NODE_FLAGS = (
    "--experimental-wasm-jspi",
    "--permission",
    "--disallow-code-generation-from-strings",
    "--disable-proto=delete",
    "--no-addons",
    f"--openssl-config={os.devnull}",  # the system's is not readable
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
    # Stacks of JavaScript and of each chain of WebAssembly calls, of which the smaller number counts. Python's check
    # sees only WebAssembly's stack in memory, so a C recursion over nested data (a linked list that is let go) ends
    # the guest at the end of V8's: this is 7 times Node's usual one. V8 has room for more than a hundred of them.
    f"--stack-size={_STACK_KB}",
    f"--wasm-stack-switching-stack-size={_STACK_KB}",
    "--freeze-flags-after-init",
)


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
    """A script in Node. What may be written may be read, and so may `volumes`, which every guest's policy names."""
    memory_mb = settings().memory_mb
    program = [
        str(node_binary()),
        *flags,
        *_NODE_FLAGS,
        f"--wasm-max-mem-pages={memory_mb * 1024 * 1024 // _WASM_PAGE_BYTES}",
        *(f"--allow-fs-read={path}" for path in grants((*readable, *volumes, *writable))),
        *(f"--allow-fs-write={path}" for path in grants(writable)),
        str(script),
        *arguments,
    ]
    return Launch(program, readable, memory_mb + _NODE_MEMORY_MB, memory_mb + _RESIDENT_MB)


_MAX_SAID_BYTES = 1 << 16


def status_of(status: int, descriptor_2: BinaryIO) -> tuple[int, str]:
    """The exit status and the last words of a program of host/, which may have ended as leave.mjs has it."""
    descriptor_2.seek(max(0, descriptor_2.seek(0, os.SEEK_END) - _MAX_SAID_BYTES))
    said = descriptor_2.read(_MAX_SAID_BYTES)
    words, mark, number = said.rpartition(b"\0")
    if status == -signal.SIGKILL and mark and number.isdigit() and len(number) <= 3:
        return int(number), words.decode("utf-8", "replace")
    return status, said.decode("utf-8", "replace")


def grants(paths: Iterable[Path]) -> list[str]:
    """What to tell Node's permission model, so that all of these may be used.

    It refuses a directory (not what is in it) when the path of another grant begins with the same letters: beside
    `/srv/x2` it refuses `/srv/x`. So those two become `/srv/x*`. That also grants `/srv/x3`, which is not open to the
    guest all the same: the operating system has the exact paths.
    """
    found: list[str] = []
    for path in sorted({str(path) for path in paths}):
        last = found[-1].removesuffix("*") if found else None
        if last is None or not path.startswith(last):
            found.append(path)
        elif not path.startswith(last + "/"):  # what lies beneath is granted with it
            found[-1] = last + "*"
    return found
