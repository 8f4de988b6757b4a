"""Checks the Host and Origin of a request: against pages in a browser that reach the server through their own name (DNS
rebinding), and against pages of other sites. Also checks that a request has only one indication of its length.

Applied to every request, before anything else.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelmcp.config.models import HttpSection
from kernelmcp.config.settings import Settings

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared with, not bound

log = structlog.get_logger(__name__)


class HostMiddleware:
    """421 for a Host that is not ours, 403 for an Origin that may not use us, 400 for two lengths."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        section = self._settings.config.transport_http
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front may have used the other one: RFC 9112, 6.1.
            log.warning("refused a request with Content-Length and Transfer-Encoding")
            error = {"error": "a request has Content-Length or Transfer-Encoding, not both"}
            await JSONResponse(error, 400, {"Connection": "close"})(scope, receive, send)
            return
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not host_allowed(hosts[0], section, scope.get("server")):
            log.warning("refused a Host", host=repr(hosts)[:200])
            await JSONResponse({"error": "the Host header does not name this server"}, 421)(scope, receive, send)
            return
        for origin in headers.getlist("origin"):
            if not origin_allowed(origin, hosts[0], section):
                log.warning("refused an Origin", origin=repr(origin)[:200])
                await JSONResponse({"error": "this Origin may not use the server"}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_allowed(host: str, section: HttpSection, arrived_at: tuple[str, int | None] | None = None) -> bool:
    """`arrived_at`: the local address of the connection. It is numeric, so no page can be rebound to it."""
    name = hostname(host)
    if name is None:
        return False
    if host.lower() in _lowered(section.allowed_hosts) or name in _lowered(section.allowed_hosts):
        return True
    if name in LOOPBACK_NAMES or name == section.host.lower() or (arrived_at and name == arrived_at[0].lower()):
        return True
    if section.host not in EVERY_ADDRESS:
        return False
    # A numeric address cannot be a DNS name, so a page cannot be rebound to it.
    return _address(name) is not None or name == socket.gethostname().lower()


def origin_allowed(origin: str, host: str, section: HttpSection) -> bool:
    """True if it is one of the server's own pages, or named in the settings."""
    if origin in section.cors_origins:
        return True
    try:
        parts = urlsplit(origin)
        theirs = (hostname(parts.netloc), parts.port or {"http": 80, "https": 443}.get(parts.scheme))
        ours = urlsplit(f"{parts.scheme}://{host}")
        own = (hostname(host), ours.port or {"http": 80, "https": 443}.get(parts.scheme))
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or theirs[0] is None or theirs[1] != own[1]:
        return False
    return theirs[0] == own[0] or {theirs[0], own[0]} <= LOOPBACK_NAMES


def hostname(host: str) -> str | None:
    """The name in a Host header, in lower case, without port and brackets. None if it is malformed."""
    if not host or any(character in host for character in "/?#@\\ ,"):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _lowered(names: list[str]) -> set[str]:
    return {name.lower() for name in names}
