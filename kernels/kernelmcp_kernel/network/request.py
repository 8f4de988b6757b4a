"""Valid requests of a guest: parses and checks the request of a host call, once.

Every part comes from the guest and is hostile. The URL is matched against a grammar stricter than any parser's, and the
matched parts are used for the connection: no second parser can read a different host in it.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote, urljoin

from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.network.allowed_hosts import Address, parse_host

_MAX_URL_CHARS = 16 * 1024
_MAX_HEADERS = 100
_MAX_HEADER_CHARS = 32 * 1024  # together; servers' usual limit

_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?([/?][!-\[\]-~]*)?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")

# Headers of a connection, headers that frame a message, and those that the kernel process negotiates.
_NOT_THE_GUESTS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "keep-alive",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade", "via",
    }
)  # fmt: skip
_SECRET = frozenset({"authorization", "cookie"})
_METHODS_REFUSED = frozenset({"CONNECT", "TRACE", "TRACK"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Url:
    """An http or https URL without user or fragment; `host` is an address or a name in lower case."""

    scheme: str
    host: str | Address
    port: int
    target: str

    @property
    def host_text(self) -> str:
        """The host, as written in a URL."""
        text = str(self.host)
        return f"[{text}]" if ":" in text else text

    @property
    def authority(self) -> str:
        """Host and port; without the port if it is the scheme's default."""
        return self.host_text if self.port == _PORTS[self.scheme] else f"{self.host_text}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return self.origin + self.target


@dataclass(frozen=True)
class Request:
    """A checked request."""

    method: str
    url: Url
    headers: Headers
    body: bytes
    follow: bool
    timeout_seconds: float | None


def parse_url(text: object) -> Url:
    """Parse a URL from the guest. Raises HostCallError."""
    if not isinstance(text, str) or len(text) > _MAX_URL_CHARS:
        raise HostCallError("the URL must be text, and no longer than a URL may be")
    found = _URL.fullmatch(text.partition("#")[0])
    if found is None:
        raise HostCallError(
            "this URL cannot be requested: only http and https, a plain host name or address, no user name or password,"
            " and the rest percent-encoded"
        )
    scheme, host, port, target = found.groups(default="")
    number = int(port) if port else _PORTS[scheme]
    if not 0 < number < 65536:
        raise HostCallError(f"{number} is not a port")
    try:
        return Url(scheme, parse_host(host), number, target if target.startswith("/") else f"/{target}")
    except ValueError as error:
        raise HostCallError(f"this URL cannot be requested: {error}") from error


def parse_request(arguments: dict[str, Any], max_body_bytes: int) -> Request:
    """Check a guest's arguments. Raises HostCallError."""
    method = str(arguments.get("method", "GET"))
    if not _TOKEN.fullmatch(method) or len(method) > 32 or method.upper() in _METHODS_REFUSED:
        raise HostCallError("this HTTP method is not allowed here")
    url = parse_url(arguments.get("url"))
    timeout = arguments.get("timeout")
    return Request(
        method=method.upper() if method.upper() in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS") else method,
        url=url,
        headers=_parse_headers(arguments.get("headers")),
        body=_parse_body(arguments.get("body"), max_body_bytes),
        follow=arguments.get("follow") is not False,
        timeout_seconds=timeout if isinstance(timeout, int | float) and timeout > 0 else None,
    )


def _parse_body(sent: object, max_bytes: int) -> bytes:
    if sent is None:
        return b""
    if not isinstance(sent, str):
        raise HostCallError("the body is not base64")
    if len(sent) * 3 // 4 > max_bytes + 2:
        limit = f"{max_bytes // 2**20} MB"
        raise HostCallError(f"the request's body is over {limit} ([network] max_request_mb of mcp.toml)")
    try:
        return base64.b64decode(sent, validate=True)
    except binascii.Error:
        raise HostCallError("the body is not base64") from None


def _parse_headers(sent: object) -> Headers:
    if not isinstance(sent, list) or len(cast("list[Any]", sent)) > _MAX_HEADERS:
        raise HostCallError(f"a request has at most {_MAX_HEADERS} headers")
    headers: Headers = []
    for pair in cast("list[Any]", sent):
        if not isinstance(pair, list) or [type(part) for part in cast("list[Any]", pair)] != [str, str]:
            raise HostCallError("each header must be a pair of two texts, name and value")
        name, value = cast("list[str]", pair)
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HostCallError("a header with characters that no header may have, such as a line break")
        if name.lower() not in _NOT_THE_GUESTS:
            headers.append((name, value.strip(" \t")))
    if sum(len(name) + len(value) for name, value in headers) > _MAX_HEADER_CHARS:
        raise HostCallError(f"the headers are over {_MAX_HEADER_CHARS:,} characters")
    return headers


def redirected(request: Request, status: int, location: str) -> Request:
    """The request for a redirect, following browsers' rules. Raises HostCallError."""
    try:
        text = urljoin(str(request.url), location)
    except ValueError:
        raise HostCallError("the server redirects to something that is not a URL") from None
    url = parse_url(quote(text, safe="%/:=&?~#+!$,;'@()*[]"))
    dropped: set[str] = set()
    method, body = request.method, request.body
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", b""
        dropped |= {"content-type", "content-encoding", "content-language", "content-location"}
    if url.origin != request.url.origin:
        dropped |= _SECRET
    headers = [(name, value) for name, value in request.headers if name.lower() not in dropped]
    return replace(request, method=method, url=url, headers=headers, body=body)
