"""One exchange over HTTP/1.1, with limits. The only user of httpcore2, which provides the parser, TLS and keep-alive.

A connection is made to a checked address, never to a name that is resolved again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import httpcore2

from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.network.allowed_hosts import Address, AllowList, parse_address, parse_host
from kernelmcp_kernel.network.request import Headers, Url

# Requests under way at a time; others wait. Four responses of 20 MB as base64 fit into a guest's queue.
MAX_CONNECTIONS = 4

# How long an unused connection is kept, in seconds: a loop of requests needs only one TLS handshake.
_KEEP_SECONDS = 15

# Number of a name's addresses that are tried, and the time for each, in seconds.
_MAX_ADDRESSES = 4
_CONNECT_SECONDS = 10

# Headers of our connection, or of an encoding that is decoded here.
_HOP_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"trailer", b"alt-svc"}
)

logging.getLogger("httpcore2").setLevel(logging.WARNING)  # its debug lines contain headers


@dataclass(frozen=True)
class Response:
    """A response with its complete, decoded body."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a name, checks every address, and connects to a permitted one."""

    def __init__(self, allowed: AllowList) -> None:
        self._allowed = allowed
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
        # Its own threads: lookups that a name server delays must not block anything else.
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, "kernelmcp-dns")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("no address")
        for address in (await self._permitted(host, port))[:_MAX_ADDRESSES]:
            try:
                return await self._network.connect_tcp(str(address), port, _CONNECT_SECONDS, None, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _permitted(self, text: str, port: int) -> list[Address]:
        host = parse_host(f"[{text}]" if ":" in text else text)
        found = await self._look_up(host, port) if isinstance(host, str) else [host]
        permitted = [address for address in found if self._allowed.permits_address(host, address, port)]
        if not permitted:
            where = f" is at {found[0]}, which" if isinstance(host, str) else ""
            raise HostCallError(
                f"{text}{where} is not an address of the public internet; "
                f"to allow it, add {_as_entry(found[0], port)} to [network] allow_hosts of mcp.toml"
            )
        return permitted

    async def _look_up(self, name: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._threads, lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise HostCallError(f"{name} could not be found: {error}") from error
        return list(dict.fromkeys(parse_address(str(sockaddr[0])) for *_, sockaddr in found))


def _as_entry(address: Address, port: int) -> str:
    text = f"[{address}]" if address.version == 6 else str(address)
    return text if port in (80, 443) else f"{text}:{port}"


class Transport:
    """Exchanges with permitted hosts."""

    def __init__(self, allowed: AllowList, max_response_bytes: int) -> None:
        self._max_bytes = max_response_bytes
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=_KEEP_SECONDS,
            network_backend=_CheckedBackend(allowed),
        )

    async def exchange(self, method: str, url: Url, headers: Headers, body: bytes) -> Response:
        """Send a request and read its answer. Raises HostCallError; the caller bounds the time."""
        named = {name.lower() for name, _ in headers}
        sent = [("Host", url.authority), *headers, ("Accept-Encoding", "identity" if "range" in named else "gzip")]
        if body or method in ("POST", "PUT", "PATCH"):
            sent.append(("Content-Length", str(len(body))))
        if "user-agent" not in named:
            sent.append(("User-Agent", "kernelmcp"))
        target = httpcore2.URL(
            scheme=url.scheme.encode(), host=str(url.host).encode(), port=url.port, target=url.target.encode()
        )
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent]
        try:
            async with self._pool.stream(method.encode(), target, headers=raw, content=body or None) as response:
                return await self._read(method, response)
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, ssl.SSLError) as error:
            kind = type(error).__name__
            raise HostCallError(f"the request to {url.authority} failed: {kind}: {error}") from error

    async def _read(self, method: str, response: httpcore2.Response) -> Response:
        if not 200 <= response.status <= 599:
            raise HostCallError(f"the server answered with {response.status}, which is not an HTTP status")
        headers = [(name.lower(), value) for name, value in response.headers if name.lower() not in _HOP_HEADERS]
        encodings = b",".join(value for name, value in headers if name == b"content-encoding").strip().lower()
        body = _Body(self._max_bytes, encodings in (b"gzip", b"x-gzip"))
        async for chunk in response.aiter_stream():
            body.feed(chunk)
        body.finish()
        if body.gzipped:
            headers = [pair for pair in headers if pair[0] != b"content-encoding"]
        if method != "HEAD":
            headers = [pair for pair in headers if pair[0] != b"content-length"]
        reason = cast(bytes, response.extensions.get("reason_phrase", b""))
        return Response(response.status, reason, headers, bytes(body.data))


class _Body:
    """Collects a body, decompresses gzip incrementally, and stops at the limit, whatever the server sends."""

    def __init__(self, max_bytes: int, gzipped: bool) -> None:
        self.data = bytearray()
        self.gzipped = gzipped
        self._max_bytes = max_bytes
        self._unpacker = zlib.decompressobj(wbits=31)
        self._inside = False  # inside a gzip member

    def feed(self, chunk: bytes) -> None:
        """Add a chunk. Raises HostCallError if the body exceeds the limit or is not gzip."""
        if not self.gzipped:
            self.data += chunk
            self._check()
            return
        while chunk:
            try:
                self.data += self._unpacker.decompress(chunk, self._max_bytes + 1 - len(self.data))
            except zlib.error:
                raise HostCallError("the server says that its answer is gzip, and it is not") from None
            self._check()
            chunk = self._unpacker.unconsumed_tail
            self._inside = not self._unpacker.eof
            if self._unpacker.eof:  # another member may follow
                chunk = self._unpacker.unused_data
                self._unpacker = zlib.decompressobj(wbits=31)

    def finish(self) -> None:
        """The server has sent everything. Raises HostCallError if the gzip data is incomplete."""
        if self._inside:
            raise HostCallError("the server's answer ends too early")

    def _check(self) -> None:
        if len(self.data) > self._max_bytes:
            limit = f"{self._max_bytes // 2**20} MB"
            raise HostCallError(f"the answer is over {limit} ([network] max_response_mb of mcp.toml)")
