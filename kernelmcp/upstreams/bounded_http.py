"""HTTP connections to untrusted servers, with limits that httpx2 and h11 lack: a response's head is bounded, and small
pieces of a body are throttled, because each costs as much time as a large one."""

import asyncio
import functools
import ssl
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import anyio
import anyio.to_thread
import httpcore2
import httpx2

from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.link import ReadThrottle

MAX_CONNECTIONS = 100
# Addresses to try per name, and the time in seconds before the next one is tried in parallel.
MAX_ADDRESSES, NEXT_ADDRESS_SECONDS = 6, 0.25
# A response's head, including the interim responses before it.
MAX_HEAD_BYTES = 64 * 1024
# A longer head is mostly interim responses, each as costly as a small piece: bytes per read, and the pause in seconds
# for other tasks.
ORDINARY_HEAD_BYTES, LONG_HEAD_READ_BYTES, LONG_HEAD_PAUSE_SECONDS = 4 * 1024, 1024, 0.02
# Bytes per read: fewer at first and after small pieces, because other tasks wait while they are parsed.
LEAST_READ_BYTES, MOST_READ_BYTES = 4 * 1024, 64 * 1024
# Smaller pieces of a body are throttled: allowed burst, and rate per second.
SMALL_PIECE_BYTES = 512
PIECES_BURST, PIECES_PER_SECOND = 2000.0, 1000.0
# Other tasks get a turn after this many.
PIECES_AT_ONCE = 64


class BoundedTransport(httpx2.AsyncBaseTransport):
    """httpx2's transport, using the proxy that the environment names, with limits on a server's answers and on the
    addresses that its names lead to. A proxy looks names up itself."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._made: dict[tuple[str, str | None], httpx2.AsyncHTTPTransport] = {}
        """By scheme and proxy."""
        self._proxies: dict[tuple[str, str], str | None] = {}
        """By scheme and host: on some systems, finding the proxy looks up the host's name."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        where = request.url.scheme, request.url.host
        if where not in self._proxies:
            self._proxies[where] = await anyio.to_thread.run_sync(proxy_for, request.url)
        proxy = self._proxies[where]
        key = request.url.scheme, proxy
        if key not in self._made:
            trusted = await anyio.to_thread.run_sync(_trusted) if request.url.scheme == "https" else _NOBODY
            self._made.setdefault(key, self._make(proxy, trusted))
        return await self._made[key].handle_async_request(request)

    def _make(self, proxy: str | None, trusted: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=4)
        made = httpx2.AsyncHTTPTransport(proxy=proxy, verify=trusted, limits=limits)
        pool: Any = made._pool  # pyright: ignore[reportPrivateUsage]  # httpx2 takes no backend
        pool._network_backend = _Backend(pool._network_backend, self._rules if proxy is None else None)
        return made

    async def aclose(self) -> None:
        for transport in self._made.values():
            await transport.aclose()


# For what is not encrypted: reading all authorities takes 36 ms.
_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.cache  # a server that is to know other authorities is started again
def _trusted() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def proxy_for(url: httpx2.URL) -> str | None:
    """The proxy that the environment names for this address; httpx2 finds it only for its own transports."""
    if urllib.request.proxy_bypass(url.host):
        return None
    return urllib.request.getproxies().get(url.scheme)


class Pieces(httpx2.AsyncByteStream):
    """A body. Many small pieces are read slowly: each costs as much time as a large one."""

    def __init__(self, response: httpx2.Response) -> None:
        """`response` comes from a `BoundedTransport`."""
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
    """A connection that bounds a response's head and the number of small pieces per read."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._throttle = ReadThrottle(PIECES_BURST, PIECES_PER_SECOND)
        self._pieces = 0
        self._head_bytes: int | None = 0
        """None while a body is read."""
        self._at_once = LEAST_READ_BYTES

    def begin_body(self) -> None:
        self._head_bytes = None

    async def small_piece(self) -> None:
        """Count a small piece of a body, and pause if there are too many."""
        self._at_once = LEAST_READ_BYTES
        self._pieces += 1
        if (wait := self._throttle.delay()) or self._pieces % PIECES_AT_ONCE == 0:
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
    def __init__(self, inner: httpcore2.AsyncNetworkBackend, rules: AddressRules | None) -> None:
        """`rules` is None for connections to a proxy."""
        self._inner = inner
        self._rules = rules

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        async def connect(address: str) -> httpcore2.AsyncNetworkStream:
            return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)

        if self._rules is None:
            return _Stream(await connect(host))
        try:
            with anyio.fail_after(timeout):
                addresses = await self._rules.permitted(host, port)
                return _Stream(await _first(addresses[:MAX_ADDRESSES], connect))
        except TimeoutError as exc:
            raise httpcore2.ConnectTimeout from exc
        except (OSError, UnicodeError) as exc:
            raise httpcore2.ConnectError(str(exc)) from exc

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


async def _first(
    addresses: list[str], connect: Callable[[str], Awaitable[httpcore2.AsyncNetworkStream]]
) -> httpcore2.AsyncNetworkStream:
    """Return the first connection that succeeds: the next address is tried when one fails or is slow (RFC 8305)."""
    made: list[httpcore2.AsyncNetworkStream] = []
    failures: list[Exception] = []

    async def attempt(address: str, failed: anyio.Event) -> None:
        try:
            stream = await connect(address)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
            failures.append(exc)
            failed.set()
            return
        if made:
            await stream.aclose()
        else:
            made.append(stream)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            failed = anyio.Event()
            tasks.start_soon(attempt, address, failed)
            with anyio.move_on_after(NEXT_ADDRESS_SECONDS):
                await failed.wait()
    if made:
        return made[0]
    raise failures[0]
