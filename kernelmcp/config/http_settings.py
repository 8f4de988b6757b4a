"""The settings of the HTTP side, with their units and reasons: `[transport_http]`, `[auth]` and `[telemetry]`.

Part of `config`, which other modules import.
"""

import re
from typing import Any, cast

from pydantic import Field, SecretStr, field_validator

from kernelmcp.config.section import Section, UserPath


def _as_text(value: Any) -> Any:
    """A token that consists of digits is read as a number, from a file or the environment."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# Of a token that no client can send.
UNSENDABLE = "has a space, a newline, or a character that is not ASCII"


# An `Origin` as browsers send it.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*,\sA-Z]+|null")
_HOST = re.compile(r"[^/?#@*,\s]+")


class HttpSection(Section):
    enabled: bool = True
    """Allow `serve --transport http`."""
    host: str = "127.0.0.1"
    """The address to bind. Without authentication only loopback is bound, unless `insecure`."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0: any free port; the log says which."""
    path: str = Field(default="/mcp", pattern=r"^(/[A-Za-z0-9._~-]+)+$")
    """The path of streamable HTTP."""
    sse: bool = True
    """Serve the older transport, `/sse` and `/messages/`, as well."""
    insecure: bool = False
    """Bind other addresses than loopback without authentication: whoever reaches the port runs code."""
    allowed_hosts: list[str] = []
    """Names under which clients reach the server, as in `kernels.example.com` (any port) or `kernels.example.com:443`.
    Loopback, `host` and, when all addresses are bound, addresses in digits are allowed anyway. Others are refused:
    a page in a browser must not reach the server through a name of its own."""
    cors_origins: list[str] = []
    """Origins whose pages in a browser may use the server, as in `https://chat.example.com`. Others are refused."""
    trusted_proxies: list[str] = []
    """Addresses or networks of reverse proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed. `*`
    believes everybody: a client behind a proxy that adds to what it was sent then chooses its own address."""
    auth_token: SecretStr | None = Field(default=None, min_length=1)
    """One bearer token; its holder is the principal `token:default`. For several, see `[auth]`."""
    rate_limit_requests: int = Field(default=6000, ge=0)
    """Requests per principal and window; more get 429 with Retry-After. 0: no limit. The default stops loops only."""
    rate_limit_window_seconds: float = Field(default=60, gt=0)
    """Length of the window, seconds."""
    max_concurrent_requests: int = Field(default=256, ge=1)
    """Requests being answered at one time; more get 503 with Retry-After. Streams of events are counted apart."""
    max_streams: int = Field(default=1024, ge=1)
    """Open streams of events: GET, SSE and `subscriptions/listen`. Each costs a connection and about 50 kB.
    As many MCP connections of older clients may be open."""
    request_timeout_seconds: float = Field(default=120, gt=0)
    """Time for one request, from its head to the end of the answer, seconds; at least `inline_wait_seconds` + 15. A
    call answers `running` before that, so only a client that sends slowly, or a fault, runs into it."""
    head_timeout_seconds: float = Field(default=20, gt=0)
    """Time that a client has to send the head of a request, from its first byte or the start of the connection,
    seconds."""
    max_request_size_mb: float = Field(default=16, gt=0)
    """Largest body of a request, MiB; larger ones get 413. The code of a whole notebook is far smaller."""
    drain_seconds: float = Field(default=10, ge=0)
    """Time that running cells get to finish after SIGTERM before they are interrupted, seconds. Kubernetes kills after
    30 s."""

    _token = field_validator("auth_token", mode="before")(_as_text)

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} matches no page: give each origin, without a path, as in https://a.example"
                )
        return origins

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _HOST.fullmatch(name):
                raise ValueError(f"{name!r} matches no client: give each name alone, as in kernels.example.com")
        return names

    @field_validator("auth_token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not is_token(token.get_secret_value()):
            raise ValueError(f"the token {UNSENDABLE}")
        return token


def is_token(text: str) -> bool:
    """True for a token that a client can send in a header as it is."""
    return text.isascii() and text.isprintable() and " " not in text


class AuthSection(Section):
    tokens: dict[str, SecretStr] = {}
    """Bearer tokens, each under the name of its holder, who is the principal `token:NAME`."""
    tokens_file: UserPath | None = None
    """A TOML file of `name = "token"` lines. It is read again when it changes: a new token works at once, a deleted one
    stops working, and streams that it opened (GET, subscriptions) end with their next event."""
    issuer: str | None = None
    """The OAuth 2.1 authorization server, exactly as in the `iss` of its tokens. With it, its JWTs are accepted."""
    audience: str | None = None
    """The required `aud` of a JWT. Default: `resource_url`. One of the two is needed."""
    jwks_url: str | None = None
    """Where the issuer's public keys are. Default: the address in the issuer's metadata."""
    resource_url: str | None = None
    """The URL of this server as clients know it, as in `https://kernels.example.com/mcp`: published in the protected
    resource metadata."""
    required_scopes: list[str] = []
    """Scopes that every JWT must have. After a change, the published metadata has the old ones until a restart."""
    algorithms: list[str] = ["RS256", "PS256", "ES256", "ES384", "EdDSA"]
    """Signature algorithms that are accepted. Those with a shared secret (HS256) are refused even when they are
    listed."""

    @field_validator("tokens", mode="before")
    @classmethod
    def _texts(cls, tokens: Any) -> Any:
        if not isinstance(tokens, dict):
            return tokens
        return {name: _as_text(value) for name, value in cast("dict[Any, Any]", tokens).items()}

    @field_validator("tokens")
    @classmethod
    def _not_empty(cls, tokens: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, token in tokens.items():
            if not name.strip():
                raise ValueError("a token's holder has no name")
            if not token.get_secret_value():
                raise ValueError(f"the token of {name!r} is empty")
            if not is_token(token.get_secret_value()):
                raise ValueError(f"the token of {name!r} {UNSENDABLE}")
        return tokens


class TelemetrySection(Section):
    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP), as in `http://localhost:4318`. Default: no traces."""
