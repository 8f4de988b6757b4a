"""Connections to strangers over HTTP, with bounds that neither httpx2 nor h11 have: a head ends, and small pieces of a
body, of which each costs as much time as a large one, come at a pace."""

import asyncio
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpcore2
import httpx2

from kernelmcp.upstreams.pace import Pace

MAX_CONNECTIONS = 100
# A response's head, with the interim ones before it.
MAX_HEAD_BYTES = 64 * 1024
# Beyond this it is mostly interim answers, each as costly as a small piece: so much of them is read at once, and then
# others have their turn, seconds.
ORDINARY_HEAD_BYTES, LONG_HEAD_READ_BYTES, LONG_HEAD_PAUSE_SECONDS = 4 * 1024, 1024, 0.02
# What is read at once: less at first and where it comes in small pieces, because others wait while they are parsed.
LEAST_READ_BYTES, MOST_READ_BYTES = 4 * 1024, 64 * 1024
# A piece of a body smaller than this counts; so many may come at once, and so many a second.
SMALL_PIECE_BYTES = 512
PIECES_BURST, PIECES_PER_SECOND = 2000.0, 1000.0
# After so many, others have their turn.
PIECES_AT_ONCE = 64


def transport_to(url: str) -> httpx2.AsyncHTTPTransport:
    """httpx2's, by the proxy that the environment names, with bounds on what a stranger answers."""
    made = httpx2.AsyncHTTPTransport(
        proxy=_proxy(url), limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=4)
    )
    pool: Any = made._pool  # pyright: ignore[reportPrivateUsage]  # httpx2 takes no backend
    pool._network_backend = _Backend(pool._network_backend)
    return made


def _proxy(url: str) -> str | None:
    """As the environment says for this address; httpx2 asks it only where the transport is its own."""
    parsed = httpx2.URL(url)
    if urllib.request.proxy_bypass(parsed.host):
        return None
    return urllib.request.getproxies().get(parsed.scheme)


class Pieces(httpx2.AsyncByteStream):
    """A body. Many small pieces are read slowly: each costs as much time as a large one."""

    def __init__(self, response: httpx2.Response) -> None:
        """`response`: of a transport that `transport_to` has made."""
        self._inner: Any = response.stream
        self._stream: _Stream = response.extensions["network_stream"]
        self._stream.begin_body()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            if len(piece) < SMALL_PIECE_BYTES:
                await self._stream.small_piece()
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection on which a head ends, and no read brings more small pieces than others can wait for."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._pace = Pace(PIECES_BURST, PIECES_PER_SECOND)
        self._pieces = 0
        self._head_bytes: int | None = 0
        """None in a body."""
        self._at_once = LEAST_READ_BYTES

    def begin_body(self) -> None:
        self._head_bytes = None

    async def small_piece(self) -> None:
        """One of a body came."""
        self._at_once = LEAST_READ_BYTES
        self._pieces += 1
        if (wait := self._pace.delay()) or self._pieces % PIECES_AT_ONCE == 0:
            await asyncio.sleep(wait)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head_bytes is not None and self._head_bytes >= ORDINARY_HEAD_BYTES:
            max_bytes = min(max_bytes, LONG_HEAD_READ_BYTES)
            await asyncio.sleep(LONG_HEAD_PAUSE_SECONDS)
        data = await self._inner.read(min(max_bytes, self._at_once), timeout)
        if self._head_bytes is None:
            self._at_once = min(2 * self._at_once, MOST_READ_BYTES)
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise httpcore2.RemoteProtocolError("its head has no end")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._head_bytes, self._at_once = 0, LEAST_READ_BYTES
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self, inner: httpcore2.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
