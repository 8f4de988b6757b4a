"""How much memory there is for this server and its kernels, and how much of it is used: the machine's, or that of a
control group above the server (a container's, a service's) if that is closer to its limit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# Files of a control group, by version: its limit, its use, and in memory.stat what of that is cached files that nobody
# has read again, which the kernel takes back first.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True)
class MemoryUse:
    """In bytes."""

    total: int
    used: int

    @property
    def share(self) -> float:
        return self.used / self.total


def memory_use(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> MemoryUse:
    """The use that is closest to its limit."""
    import psutil  # takes 20 ms of CPU, and no start needs it

    machine = psutil.virtual_memory()
    uses = [MemoryUse(machine.total, machine.total - machine.available)]
    for folder, files in _groups(mount, membership):
        try:
            uses.append(_use_of(folder, *files))
        except (OSError, ValueError, KeyError):
            continue  # it has no limit, or its files are not ours to read
    return max(uses, key=lambda use: use.share)


def _groups(mount: Path, membership: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The server's control groups for memory, each with those above it."""
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, files = (mount / "memory", VERSION_1) if controllers else (mount, VERSION_2)
        own = root / path.lstrip("/")
        yield own, files
        # In a container the mount is often the container's group, whose path on the machine is not in it.
        yield from ((above, files) for above in own.parents if above == root or root in above.parents)


def _use_of(folder: Path, limit_file: str, use_file: str, cache_key: str) -> MemoryUse:
    limit = int((folder / limit_file).read_text("ascii"))
    used = int((folder / use_file).read_text("ascii"))
    stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text("ascii").splitlines())
    if limit <= 0:
        raise ValueError("no memory is allowed")
    return MemoryUse(limit, max(0, used - int(stat[cache_key])))
