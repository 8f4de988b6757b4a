"""Every setting of the server, with its unit and its reason. The models are frozen; `settings.Settings` holds them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from kernelmcp.config.choices import level_name
from kernelmcp.config.guests import OWN_KERNELSPEC as OWN_KERNELSPEC
from kernelmcp.config.guests import SHARED as SHARED
from kernelmcp.config.guests import KernelsSection as KernelsSection
from kernelmcp.config.guests import NetworkSection as NetworkSection
from kernelmcp.config.guests import PackagesSection as PackagesSection
from kernelmcp.config.guests import Volume as Volume
from kernelmcp.config.guests import VolumesSection as VolumesSection
from kernelmcp.config.http_settings import AuthSection as AuthSection
from kernelmcp.config.http_settings import HttpSection as HttpSection
from kernelmcp.config.http_settings import TelemetrySection as TelemetrySection
from kernelmcp.config.policy import Flavor as Flavor
from kernelmcp.config.policy import LayerName as LayerName
from kernelmcp.config.policy import Policy as Policy
from kernelmcp.config.section import Section, UserPath
from kernelmcp.config.tool_names import check_tool_name
from kernelmcp.config.upstream_settings import Decision, Pattern
from kernelmcp.config.upstream_settings import UpstreamSettings as UpstreamSettings
from kernelmcp.config.upstream_settings import UpstreamsSection as UpstreamsSection

# The name of a server among several with one home: at most 24 characters, so that ids keep to their lengths.
SLOT = r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?"


class ServerSection(Section):
    name: str = "kernelmcp"
    """The name that clients show."""
    home: UserPath | None = None
    """Where sessions, workspaces and images are kept. Default: KERNELMCP_HOME, else the platform's user data folder."""
    runtime: UserPath | None = None
    """Where the sockets are made. The path must be short: a Unix socket's has at most 108 bytes. Default:
    XDG_RUNTIME_DIR or the temporary folder."""
    slot: str | None = Field(default=None, pattern=f"^{SLOT}$")
    """The name of this server among several that share the home behind a load balancer (docs/scaling.md). The ids that
    it gives begin with it. Default: it is the only one."""


class StdioSection(Section):
    enabled: bool = True
    """Allow `serve --transport stdio`."""


class SessionsSection(Section):
    default_timeout_seconds: float = Field(default=3600, gt=0)
    """How long an idle session keeps its processes, seconds; its files, its transcript and, where they can be saved,
    its variables stay."""
    max_sessions_per_client: int = Field(default=8, ge=1)
    """Sessions with live processes per principal; one more stops the longest idle one. 8 x 150 MB is about what a
    laptop spares."""
    max_sessions: int = Field(default=32, ge=1)
    """Sessions with live processes on the whole server."""
    memory_share: float = Field(default=0.9, gt=0, le=1)
    """Share of the memory of the machine, or of the container or service that has a limit, above which the kernels of
    sessions that have been idle for five seconds end, those first that were idle longest. Their variables are saved;
    without `hibernate`, or where they cannot be saved, a kernel goes on. 1: never."""
    warm_pool_size: int = Field(default=1, ge=0)
    """Kernels that are started in advance. One is enough to spare one person the wait; each costs about 150 MB."""
    inline_wait_seconds: float = Field(default=45, ge=0)
    """How long a call waits for its cell before it answers `running`, seconds. Claude Desktop cuts a call at 60 s."""
    keep_days: float = Field(default=30, ge=0, le=36500)
    """Days after which a session that nobody used goes to the trash, with its files; seen there on eight dates, it is
    deleted. 0: never."""
    hibernate: bool = True
    """Save the variables of a Python session when its kernel ends (idle, to make room, when memory is short,
    `stop_session`, the end of the server): its next call has them back. `false`: they are lost."""
    max_checkpoints: int = Field(default=20, ge=1, le=70)
    """Checkpoints per session that somebody has asked for; one more replaces the oldest. At most 70."""
    automatic_checkpoints: int = Field(default=20, ge=0, le=70)
    """Checkpoints per session that are made without being asked for, after a cell and at most every two seconds: the
    newest ones are kept. They also save the variables from a kill of the server. 0: none. At most 70."""
    continue_default: bool = True
    """Let a server on stdio continue the default session of the same client and folder. `false` is for programs that
    run tasks which must not see each other's files, one server process each."""
    max_stored: int = Field(default=500, ge=1)
    """Sessions per principal that are kept on disk, stopped ones too; the ones that were used longest ago are deleted
    with their files. Every older client over HTTP leaves one behind."""
    kept_executions: int = Field(default=100, ge=1)
    """Newest executions per session whose whole output can still be read, at most (`outputs_max_bytes` may allow
    fewer); of older ones what the transcript has."""
    max_queued: int = Field(default=64, ge=1)
    """Executions waiting in one session; more are refused, because a client that far ahead is in a loop."""


class ToolsSection(Section):
    enabled: list[str] | None = None
    """Names of the tools to list. Default: all of them."""
    structured_content: Literal["auto", "always", "never"] = "auto"
    """Clients that get `structuredContent` and output schemas. `auto`: a request whose `_meta` has
    `"kernelmcp/structured": true`, and the clients of `structured_clients`. Several clients show a model that instead
    of the text and the pictures."""
    structured_clients: list[str] = ["mcp-inspector", "inspector-client", "inspector-cli"]
    """Names (`clientInfo.name`) of clients that get it."""
    views: Literal["auto", "always", "never"] = "auto"
    """Clients whose user sees a cell's outputs in a page of the conversation (MCP Apps). `auto`: those that announce
    `io.modelcontextprotocol/ui`."""
    viewed: list[str] = ["execute_code"]
    """Names of the tools whose calls have such a page."""
    view_scripts: bool = False
    """Whether a person may run the scripts of HTML that a cell displayed, in its page. They can send data out: no
    browser's policy denies them WebRTC."""

    @field_validator("enabled", "viewed")
    @classmethod
    def _check_names(cls, names: list[str] | None) -> list[str] | None:
        return names and [check_tool_name(name) for name in names]


class ShellSection(Section):
    commands: dict[Pattern, Decision] = {}
    """Rules for bash commands, by a pattern of the command with its arguments such as `rm -r*` or `curl *`: `allow`,
    `ask` the user, or `deny`. The most specific pattern decides; without one a command runs."""

    @field_validator("commands")
    @classmethod
    def _check_patterns(cls, commands: dict[str, Decision]) -> dict[str, Decision]:
        for pattern in commands:
            if pattern != " ".join(pattern.split()) or not pattern.isprintable():
                raise ValueError(f"{pattern!r} can match no command: words are separated by one blank")
        return commands


class LoggingSection(Section):
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(level_name)] = "info"
    """Messages below this level are left out. `info` writes one line per execution; no level writes code or its
    output."""
    format: Literal["console", "json"] = "console"
    """`console` is for people, `json` writes one JSON object per line."""
    file: UserPath | None = None
    """The file to write to. Default: stderr; nowhere if that is the socket of MCP too, as of inetd. It may be renamed
    at any time (logrotate): the next line creates a new one."""
    file_max_mb: int = Field(default=64, ge=1)
    """Size at which the file is renamed to FILE.1 (replacing an older one) and a new file is begun, MiB."""


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
    upstreams: UpstreamsSection = UpstreamsSection()
    shell: ShellSection = ShellSection()
    logging: LoggingSection = LoggingSection()
    telemetry: TelemetrySection = TelemetrySection()


class Values(Section):
    """All settings at one moment."""

    config: Config = Config()
    policy: Policy = Policy()
