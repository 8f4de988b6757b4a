"""What a guest is made of: Node, the runtime folder, the boot image, and the command line that joins them.

Above: `guest` and the launcher. Below: `confine`. Imports little: a guest is spawned before the heavy imports of
the kernel process, so that the two start side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelmcp_kernel.berth import Berth
from kernelmcp_kernel.confine import Policy, spawn
from kernelmcp_kernel.identity import node_binary
from kernelmcp_kernel.settings import Volume, data_home, settings

PACKAGE = Path(__file__).resolve().parent
RUNTIME = PACKAGE / "_runtime"
HOST = PACKAGE / "host"

_READABLE = (RUNTIME, HOST)

_WASM_PAGE_BYTES = 64 * 1024

# What Node's JavaScript heap may take, in MB: Pyodide's own objects and those that guest code makes.
_JAVASCRIPT_HEAP_MB = 256

# What Node takes beside the wasm memory, in MB: its code, its heaps, its threads' stacks and the reservations of
# malloc. It starts with 750; the rest is for JavaScript's array buffers, which no flag of V8 caps.
_NODE_MEMORY_MB = 1200

# A boot image has 30 MB; with packages some more.
_MAX_IMAGE_MB = 1024

# What Node's binary is linked against, and what loads it.
_LIBRARIES = (
    "libatomic.so.1", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1",
    "libstdc++.so.6",
)  # fmt: skip
_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1",
)  # fmt: skip

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


def packages_root() -> Path:
    """The package cache. Guests may read what is unpacked in it, and nothing else of it."""
    return data_home() / "packages"


def open_package_cache() -> None:
    """Make the folder of unpacked packages: a guest may read only what was there when it started."""
    with contextlib.suppress(OSError):  # read-only: an install will say so
        (packages_root() / "unpacked").mkdir(parents=True, exist_ok=True, mode=0o700)


def guest_program(berth: Berth, image: Path, build_id: str) -> list[str]:
    """The command line of a guest."""
    volumes = settings().volumes
    mounts = {
        "runtime": str(RUNTIME),
        "image": str(image),
        "build_id": build_id,
        "workspace": str(berth.workspace),
        "tmp": str(berth.tmp),
        "volumes": [asdict(volume) for volume in volumes],
        "quota": asdict(settings().quota),
    }
    node = _node((image, *_paths(volumes)), (berth.path, *_paths(volumes, "rw")))
    return [*node, str(HOST / "main.mjs"), json.dumps(mounts)]


def _paths(volumes: Iterable[Volume], mode: str | None = None) -> list[Path]:
    return [Path(volume.path) for volume in volumes if mode in (None, volume.mode)]


def _node(readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    """Node with its flags. What may be written may be read."""
    writable = list(writable)
    paths = (*_READABLE, packages_root() / "unpacked", *readable, *writable)
    return [
        str(node_binary()),
        *_NODE_FLAGS,
        f"--wasm-max-mem-pages={settings().memory_mb * 1024 * 1024 // _WASM_PAGE_BYTES}",
        *(f"--allow-fs-read={path}" for path in dict.fromkeys(paths)),
        *(f"--allow-fs-write={path}" for path in writable),
    ]


def _policy(
    program: list[str], descriptors: list[int], readable: Iterable[Path], writable: Iterable[Path], max_file_mb: int
) -> Policy:
    folders = (*_READABLE, packages_root() / "unpacked", *readable)
    return Policy(
        program=program,
        descriptors=descriptors,
        environment={},
        readable=[str(path) for path in (*folders, os.devnull, "/etc/ld.so.cache", *_libraries())],
        writable=[str(path) for path in writable],
        executable=[str(node_binary()), *_find(_LOADERS)],
        max_data_mb=settings().memory_mb + _NODE_MEMORY_MB,
        max_file_mb=max_file_mb,
    )


def _libraries() -> list[str]:
    """The shared libraries of the Node binary, wherever this system keeps them."""
    return _find(f"{folder}/{name}" for folder in _library_folders() for name in _LIBRARIES)


def _library_folders() -> list[str]:
    triplet = f"{platform.machine()}-linux-gnu"
    roots = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
    return [folder for root in roots for folder in (root, f"{root}/{triplet}")]


def _find(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]


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
        volumes = settings().volumes
        readable, writable = (image, *_paths(volumes, "ro")), (berth.path, *_paths(volumes, "rw"))
        program = guest_program(berth, image, build_id)
        pid = spawn(_policy(program, theirs, readable, writable, settings().workspace_mb))
    finally:
        for fd in set(theirs):
            os.close(fd)
    return Spawned(pid, requests, frames, interrupts, errors)


def spawn_builder(berth: Berth, mounts: list[dict[str, str]], file: Path, build_id: str, errors: int) -> int:
    """Start a confined process that makes a boot image with packages as `file`, in the berth; its process id.

    It imports the packages, so it is as hostile as a guest. What goes wrong it writes to the descriptor `errors`.
    """
    inside = PACKAGE / "inside"
    node = _node([inside], [berth.path])
    program = [*node, str(HOST / "build.mjs"), str(RUNTIME), str(inside), str(file), build_id]
    program.append(json.dumps(mounts))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return spawn(_policy(program, [null, null, errors], [inside], [berth.path], _MAX_IMAGE_MB))
    finally:
        os.close(null)
