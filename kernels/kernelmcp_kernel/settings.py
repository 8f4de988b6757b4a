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
class NetworkSettings:
    """KERNELMCP_NETWORK, a JSON object: which hosts the guest's requests may reach, and under which limits.

    What each means, with its unit, says the server's configuration ([network] of docs/configuration.md).
    """

    allow_hosts: list[str] = field(default_factory=list[str])
    headers: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]], repr=False)
    timeout_seconds: float = 30
    max_request_mb: int = 16
    max_response_mb: int = 16


@dataclass(frozen=True)
class KernelSettings:
    """The settings of one kernel process."""

    memory_mb: int = DEFAULT_MEMORY_MB
    """KERNELMCP_MEMORY_MB: cap of the guest's wasm memory, MiB."""
    berth: Path | None = None
    """KERNELMCP_BERTH: the one directory that the guest may write. Not set: a private one."""
    network: NetworkSettings = NetworkSettings()
    """KERNELMCP_NETWORK. Not set: no network."""


def read_settings(environ: Mapping[str, str]) -> KernelSettings:
    """Raises ValueError for a value that is none."""
    berth = environ.get("KERNELMCP_BERTH")
    return KernelSettings(
        memory_mb=int(environ.get("KERNELMCP_MEMORY_MB") or DEFAULT_MEMORY_MB),
        berth=Path(berth) if berth else None,
        network=NetworkSettings(**json.loads(environ.get("KERNELMCP_NETWORK") or "{}")),
    )


@cache
def settings() -> KernelSettings:
    """This process's."""
    return read_settings(os.environ)
