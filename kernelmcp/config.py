"""Every setting of the server, with its unit and its reason, and the one place that reads files and the environment.

Order: command line, environment (`KERNELMCP_<SECTION>__<KEY>`), file (`mcp.toml`, `policy.toml`), default. The models
are frozen and passed in; nobody else reads them from anywhere. An unknown key or a bad value is a `ConfigurationError`
that names the file, the key and what would do. Above: cli, app. Below: errors.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kernelmcp.errors import ConfigurationError

ENV_PREFIX = "KERNELMCP_"
Flavor = Literal["small", "medium", "large"]
SectionT = TypeVar("SectionT", bound="Section")


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServerSection(Section):
    name: str = "kernelmcp"
    """The name that clients show."""
    home: Path | None = None
    """Where sessions, workspaces and images are kept. Default: KERNELMCP_HOME, else the platform's user data folder."""
    runtime: Path | None = None
    """Where the sockets lie. Must be short: a Unix socket's path has at most 108 bytes. Default: XDG_RUNTIME_DIR or
    the temporary folder."""


class StdioSection(Section):
    enabled: bool = True
    """Whether `serve --transport stdio` is allowed."""


class SessionsSection(Section):
    default_timeout_seconds: float = Field(default=3600, gt=0)
    """Idle life of a session's processes, seconds. Files and transcript stay. One hour: a person's coffee break must
    not cost the variables, a forgotten session must not cost 150 MB for a day."""
    max_sessions_per_client: int = Field(default=8, ge=1)
    """Sessions with live processes per principal; one more stops the longest idle one. 8 x 150 MB is about what a
    laptop spares."""
    max_sessions: int = Field(default=32, ge=1)
    """Sessions with live processes on the whole server."""
    warm_pool_size: int = Field(default=1, ge=0)
    """Kernels started in advance. One hides the start for one person; each costs about 150 MB."""
    inline_wait_seconds: float = Field(default=45, ge=0)
    """How long a call waits for its cell before it answers `running`, seconds. Claude Desktop cuts a call at 60 s."""
    keep_days: float = Field(default=30, ge=0)
    """A session that nobody used for so many days is deleted with its files when a server starts. 0: never."""
    kept_executions: int = Field(default=100, ge=1)
    """Newest executions per session whose whole output can still be read; older ones answer EXECUTION_NOT_FOUND."""
    max_queued: int = Field(default=64, ge=1)
    """Executions waiting in one session; more are refused, because a client that far ahead is in a loop."""


class ToolsSection(Section):
    enabled: list[str] | None = None
    """Names of the tools to list. Default: all of them."""


class KernelsSection(Section):
    kernelspec: str = "kernelmcp"
    """Name of the Jupyter kernelspec that sessions run."""
    start_timeout_seconds: float = Field(default=60, gt=0)
    """Until a started kernel must have answered, seconds. A cold start takes about one on an idle machine; the rest is
    for a loaded one and for a first start that builds the boot image."""
    interrupt_grace_seconds: float = Field(default=6, gt=0)
    """After an interrupt, until the kernel is killed, seconds. The kernel kills a guest that ignores interrupts after
    3 s by itself and answers; the server must wait longer than that."""
    refill_delay_seconds: float = Field(default=0.3, ge=0)
    """Pause before the pool replaces a kernel that was taken, seconds: booting competes with the first cell."""


class PackagesSection(Section):
    """What guests may install, and from where. The kernel process reads it as KERNELMCP_PACKAGES, one JSON object."""

    enabled: bool = True
    """Whether packages may be installed."""
    index_url: str | None = None
    """The one package index to use. Default: as pip is configured on this machine, else PyPI."""
    pyodide_url: str | None = None
    """Where the files of Pyodide's own distribution (numpy, pandas and 350 more) lie: the address of a mirror, or a
    local folder. Each file is checked against the sha256 in the runtime's lock file. Default: the project's CDN."""
    wheel_folders: list[str] = []
    """Local folders with wheels that may be installed too; `kernelmcp build-wheel` fills one under `server.home` that
    always counts."""
    preinstalled: list[str] = []
    """Requirements that every session has from the start, imported in a boot image of their own so that `import`
    takes no time."""
    allowed: list[str] | None = None
    """Names that may be asked for (what they need comes with them). Default: any. An allow-list keeps out packages
    whose names are one letter off."""
    denied: list[str] = []
    """Names that are refused, also as a dependency."""
    resolution_ttl_seconds: float = Field(default=24 * 3600, ge=0)
    """How long the answer to "which versions?" is taken from the cache, seconds. What names exact versions does not
    age."""
    install_timeout_seconds: float = Field(default=300, gt=0)
    """Until one installation must be done, seconds. The largest wheels are 30 MB; the rest is for slow networks."""
    max_package_mb: int = Field(default=512, ge=1)
    """Most bytes of one package when unpacked, MiB: a wheel of a megabyte can unpack to a terabyte."""


class LoggingSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is written to stderr."""
    format: Literal["console", "json"] = "console"


class Config(Section):
    """config/mcp.toml"""

    server: ServerSection = ServerSection()
    transport_stdio: StdioSection = StdioSection()
    sessions: SessionsSection = SessionsSection()
    tools: ToolsSection = ToolsSection()
    kernels: KernelsSection = KernelsSection()
    packages: PackagesSection = PackagesSection()
    logging: LoggingSection = LoggingSection()


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
    stdout_max_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Kept of one execution's stdout, bytes; the rest is counted and dropped. It lies on disk beyond 1 MiB."""
    stderr_max_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    """The same for stderr."""
    output_budget_chars: int = Field(default=20_000, ge=200)
    """Text shown in one result, characters: about 5,000 tokens. The whole stays readable as a resource."""
    max_outputs: int = Field(default=1000, ge=1)
    """Displayed objects kept per execution; the rest is counted and dropped."""
    outputs_max_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Bytes of displayed objects kept per execution, in memory."""
    flavors: dict[Flavor, FlavorLimits] = FLAVORS
    default_flavor: Flavor = "medium"
    """The flavor of a session that names none, and the only one that is kept warm."""

    @field_validator("flavors")
    @classmethod
    def _keep_the_others(cls, named: dict[Flavor, FlavorLimits]) -> dict[Flavor, FlavorLimits]:
        """A file that changes one flavor leaves the others as they are."""
        return FLAVORS | named


class Settings(Section):
    """Everything, as the rest of the server gets it."""

    config: Config = Config()
    policy: Policy = Policy()

    @property
    def home(self) -> Path:
        home = self.config.server.home or os.environ.get("KERNELMCP_HOME")
        return Path(home) if home else Path(platformdirs.user_data_dir("kernelmcp", appauthor=False))


def load(
    config_file: Path | None = None,
    policy_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Read both files, lay the environment and the command line over them, and refuse what is not understood."""
    config, policy = _read(config_file), _read(policy_file)
    for name, value in environ.items():
        section, separator, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        if not name.startswith(ENV_PREFIX) or not separator:
            continue
        target = policy if section == "policy" else config.setdefault(section, {})
        if isinstance(target, dict):
            target[key] = _from_environment(value)
    for section, values in (overrides or {}).items():
        config.setdefault(section, {}).update(values)
    return Settings(
        config=_validate(Config, config, str(config_file or "the configuration")),
        policy=_validate(Policy, policy, str(policy_file or "the policy")),
    )


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as exc:
        raise ConfigurationError(
            f"{file}: cannot be read: {exc.strerror}", "Give the path of a readable file."
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{file}: is not TOML: {exc}", "Correct the file.") from exc


def _from_environment(text: str) -> Any:
    """A value as TOML would read it (numbers, booleans, lists), else the plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _validate(model: type[SectionT], values: dict[str, Any], source: str) -> SectionT:
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        lines = [_explain(model, detail["loc"], detail["type"], detail["msg"]) for detail in exc.errors()]
        raise ConfigurationError(f"{source}: " + "; ".join(lines), "Correct the setting and start again.") from exc


def _explain(model: type[BaseModel], loc: tuple[int | str, ...], kind: str, message: str) -> str:
    key = ".".join(str(part) for part in loc)
    if kind != "extra_forbidden":
        return f"{key}: {message}"
    known = _known_keys(model, loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"{key}: there is no such setting ({hint})"


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return list(model.model_fields)
