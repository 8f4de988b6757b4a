"""Every setting of the server, with its unit and its reason; and `Settings`, the one live object that holds them.

The models are frozen. `Settings` is what everything gets: its `config` and `policy` are replaced as a whole when a
file has changed, so read them where they are used and keep no copy. Where the values come from is `sources`'
business.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import platformdirs
from pydantic import ConfigDict, Field, SecretStr, field_validator

from kernelmcp.config.hosts import check_headers, check_host
from kernelmcp.config.http import AuthSection as AuthSection
from kernelmcp.config.http import HttpSection as HttpSection
from kernelmcp.config.http import TelemetrySection as TelemetrySection
from kernelmcp.config.policy import Flavor as Flavor
from kernelmcp.config.policy import LayerName as LayerName
from kernelmcp.config.policy import Policy as Policy
from kernelmcp.config.section import Section
from kernelmcp.config.tool_names import check_tool_name

# Read once, at the start: what was built from them cannot be rebuilt under live sessions.
FIXED_AT_START = (
    "server",
    "transport_stdio",
    "transport_http.enabled",
    "transport_http.host",
    "transport_http.port",
    "transport_http.path",
    "transport_http.sse",
    "transport_http.insecure",
    "transport_http.cors_origins",
    "transport_http.trusted_proxies",
    "transport_http.head_timeout_seconds",
    "transport_http.max_request_size_mb",
    "auth.issuer",
    "auth.audience",
    "auth.jwks_url",
    "auth.resource_url",
    "telemetry",
    "tools",
    "logging.file",
    "policy.required_layers",
    "policy.guest_uid",  # the modes of the home's directories follow it
)

_MISSING = object()


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
    keep_days: float = Field(default=30, ge=0, le=36500)
    """A session that nobody used for so many days is deleted with its files. 0: never."""
    max_stored: int = Field(default=500, ge=1)
    """Sessions per principal that are kept on disk, stopped ones too; the ones that were used longest ago are deleted
    with their files. Every older client over HTTP leaves one behind."""
    kept_executions: int = Field(default=100, ge=1)
    """Newest executions per session whose whole output can still be read, at most (`outputs_max_bytes` may allow
    fewer); older ones answer EXECUTION_NOT_FOUND."""
    max_queued: int = Field(default=64, ge=1)
    """Executions waiting in one session; more are refused, because a client that far ahead is in a loop."""


class ToolsSection(Section):
    enabled: list[str] | None = None
    """Names of the tools to list. Default: all of them."""

    @field_validator("enabled")
    @classmethod
    def _check_names(cls, names: list[str] | None) -> list[str] | None:
        return names and [check_tool_name(name) for name in names]


class Volume(Section):
    path: Path
    """The directory on the host. Absolute; not inside of the server's own directories, nor around them."""
    mode: Literal["ro", "rw"] = "ro"
    """Whether guests may only read it, or write too. Read-only unless it is said: a guest's code is anybody's."""


class VolumesSection(Section):
    """Directories of the host that every guest sees: `[volumes.NAME]`, at /volumes/NAME."""

    model_config = ConfigDict(frozen=True, extra="allow")
    # As pydantic's documentation types extra fields.
    __pydantic_extra__: dict[str, Volume] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def all(self) -> dict[str, Volume]:
        return self.__pydantic_extra__


OWN_KERNELSPEC = "kernelmcp"
"""The kernel that our environment variables mean something to, and whose guest has a working directory of its own."""


class KernelsSection(Section):
    kernelspec: str = OWN_KERNELSPEC
    """Name of the Jupyter kernelspec that sessions run."""
    start_timeout_seconds: float = Field(default=60, gt=0)
    """Until a started kernel must have answered, seconds. A cold start takes about one on an idle machine; the rest is
    for a loaded one and for a first start that builds the boot image."""
    interrupt_grace_seconds: float = Field(default=6, gt=0)
    """After an interrupt, until the kernel is killed, seconds. The kernel kills a guest that ignores interrupts after
    3 s by itself and answers; the server must wait longer than that."""
    refill_delay_seconds: float = Field(default=0.3, ge=0)
    """Pause before the pool replaces a kernel that was taken, seconds: booting competes with the first cell."""


class NetworkSection(Section):
    allow_hosts: list[str] = []
    """What the guest's requests may reach: `example.org`, `*.example.org` (all below it), an address, each with `:port`
    or for ports 80 and 443. Addresses that are not of the public internet only when they stand here. Default: none."""
    headers: dict[str, dict[str, SecretStr]] = {}
    """Per host (or `host:port`), headers that its requests get. The guest never sees them. Without a port: over https
    only. `${NAME}` in a value is an environment variable of the server."""
    timeout_seconds: float = Field(default=30, gt=0, le=300)
    """Of one request with its redirects, seconds."""
    max_request_mb: int = Field(default=16, ge=1, le=20)
    """Of one request's body, MiB. A body travels in one message to the kernel process, which takes 64 MB."""
    max_response_mb: int = Field(default=16, ge=1, le=20)
    """Of one answer's body, unpacked, MiB."""

    @field_validator("allow_hosts")
    @classmethod
    def _check_hosts(cls, hosts: list[str]) -> list[str]:
        return [check_host(host) for host in hosts]

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, hosts: dict[str, dict[str, SecretStr]]) -> dict[str, dict[str, SecretStr]]:
        for host, headers in hosts.items():
            if check_host(host).startswith("*"):
                raise ValueError(f"{host!r} is no single host: a secret goes to a host that is named")
            check_headers(host, {name: value.get_secret_value() for name, value in headers.items()}, os.environ)
        return hosts


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
    max_cache_mb: int = Field(default=4096, ge=1)
    """Most bytes of the package cache, MiB. What no session uses goes first, the longest unused; when all is in use,
    nothing new is installed. One session may use half of it."""


class LoggingSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written. At `info`: one line per execution. Code and its output are written at no level."""
    format: Literal["console", "json"] = "console"
    """For a person, or one JSON object per line."""
    file: Path | None = None
    """Where to. Default: stderr. The file may be renamed at any time (logrotate): the next line makes a new one."""
    file_max_mb: int = Field(default=64, ge=1)
    """When the file is larger, MiB, it becomes FILE.1, over the one before, and a new one is begun."""


class Config(Section):
    """config/mcp.toml"""

    server: ServerSection = ServerSection()
    transport_stdio: StdioSection = StdioSection()
    transport_http: HttpSection = HttpSection()
    auth: AuthSection = AuthSection()
    sessions: SessionsSection = SessionsSection()
    tools: ToolsSection = ToolsSection()
    kernels: KernelsSection = KernelsSection()
    network: NetworkSection = NetworkSection()
    packages: PackagesSection = PackagesSection()
    volumes: VolumesSection = VolumesSection()
    logging: LoggingSection = LoggingSection()
    telemetry: TelemetrySection = TelemetrySection()


class Values(Section):
    """All settings as they were at one moment."""

    config: Config = Config()
    policy: Policy = Policy()


@dataclass(frozen=True)
class Place:
    """A settings file. One that was named must be there; one in its default place may be."""

    path: Path
    named: bool


class Sources(Protocol):
    """Where the values came from (`sources.Sources`)."""

    @property
    def places(self) -> tuple[Place, ...]:
        """The files, whether or not they are there."""
        ...

    def read(self) -> Values:
        """Raises `ConfigurationError`."""
        ...


class Settings:
    """Everything, as the rest of the server gets it. Belongs to the event loop's thread once that runs."""

    def __init__(self, values: Values | None = None, sources: Sources | None = None) -> None:
        self.sources = sources
        self._values = values or Values()
        self._listeners: list[Callable[[], None]] = []

    @property
    def config(self) -> Config:
        return self._values.config

    @property
    def policy(self) -> Policy:
        return self._values.policy

    @property
    def home(self) -> Path:
        return home_directory(self.config.server.home)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after every change. Only for what must act; a reader reads at use."""
        self._listeners.append(listener)

    def reload(self, check: Callable[["Settings"], None] = lambda _: None) -> tuple[list[str], list[str]]:
        """Read the sources again: the names of what has changed, and of what waits for the next start.

        Raises `ConfigurationError`, or what `check` raises of the new settings, and then nothing has changed.
        """
        if self.sources is None:
            return [], []
        old, new = self._values.model_dump(), self.sources.read().model_dump()
        waiting = [name for key in FIXED_AT_START for name in _keep(key, old, new)]
        changed = _differences(old["config"], new["config"]) + _differences(old["policy"], new["policy"], "policy.")
        if changed:
            before, values = self._values, Values.model_validate(new)
            check(Settings(values))
            self._values = values
            try:
                for listener in self._listeners:
                    listener()
            except Exception:
                self._values = before
                raise
        return changed, waiting


def home_directory(configured: Path | str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where everything is kept that is kept."""
    home = configured or environ.get("KERNELMCP_HOME")
    return Path(home) if home else Path(platformdirs.user_data_dir("kernelmcp", appauthor=False))


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Names of settings, `section.key`. Never values: one may be a secret."""
    found: list[str] = []
    for key in dict.fromkeys([*old, *new]):
        # What is missing is like nothing else: the tables of volumes come and go.
        before, after = old.get(key, _MISSING), new.get(key, _MISSING)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict) and not prefix:
            found += _differences(cast("dict[str, Any]", before), cast("dict[str, Any]", after), f"{key}.")
        else:
            found.append(f"{prefix}{key}")
    return found


def _keep(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Carry a fixed section or setting over from the old values; what would have changed."""
    path = name.split(".") if name.startswith("policy.") else ["config", *name.split(".")]
    for part in path[:-1]:
        old, new = old[part], new[part]
    before, after = old[path[-1]], new[path[-1]]
    new[path[-1]] = before
    if before == after:
        return []
    return _differences(before, cast("dict[str, Any]", after), f"{name}.") if isinstance(after, dict) else [name]
