"""What a guest is made of: Node, the runtime folder, the boot image, and the command line that joins them.

Above: `guest` and the launcher. Below: `confine`. Imports little: a guest is spawned before the heavy imports of
the kernel process, so that the two start side by side.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kernelmcp_kernel.berth import Berth
from kernelmcp_kernel.cgroup import Group, confine, delegated
from kernelmcp_kernel.confine import Policy, spawn
from kernelmcp_kernel.elf import linked_files
from kernelmcp_kernel.identity import node_binary
from kernelmcp_kernel.settings import settings

PACKAGE = Path(__file__).resolve().parent
RUNTIME = PACKAGE / "_runtime"
HOST = PACKAGE / "host"

_WASM_PAGE_BYTES = 64 * 1024

# What Node's JavaScript heap may take, in MB: Pyodide's own objects and those that guest code makes.
_JAVASCRIPT_HEAP_MB = 256

# What Node takes beside the wasm memory, in MB: its code, its heaps, its threads' stacks and the reservations of
# malloc. It starts with 750; the rest is for JavaScript's array buffers, which no flag of V8 caps.
_NODE_MEMORY_MB = 1200

# Processor time of a guest over its whole life, in seconds: for one that spins between cells, where no timeout looks.
_MAX_CPU_SECONDS = 24 * 3600

# Resident memory above which a guest is ended, in MB beyond the wasm memory. What RLIMIT_DATA counts cannot get here;
# shared mappings, which it does not count, can.
_RESIDENT_MB = 1400

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
    max_resident_mb: int = 0
    """Resident memory above which it is ended, MiB; 0: no cap."""
    group: Group | None = None
    """Its control group, where there are any."""


def guest_program(berth: Berth, image: Path, build_id: str) -> list[str]:
    """The command line of a guest."""
    mounts = {
        "runtime": str(RUNTIME),
        "image": str(image),
        "build_id": build_id,
        "workspace": str(berth.workspace),
        "tmp": str(berth.tmp),
        "keep_globals": settings().keep_globals,
        "keep_imports": False,
    }
    readable = (RUNTIME, HOST, image, berth.path)
    return [
        str(node_binary()),
        *_NODE_FLAGS,
        f"--wasm-max-mem-pages={settings().memory_mb * 1024 * 1024 // _WASM_PAGE_BYTES}",
        *(f"--allow-fs-read={path}" for path in readable),
        f"--allow-fs-write={berth.path}",
        str(HOST / "main.mjs"),
        json.dumps(mounts),
    ]


def guest_policy(berth: Berth, image: Path, build_id: str, descriptors: list[int]) -> Policy:
    """What a guest may do."""
    linked = linked_files(node_binary())
    loaders = [path for path in linked if os.path.basename(path).startswith("ld-")]
    return Policy(
        program=guest_program(berth, image, build_id),
        descriptors=descriptors,
        environment={},
        readable=[str(path) for path in (RUNTIME, HOST, image, os.devnull, "/etc/ld.so.cache", *linked)],
        writable=[str(berth.path)],
        executable=[str(node_binary()), *loaders],
        max_data_mb=settings().memory_mb + _NODE_MEMORY_MB,
        max_file_mb=settings().max_file_mb,
        max_cpu_seconds=_MAX_CPU_SECONDS,
        uid=settings().guest_uid if os.geteuid() == 0 else None,
    )


def spawn_guest(
    berth: Berth, image: Path, build_id: str, change: Callable[[Policy], Policy] = lambda policy: policy
) -> Spawned:
    """Start a confined guest process. Raises OSError. `change`: the attack suite leaves out a layer with it."""
    with ExitStack() as theirs, ExitStack() as ours:
        null = _keep(theirs, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        errors, errors_theirs = _pipe(ours, theirs)
        frames, frames_theirs = _pipe(ours, theirs)
        requests_theirs, requests = _pipe(theirs, ours)
        interrupts_theirs, interrupts = _pipe(theirs, ours)
        os.set_blocking(interrupts_theirs, False)
        descriptors = [null, errors_theirs, errors_theirs, requests_theirs, frames_theirs, interrupts_theirs]
        policy = change(guest_policy(berth, image, build_id, descriptors))
        if policy.uid is not None:
            lend(berth, policy.uid, (*policy.writable, *policy.readable, *policy.executable))
        pid = spawn(policy)
        ours.pop_all()  # they are the caller's now
    max_mb = settings().memory_mb + _RESIDENT_MB
    above = delegated()
    group = confine(above, pid, max_mb) if above else None
    return Spawned(pid, requests, frames, interrupts, errors, max_mb, group)


def _keep(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    return _keep(reader, read), _keep(writer, write)


def lend(berth: Berth, uid: int, paths: Iterable[str]) -> None:
    """Give the berth's folders to the user that the guest becomes. Raises PermissionError when that user cannot get to
    what it needs: Landlock only takes away, the file system's own modes go on to count."""
    berth.path.chmod(0o711)
    for folder in (berth.workspace, berth.tmp):
        os.chown(folder, uid, uid)
    for path in paths:
        closed = next((up for up in Path(path).resolve().parents if not up.stat().st_mode & 0o001), None)
        if closed is not None:
            raise PermissionError(
                f"the user {uid} of guest_uid cannot reach {path}: {closed} is closed to others; put"
                " KERNELMCP_HOME and the installation where that user may go, or leave guest_uid out"
            )
