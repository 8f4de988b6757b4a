"""`[upstreams]`: the user's other MCP servers, whose tools guests may call, and the policy for these calls.

A server has the same keys as in the `mcpServers` of other programs. `${NAME}` in a value is expanded in the server
(`expansion.expanded`) when it connects: the models, dumps and logs contain names of variables and no values.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator

from kernelmcp.config.choices import CLIENTS
from kernelmcp.config.section import Section, UserText

Decision = Literal["allow", "ask", "deny"]
PersonalKind = Literal["email", "phone", "card"]
# A folder name below /servers, and a word in `kernelmcp upstreams try NAME`; no dot, because NAME.TOOL is a tool.
SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_URL = re.compile(r"(https?://|\$\{).+", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class UpstreamSettings(Section):
    """One server: `[upstreams.servers.NAME]`."""

    command: str | None = None
    """The program to start, which speaks MCP on its stdin and stdout."""
    args: list[str] = []
    """Its arguments."""
    env: dict[str, SecretStr] = {}
    """Its environment, besides HOME, LOGNAME, PATH, SHELL, TERM and USER, which are the server's."""
    cwd: str | None = None
    """The folder that it is started in. Default: the home directory."""
    url: str | None = None
    """The server's address, instead of `command`."""
    type: Literal["stdio", "http", "sse"] | None = None
    """The transport. Default: `stdio` for a command, `sse` for a URL that ends in /sse, else `http`."""
    headers: dict[str, SecretStr] = {}
    """Headers of each request."""
    disabled: bool = False
    """Omit the server and its tools."""
    default: Decision | None = None
    """The decision for tools that no rule names. Default: as `upstreams.default`."""
    tools: dict[Pattern, Decision] = {}
    """Rules by the tool's name, or a pattern such as `get_*`: an exact name goes before a pattern."""
    trust_annotations: bool | None = None
    """Trust its claims about which of its tools only read. Default: as `upstreams.trust_annotations`."""
    private_addresses: bool | None = None
    """Allow its name, and those of its login, to lead to private addresses. Default: as
    `upstreams.private_addresses`."""
    pin: bool = False
    """Ask about a new or changed tool until a person has accepted it."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600)
    """Longest time of one call, and of connecting, seconds."""
    principals: list[str] | None = None
    """Principals that may use it over HTTP, such as `token:alice`. Default: none, because its credentials are one
    person's; the one user of stdio always may."""
    tokenize: list[PersonalKind] = []
    """Kinds of data that guests see as tokens in its results: e-mail addresses, phone numbers, card numbers."""
    reveal: bool = False
    """Replace tokens in calls to it with the values."""

    @property
    def transport(self) -> Literal["stdio", "http", "sse"]:
        if self.type is not None:
            return self.type
        if self.url is None:
            return "stdio"
        return "sse" if self.url.partition("?")[0].rstrip("/").endswith("/sse") else "http"

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not _URL.fullmatch(url):
            raise ValueError("it must begin with http:// or https://")
        return url

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header")
            if _CONTROL.search(value.get_secret_value()):
                raise ValueError(f"the value of {name} has characters that no header may have")
        return headers

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give it either a command or a url")
        if (self.command is None) == (self.transport == "stdio"):
            raise ValueError("type stdio is for a command, http and sse are for a url")
        wrong = {"args", "env", "cwd"} if self.url is not None else {"headers"}
        if found := sorted(name for name in wrong if getattr(self, name)):  # a reload sets all of them
            raise ValueError(f"{found[0]} is for a {'command' if self.url is not None else 'url'}")
        return self


class UpstreamsSection(Section):
    """The user's other MCP servers."""

    files: list[str] = []
    """Programs whose servers are used as well: `claude_desktop`, `claude_code`, `cursor`, `vscode`, or the path of a
    file like theirs, absolute or with `~`. They are read at the start and when a setting changes. kernelmcp itself is
    left out."""
    calls_per_execution: int = Field(default=1000, ge=1)
    """Calls of tools that one execution may make: more is a loop that went wrong."""
    concurrent_calls: int = Field(default=24, ge=1, le=256)
    """Calls of one session under way at one time; more wait."""
    result_mb: int = Field(default=16, ge=1, le=256)
    """Largest result of one call, MiB of JSON."""
    execution_mb: int = Field(default=256, ge=1)
    """Results of one execution together, MiB."""
    call_seconds_per_execution: float = Field(default=600, gt=0)
    """Time that the calls of one execution may take together, seconds; calls at one time each count."""
    audit_file: UserText = "audit.jsonl"
    """File that logs each call: in the home, unless the path is absolute. Empty: none."""
    audit_values: bool = False
    """Log the arguments' values as well, and not only their names and a hash."""
    default: Decision = "ask"
    """The decision for a tool that no rule names and that does not only read: `allow`, `ask` the user at each call, or
    `deny`."""
    trust_annotations: bool = True
    """Trust a server's claims about which of its tools only read (`readOnlyHint`): these are allowed without a rule."""
    private_addresses: bool = False
    """Allow public names of servers to lead to addresses that are not public: of this machine, of a private network. A
    URL with such an address, `localhost`, a name without a dot or one below `.internal` or `.local` needs no
    permission."""
    ask_in_browser: bool = True
    """On stdio, have a client that can open addresses ask for logins and missing values. The page is on 127.0.0.1: turn
    it off where the user's browser is on another machine, or the server in a container."""
    servers: dict[str, UpstreamSettings] = {}
    """The servers, each under its name. One of the same name in `files` is not used."""

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: list[str]) -> list[str]:
        for file in files:
            if file not in CLIENTS and not file.startswith(("/", "~/")):
                raise ValueError(f"{file!r} is neither one of {', '.join(CLIENTS)} nor a path that begins with / or ~/")
        return files

    @field_validator("servers")
    @classmethod
    def _check_names(cls, servers: dict[str, UpstreamSettings]) -> dict[str, UpstreamSettings]:
        for name in servers:
            if not SERVER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid server name: use up to 64 letters, digits, _ and -")
        return servers

    def effective(self, server: UpstreamSettings) -> UpstreamSettings:
        """A server's settings, with those of the section for each one that it omits."""
        inherited = ("default", "trust_annotations", "private_addresses")
        missing = [name for name in inherited if getattr(server, name) is None]
        return server.model_copy(update={name: getattr(self, name) for name in missing})
