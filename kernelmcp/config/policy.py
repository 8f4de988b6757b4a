"""Limits of guests: config/policy.toml, with units and reasons.

Part of `config`, which other modules import.
"""

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from kernelmcp.config.section import Section

Flavor = Literal["small", "medium", "large"]
LayerName = Literal[
    "wasm",
    "node-permission",
    "empty-environment",
    "closed-descriptors",
    "no_new_privs",
    "landlock",
    "seccomp",
    "seatbelt",
    "cgroup",
]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables reach the guest through a pipe that holds 64 KiB before the guest reads.
MAX_ENV_BYTES = 32 * 1024


class FlavorLimits(Section):
    memory_mb: int = Field(ge=64, le=4096)
    """Cap of the guest's wasm memory, MiB (4096 is what wasm32 can address)."""


FLAVORS: dict[Flavor, FlavorLimits] = {
    "small": FlavorLimits(memory_mb=512),
    "medium": FlavorLimits(memory_mb=1024),
    "large": FlavorLimits(memory_mb=4096),
}


class Policy(Section):
    """config/policy.toml: what a guest may use up."""

    execution_timeout_seconds: float = Field(default=300, gt=0)
    """Wall time of one execution, seconds, after which it is interrupted. Also the most a caller may ask for."""
    cpu_seconds: float | None = Field(default=None, gt=0)
    """CPU time of one execution, seconds, after which it is interrupted. Default: no limit besides wall time."""
    background_cpu_seconds: float = Field(default=60, gt=0)
    """CPU time that tasks left behind by cells may use between two cells, seconds. Beyond it they are cancelled, and
    the next result says so; a guest whose tasks run on all the same is ended. A minute is a lot for a task that mostly
    waits."""
    memory_mb: int | None = Field(default=None, ge=64, le=4096)
    """Memory of the flavors that `flavors` does not set, MiB. Default: each flavor's own."""
    stdout_max_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """How much of one execution's stdout is kept, bytes; the rest is counted and dropped. Beyond 1 MiB it is kept on
    disk."""
    stderr_max_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    """The same for stderr."""
    output_budget_chars: int = Field(default=8_000, ge=200)
    """Text shown in one result, characters: about 2,000 tokens. The whole stays readable as a resource."""
    max_outputs: int = Field(default=1000, ge=1)
    """Displayed objects kept per execution; the rest is counted and dropped."""
    outputs_max_bytes: int = Field(default=24 * 1024 * 1024, ge=1024)
    """Memory for the displayed objects of one execution, and for those of all finished executions of a session
    together, bytes. Those of the newest finished execution are always kept; a session without a kernel keeps 4 MiB."""
    workspace_max_mb: int = Field(default=1024, ge=1)
    """Disk space for a session's files, its /tmp included, MiB; no single file can be larger either. One GiB holds the
    data of most tasks, and 32 such sessions fit on a laptop's disk. Beyond it, writing fails with ENOSPC."""
    max_files: int = Field(default=10_000, ge=10)
    """Most files and directories of a session, its /tmp included. Listing that many takes a tenth of a second."""
    checkpoints_max_mb: int = Field(default=1024, ge=1)
    """Disk space for a session's checkpoints together, MiB: variables and files. The oldest ones make room. They count
    in `storage_max_mb`, too."""
    storage_max_mb: int = Field(default=16 * 1024, ge=1)
    """Disk space for all sessions of one principal together, stopped ones too, MiB: their files, transcripts and
    outputs, in blocks of 4 KiB. The sessions that run share what is left of it; once it is used up, a new session is
    refused."""
    flavors: dict[Flavor, FlavorLimits] = Field(default={}, validate_default=True)
    """Limits of each flavor. A flavor that is not set has `memory_mb`, or else 512, 1024 or 4096 MiB."""
    default_flavor: Flavor = "medium"
    """The flavor of a session that names none, and the only one that is kept warm."""
    env: dict[str, str] = {}
    """Environment variables of the guest, in `os.environ` there. All sessions can read them."""
    guest_uid: int | None = Field(default=None, ge=1)
    """The user and group id that guests run as when the server runs as root. It must be able to reach (not to list) the
    home and the installation. Default: none; guests stay root, without root's capabilities."""
    required_layers: list[LayerName] = []
    """Isolation layers without which neither server nor kernel starts; `kernelmcp doctor` shows which hold. Each is
    tried in a process of its own, which takes a tenth of a second at every start. Default: none."""

    @field_validator("flavors")
    @classmethod
    def _fill_in(cls, named: dict[Flavor, FlavorLimits], info: ValidationInfo) -> dict[Flavor, FlavorLimits]:
        """A file that changes one flavor keeps the others' defaults."""
        memory_mb: int | None = info.data.get("memory_mb")
        others = FLAVORS if memory_mb is None else dict.fromkeys(FLAVORS, FlavorLimits(memory_mb=memory_mb))
        return others | named

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a name for an environment variable: use letters, digits and _")
            if "\0" in value:
                raise ValueError(f"{name} has a NUL character in its value")
        if sum(len(name.encode()) + len(value.encode()) for name, value in env.items()) > MAX_ENV_BYTES:
            raise ValueError(f"the variables are longer than {MAX_ENV_BYTES} bytes together")
        return env
