"""Starts a guest process of any language: from its launch options to a confined process and its pipes.

Imports little: a guest is spawned before the kernel process's heavy imports, so that both start in parallel.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.sandbox.cgroup import Group, confine, delegated
from kernelmcp_kernel.sandbox.confined_process import Policy, spawn
from kernelmcp_kernel.sandbox.elf import linked_files
from kernelmcp_kernel.settings import settings

# CPU time of a guest over its whole life, in seconds: for one that spins between cells, where no timeout applies.
_MAX_CPU_SECONDS = 24 * 3600

# The complete environment of a guest. glibc's malloc keeps freed memory once large buffers have been used, unless its
# threshold is set: this is its initial value. It saves a guest 15 MB at its start, and 80 to 100 MB when packages are
# loaded, whose files and compiler memory were kept. Used for guests only.
ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Launch:
    """The launch options of a guest process. In addition, every guest may read and write its sandbox directory and the
    volumes, and read the files that its executable is linked to; it has no network, and ENVIRONMENT."""

    program: list[str]
    """The path of an executable, which it may run again, and the arguments."""
    readable: tuple[Path, ...]
    max_data_mb: int
    """Private memory, MiB, as counted by RLIMIT_DATA."""
    max_resident_mb: int
    """Resident memory above which it is killed, MiB. Includes shared mappings, which RLIMIT_DATA does not count."""


@dataclass(frozen=True)
class Spawned:
    """A guest process and our ends of its pipes."""

    pid: int
    requests: int
    frames: int
    interrupts: int
    errors: int
    max_resident_mb: int = 0
    """Resident memory above which it is killed, MiB; 0: no cap."""
    group: Group | None = None
    """Its control group, if there is one."""
    state_out: int = -1
    """The saved state of its session, which it writes (host/state)."""
    state_in: int = -1
    """A saved state, which it reads."""


def guest_policy(sandbox: SandboxDirectory, launch: Launch, descriptors: list[int]) -> Policy:
    """The policy that confines a guest."""
    writable = (*sandbox.writable, *volume_paths("rw"))
    readable = (*volume_paths("ro"), sandbox.offered)
    policy = _policy(launch, descriptors, readable, writable, settings().workspace_mb)
    return replace(policy, umask=settings().umask)


def volume_paths(mode: str) -> tuple[Path, ...]:
    """The volumes that a guest may only read ("ro") or also write ("rw"). Raises OSError if one has become a link: its
    path had none when the settings were made."""
    for volume in settings().volumes:
        if os.path.realpath(volume.path) != volume.path:
            raise OSError(errno.ELOOP, f"/volumes/{volume.name} leads elsewhere than when the kernel was started")
    return tuple(Path(volume.path) for volume in settings().volumes if volume.mode == mode)


def _policy(
    launch: Launch, descriptors: list[int], readable: Iterable[Path], writable: Iterable[Path], max_file_mb: int
) -> Policy:
    executable = Path(launch.program[0])
    linked = linked_files(executable)
    loaders = [path for path in linked if os.path.basename(path).startswith("ld-")]
    return Policy(
        program=launch.program,
        descriptors=descriptors,
        environment=ENVIRONMENT,
        readable=[str(path) for path in (*launch.readable, *readable, os.devnull, "/etc/ld.so.cache", *linked)],
        writable=[str(path) for path in writable],
        unlinked=[volume.path for volume in settings().volumes],
        executable=[str(executable), *loaders],
        max_data_mb=launch.max_data_mb,
        max_file_mb=max_file_mb,
        max_cpu_seconds=_MAX_CPU_SECONDS,
        uid=settings().guest_uid if os.geteuid() == 0 else None,
    )


def spawn_guest(
    sandbox: SandboxDirectory, launch: Launch, change: Callable[[Policy], Policy] = lambda policy: policy
) -> Spawned:
    """Start a confined guest process. Raises OSError. `change`: used by the attack suite to omit a layer."""
    with ExitStack() as theirs, ExitStack() as ours:
        null = _keep(theirs, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        errors, errors_theirs = _pipe(ours, theirs)
        frames, frames_theirs = _pipe(ours, theirs)
        requests_theirs, requests = _pipe(theirs, ours)
        interrupts_theirs, interrupts = _pipe(theirs, ours)
        state_out, state_out_theirs = _pipe(ours, theirs)
        state_in_theirs, state_in = _pipe(theirs, ours)
        os.set_blocking(interrupts_theirs, False)
        descriptors = [null, errors_theirs, errors_theirs, requests_theirs, frames_theirs, interrupts_theirs]
        descriptors += [state_out_theirs, state_in_theirs]
        policy = change(guest_policy(sandbox, launch, descriptors))
        pid = _spawn(sandbox, policy)
        above = delegated()
        group = confine(above, pid, launch.max_resident_mb) if above else None
        if group is None and "cgroup" in settings().required_layers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise OSError("the control group that required_layers asks for could not be made")
        ours.pop_all()  # now owned by the caller
    cap = launch.max_resident_mb
    return Spawned(pid, requests, frames, interrupts, errors, cap, group, state_out, state_in)


def spawn_builder(sandbox: SandboxDirectory, launch: Launch, max_file_mb: int, errors: int) -> int:
    """Start a process that creates a file in tmp of the sandbox directory, confined like a guest; return its process
    id. It writes errors to the descriptor `errors`."""
    with ExitStack() as stack:
        null = _keep(stack, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        return _spawn(sandbox, _policy(launch, [null, null, errors], (), [sandbox.tmp], max_file_mb))


def spawn_filter(sandbox: SandboxDirectory, launch: Launch, max_file_mb: int, descriptors: list[int]) -> int:
    """Start a process, confined like a guest, with three descriptors and no writable folder; return its process id."""
    return _spawn(sandbox, _policy(launch, descriptors, (), (), max_file_mb))


def _keep(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    return _keep(reader, read), _keep(writer, write)


def _spawn(sandbox: SandboxDirectory, policy: Policy) -> int:
    if policy.uid is None:
        sandbox.seal()
    else:
        give_to_guest(sandbox, policy.uid, (*policy.writable, *policy.readable, *policy.executable))
    return spawn(policy)


def give_to_guest(sandbox: SandboxDirectory, uid: int, paths: Iterable[str]) -> None:
    """Give workspace and tmp to the guest's user.

    Raises PermissionError if that user cannot access what it needs: Landlock only removes access, and file system
    permissions still apply.
    """
    sandbox.seal(passable=True)
    own = (sandbox.workspace, sandbox.tmp)
    for path in (sandbox.path, *(path for path in map(Path, paths) if path not in own)):
        if (closed := closed_to(uid, path)) is not None:
            raise PermissionError(
                f"the user {uid} of guest_uid cannot reach {path}: {closed} is not accessible to others; put"
                " KERNELMCP_HOME and the installation where that user can reach them, or omit guest_uid"
            )
    for folder in own:
        os.chown(folder, uid, uid)


def closed_to(uid: int, path: Path) -> Path | None:
    """The path that denies a user access to a file or folder: itself, or a folder above. None if there is none."""
    real = path.resolve()
    return next((up for up in (real, *real.parents) if not _is_open_to(uid, up)), None)


def _is_open_to(uid: int, path: Path) -> bool:
    """Return whether a user may read a file, or pass through a directory. True for a missing path."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return True
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == uid else 0
    wanted = 0o001 if stat.S_ISDIR(found.st_mode) else 0o004
    return bool(found.st_mode >> shift & wanted)
