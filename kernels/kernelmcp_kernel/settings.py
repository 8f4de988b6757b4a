"""What a kernel process is told at its start: environment variables, the only ones that it reads (docs/design.md 3).

Above: everything that needs one. Below: nothing. Imports little: it is read before a guest is spawned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# The wasm memory of a guest, in MB, when the environment does not say. The boot image alone takes about 60.
DEFAULT_MEMORY_MB = 1024


@dataclass(frozen=True)
class KernelSettings:
    """The settings of one kernel process."""

    memory_mb: int = DEFAULT_MEMORY_MB
    """KERNELMCP_MEMORY_MB: cap of the guest's wasm memory, MiB."""
    berth: Path | None = None
    """KERNELMCP_BERTH: the one directory that the guest may write. Not set: a private one."""
    cpu_seconds: float | None = None
    """KERNELMCP_CPU_SECONDS: CPU time of one execution, seconds. Not set: no limit. A request may name another."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """KERNELMCP_ENV, a JSON object: the guest's environment variables."""


def read_settings(environ: Mapping[str, str]) -> KernelSettings:
    """Raises ValueError for a value that is none."""
    berth = environ.get("KERNELMCP_BERTH")
    return KernelSettings(
        memory_mb=int(environ.get("KERNELMCP_MEMORY_MB") or DEFAULT_MEMORY_MB),
        berth=Path(berth) if berth else None,
        cpu_seconds=float(cpu) if (cpu := environ.get("KERNELMCP_CPU_SECONDS")) else None,
        env=json.loads(environ.get("KERNELMCP_ENV") or "{}"),
    )


@cache
def settings() -> KernelSettings:
    """This process's."""
    return read_settings(os.environ)
