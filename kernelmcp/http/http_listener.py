"""Listens on a port: uvicorn with additional limits, and without its signal handlers.

Must not know MCP.
"""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar, Self, cast

import anyio
import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kernelmcp.config.models import HttpSection
from kernelmcp.errors import ConfigurationError
from kernelmcp.http.host_and_origin import is_loopback
from kernelmcp.http.rate_limits import LEAST_PLACES, address_key
from kernelmcp.shares import Shares

# How long, in seconds, the rest of a rejected request is read and discarded: its client sees the answer only after it
# has sent everything.
LINGER_SECONDS = 20.0
# How long an idle connection is kept, in seconds: longer than reverse proxies keep theirs.
KEEP_ALIVE_SECONDS = 75
# Limit for all headers together, in bytes.
MAX_HEAD_BYTES = 64 * 1024
# Connections besides those that carry requests and streams.
SPARE_CONNECTIONS = 256
# Connections per address that have not sent a complete head yet. An address that has more for a second loses its oldest
# ones. A reverse proxy, whose address all clients share, may have as many as half of all connections.
MAX_HALF_SENT = 128
# Until more are cut, in seconds: asyncio accepts a whole backlog before it reads what its clients have sent.
HALF_SENT_SECONDS = 1.0
# Time in seconds until connections are cut at shutdown.
CLOSE_SECONDS = 1
BACKLOG = 1024
_NO_PLACE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: text/plain\r\nContent-Length: 50\r\n"
    b"Connection: close\r\n\r\nyou have too many connections open to this server\n"
)

log = structlog.get_logger(__name__)


class PatientProtocol(H11Protocol):
    """uvicorn's protocol with time limits: the original waits for ever for a head or an unwanted body."""

    head_seconds: ClassVar[float]
    half_sent: ClassVar[dict[str, dict[Self, None]]]
    """By address, oldest first: connections that wait for a head, or for the rest of one."""
    max_half_sent_of_proxy: ClassVar[int]
    opened: ClassVar[Shares]
    """Connections by address. Those of a reverse proxy are shared by all clients."""
    proxies: ClassVar[Sequence[str]]
    _deadline: asyncio.TimerHandle | None = None
    _has_place = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not any(_is_within(self.client[0] if self.client else "", proxy) for proxy in self.proxies):
            self._has_place = self.opened.take(self._address)
            if not self._has_place:
                log.warning("refused a connection: its address has used up its share", client=self._address)
                transport.write(_NO_PLACE)
                transport.close()
                return
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        elif self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.DONE:
            self._disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._arm(LINGER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._has_place:
            self.opened.give_back(self._address)
            self._has_place = False
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Send the response, and suppress later ones: uvicorn would let a running request answer after this."""
        log.warning("refused a request that is not valid HTTP", client=self.client[0] if self.client else None)
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn sets None until the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def _wait_for_head(self) -> None:
        self._arm(self.head_seconds)
        waiting = self.half_sent.setdefault(self._address, {})
        if self not in waiting:
            waiting[self] = None
            most = MAX_HALF_SENT if self._has_place else self.max_half_sent_of_proxy
            if len(waiting) > most:
                self.loop.call_later(HALF_SENT_SECONDS, self._cut_oldest, most)

    def _cut_oldest(self, most: int) -> None:
        waiting = self.half_sent.get(self._address, {})
        if len(waiting) > most:
            next(iter(waiting))._cut("cut off a client that has sent too many requests by half")

    @property
    def _address(self) -> str:
        return address_key(self.client[0]) if self.client else ""

    def _arm(self, seconds: float) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self._cut)

    def _disarm(self) -> None:
        waiting = self.half_sent.get(self._address, {})
        waiting.pop(self, None)
        if not waiting:
            self.half_sent.pop(self._address, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self, event: str = "cut off a client that sends too slowly") -> None:
        self._disarm()
        log.warning(event, client=self.client[0] if self.client else None)
        self.transport.abort()


def _is_within(address: str, network: str) -> bool:
    """True if an address matches an entry of `trusted_proxies`: an address, a network, or `*`."""
    try:
        return network == "*" or ipaddress.ip_address(address) in ipaddress.ip_network(network)
    except ValueError:  # a host name
        return False


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the command line or an embedding program handles them."""
        yield


@contextmanager
def bound(section: HttpSection, *, protected: bool) -> Iterator[list[socket.socket]]:
    """The listening sockets. Raises `ConfigurationError`."""
    sockets = _bind(section, protected)
    try:
        yield sockets
    finally:
        for listener in sockets:
            listener.close()


def _bind(section: HttpSection, protected: bool) -> list[socket.socket]:
    if not protected and not section.insecure and not is_loopback(section.host):
        raise ConfigurationError(
            f"transport_http.host is {section.host}, which other machines can reach, but no token is configured",
            "Set transport_http.auth_token or [auth], bind 127.0.0.1, or pass --insecure.",
        )
    try:
        found = socket.getaddrinfo(section.host, section.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # One address of each family. Both use the same port, even if it is chosen automatically.
        first = _listen(found[0], section.port)
        others = [entry for entry in found[1:] if entry[0] != found[0][0]][:1]
        return [first, *(_listen(entry, first.getsockname()[1]) for entry in others)]
    except OSError as exc:
        raise ConfigurationError(
            f"transport_http: cannot listen on {section.host}, port {section.port}: {exc.strerror}",
            "Choose another --port, or stop the program that uses it.",
        ) from exc


def _listen(entry: tuple[int, int, int, str, tuple[object, ...]], port: int) -> socket.socket:
    family, kind, protocol, _, address = entry
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind((address[0], port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def url_of(section: HttpSection, sockets: list[socket.socket]) -> str:
    host = f"[{section.host}]" if ":" in section.host else section.host
    return f"http://{host}:{sockets[0].getsockname()[1]}"


@asynccontextmanager
async def listening(app: ASGIApp, section: HttpSection, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Answer requests that arrive on these sockets. Leaving it closes them and, within seconds, every connection."""

    limit = section.max_concurrent_requests + section.max_streams + SPARE_CONNECTIONS

    class Protocol(PatientProtocol):
        head_seconds = section.head_timeout_seconds
        half_sent: ClassVar = {}
        max_half_sent_of_proxy = limit // 2
        opened: ClassVar = Shares(lambda: limit, LEAST_PLACES)
        proxies: ClassVar = tuple(section.trusted_proxies)

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=bool(section.trusted_proxies),
        forwarded_allow_ips=section.trusted_proxies,
        limit_concurrency=limit,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    server = _Uvicorn(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, sockets)
        try:
            yield
        finally:
            server.should_exit = True
