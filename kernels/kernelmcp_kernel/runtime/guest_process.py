"""Starts a guest: the command line and the policy that join Node, the runtime folder and the boot image.

Imports little: a guest is spawned before the heavy imports of the kernel process, so that the two start side by side.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.identity import node_binary
from kernelmcp_kernel.sandbox.cgroup import Group, confine, delegated
from kernelmcp_kernel.sandbox.confine import Policy, spawn
from kernelmcp_kernel.sandbox.elf import linked_files
from kernelmcp_kernel.settings import Volume, data_home, settings

PACKAGE = Path(__file__).resolve().parents[1]
RUNTIME = PACKAGE / "_runtime"
HOST = PACKAGE / "host"

_READABLE = (RUNTIME, HOST)

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

# Below what the system allows the first thread (confine.py: 8 MB), in kB.
_STACK_KB = 7000

# A boot image has 30 MB; with packages some more.
_MAX_IMAGE_MB = 1024

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


def packages_root() -> Path:
    """The package cache. Guests may read what is unpacked in it, and nothing else of it."""
    return data_home() / "packages"


def open_package_cache() -> None:
    """Make the folder of unpacked packages: a guest may read only what was there when it started."""
    with contextlib.suppress(OSError):  # read-only: an install will say so
        mode = settings().folder_mode
        for folder in (packages_root(), packages_root() / "unpacked"):
            folder.mkdir(parents=True, exist_ok=True, mode=mode)
            if mode != 0o700:
                folder.chmod(mode)  # made by a kernel without `guest_uid`


def guest_program(sandbox: SandboxDirectory, image: Path, build_id: str) -> list[str]:
    """The command line of a guest."""
    volumes = settings().volumes
    mounts = {
        "runtime": str(RUNTIME),
        "image": str(image),
        "build_id": build_id,
        "workspace": str(sandbox.workspace),
        "tmp": str(sandbox.tmp),
        "volumes": [asdict(volume) for volume in volumes],
        "quota": asdict(settings().quota),
        "keep_globals": settings().keep_globals,
        "keep_imports": False,
    }
    node = _node((image, *_paths(volumes)), (sandbox.workspace, sandbox.tmp, *_paths(volumes, "rw")))
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
        *(f"--allow-fs-read={path}" for path in grants(paths)),
        *(f"--allow-fs-write={path}" for path in grants(writable)),
    ]


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


def guest_policy(sandbox: SandboxDirectory, image: Path, build_id: str, descriptors: list[int]) -> Policy:
    """The policy that confines a guest."""
    volumes = settings().volumes
    readable, writable = (image, *_paths(volumes, "ro")), (*sandbox.writable, *_paths(volumes, "rw"))
    program = guest_program(sandbox, image, build_id)
    return _policy(program, descriptors, readable, writable, settings().workspace_mb)


def _policy(
    program: list[str], descriptors: list[int], readable: Iterable[Path], writable: Iterable[Path], max_file_mb: int
) -> Policy:
    linked = linked_files(node_binary())
    loaders = [path for path in linked if os.path.basename(path).startswith("ld-")]
    folders = (*_READABLE, packages_root() / "unpacked", *readable)
    return Policy(
        program=program,
        descriptors=descriptors,
        environment={},
        readable=[str(path) for path in (*folders, os.devnull, "/etc/ld.so.cache", *linked)],
        writable=[str(path) for path in writable],
        executable=[str(node_binary()), *loaders],
        max_data_mb=settings().memory_mb + _NODE_MEMORY_MB,
        max_file_mb=max_file_mb,
        max_cpu_seconds=_MAX_CPU_SECONDS,
        uid=settings().guest_uid if os.geteuid() == 0 else None,
    )


def spawn_guest(
    sandbox: SandboxDirectory, image: Path, build_id: str, change: Callable[[Policy], Policy] = lambda policy: policy
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
        policy = change(guest_policy(sandbox, image, build_id, descriptors))
        pid = _spawn(sandbox, policy)
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


def spawn_builder(
    sandbox: SandboxDirectory, mounts: list[dict[str, str]], file: Path, build_id: str, errors: int
) -> int:
    """Start a confined process that makes a boot image with packages, as `file` in the tmp of the sandbox directory.

    Returns its process id.

    It imports the packages, so it is as hostile as a guest. What goes wrong it writes to the descriptor `errors`.
    """
    inside = PACKAGE / "inside"
    node = _node([inside], [sandbox.tmp])
    program = [*node, str(HOST / "build.mjs"), str(RUNTIME), str(inside), str(file), build_id]
    program.append(json.dumps(mounts))
    with ExitStack() as stack:
        null = _keep(stack, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        return _spawn(sandbox, _policy(program, [null, null, errors], [inside], [sandbox.tmp], _MAX_IMAGE_MB))


def _spawn(sandbox: SandboxDirectory, policy: Policy) -> int:
    sandbox.seal()
    if policy.uid is not None:
        give_to_guest(sandbox, policy.uid, (*policy.writable, *policy.readable, *policy.executable))
    return spawn(policy)


def give_to_guest(sandbox: SandboxDirectory, uid: int, paths: Iterable[str]) -> None:
    """Give workspace and tmp to the user that the guest becomes.

    Raises PermissionError when that user cannot get to what it needs: Landlock only takes away, and the file system's
    own modes go on to count.
    """
    sandbox.seal(passable=True)
    own = (sandbox.workspace, sandbox.tmp)
    for path in (sandbox.path, *(path for path in map(Path, paths) if path not in own)):
        if (closed := closed_to(uid, path)) is not None:
            raise PermissionError(
                f"the user {uid} of guest_uid cannot reach {path}: {closed} is closed to others; put"
                " KERNELMCP_HOME and the installation where that user may go, or leave guest_uid out"
            )
    for folder in own:
        os.chown(folder, uid, uid)


def closed_to(uid: int, path: Path) -> Path | None:
    """What keeps a user from a file or folder: itself, or a folder above."""
    real = path.resolve()
    return next((up for up in (real, *real.parents) if not _is_open_to(uid, up)), None)


def _is_open_to(uid: int, path: Path) -> bool:
    """Whether a user may read a file, or go through a directory. True for what is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return True
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == uid else 0
    wanted = 0o001 if stat.S_ISDIR(found.st_mode) else 0o004
    return bool(found.st_mode >> shift & wanted)
