"""The rights of a confined child process. Imports little: it is part of every kernel's start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Policy:
    """The rights of a child. Layers that this system lacks are omitted; `layers` lists the available ones.

    `program` is the argument vector, `descriptors` the parent's descriptors that become the child's 0, 1, 2, ... Every
    other descriptor is closed. `environment` is the complete environment. `readable`, `writable` and `executable` are
    paths, including everything below them; nothing starts if one of those in `unlinked` leads through a link.
    `max_open_files` limits its descriptors, `max_data_mb` its private memory, `max_file_mb` the size of a file that it
    writes, `max_cpu_seconds` its CPU time (0: no limit). `uid`: the user and group that a root process becomes.
    `umask`: for the files that it creates.
    """

    program: list[str]
    descriptors: list[int]
    environment: dict[str, str]
    readable: list[str] = field(default_factory=list[str])
    writable: list[str] = field(default_factory=list[str])
    executable: list[str] = field(default_factory=list[str])
    unlinked: list[str] = field(default_factory=list[str])
    max_data_mb: int = 0
    max_file_mb: int = 0
    max_cpu_seconds: int = 0
    max_open_files: int = 256
    uid: int | None = None
    umask: int = 0o077
    network: bool = False
    """It may open connections. A guest never may; pip must."""
    without: list[str] = field(default_factory=list[str])
    """Names of OS_LAYERS to omit. No setting leads here: only the attack suite's own Python does."""
