"""Limits on the use of the server by one principal, and by all together: requests per window; and concurrent requests,
streams, connections, request bytes, and answers without a size limit.

Only counts; `guard` enforces and answers.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import anyio

from kernelmcp.config.settings import Settings
from kernelmcp.errors import RateLimited
from kernelmcp.shares import Shares

# Limit for remembered keys; beyond it the oldest are forgotten. Without authentication each address is a key.
MAX_KEYS = 10_000
# Invalid tokens per address and window. More are answered with 429: guessing gets slow, and a valid token is never
# rejected.
MAX_FAILURES = 30
# Retry delay in seconds if the server is full.
BUSY_RETRY_SECONDS = 1
# Concurrent places that everybody may have while there is room.
LEAST_PLACES = 2
# Request bodies held at one time, in bodies of the largest size.
LARGEST_BODIES = 4
# Resources have no size limit of their own: at most this many are read and sent at one time.
MAX_READS = 4


def address_key(address: str) -> str:
    """Key of the client at this address. An IPv6 client can choose from 64 bits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class ServerBusy(RateLimited):
    """The server is full; this principal may have sent few requests itself."""


class Windows:
    """Counts events per key in windows that begin with a key's first event."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, key: str, limit: int, seconds: float) -> float | None:
        """Count one event. None if it is within the limit, else the seconds until the window ends."""
        now = time.monotonic()
        began, count = self._counts.get(key, (now, 0))
        if now - began >= seconds:
            began, count = now, 0
            self._counts.pop(key, None)
        self._counts[key] = (began, count + 1)
        while len(self._counts) > MAX_KEYS:
            self._counts.popitem(last=False)
        return None if count < limit else began + seconds - now


class Throttle:
    """The limits of one server process. All methods run in the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        section = settings.config.transport_http
        largest = int(section.max_request_size_mb * 2**20)
        self._requests = Windows()
        self._failures = Windows()
        self._active = Shares(lambda: settings.config.transport_http.max_concurrent_requests, LEAST_PLACES)
        self._open_streams = Shares(lambda: settings.config.transport_http.max_streams, LEAST_PLACES)
        self._bodies = Shares(lambda: LARGEST_BODIES * largest, largest)
        self._reads = Shares(lambda: MAX_READS, 1)
        self._streams: set[anyio.CancelScope] = set()

    @property
    def active(self) -> int:
        """Number of requests being answered now."""
        return self._active.taken

    def check_rate(self, principal: str) -> None:
        """Count a request. Raises `RateLimited`."""
        section = self._settings.config.transport_http
        if not section.rate_limit_requests:
            return
        wait = self._requests.count(principal, section.rate_limit_requests, section.rate_limit_window_seconds)
        if wait is not None:
            raise RateLimited(
                f"more than {section.rate_limit_requests} requests in {section.rate_limit_window_seconds:,.15g} s",
                f"Wait {math.ceil(wait)} s. One execute_code can run many lines; get_execution waits by itself.",
                retry_after_seconds=max(1, math.ceil(wait)),
            )

    def check_failures(self, address: str) -> None:
        """Count an invalid token. Raises `RateLimited`."""
        seconds = self._settings.config.transport_http.rate_limit_window_seconds
        if (wait := self._failures.count(address, MAX_FAILURES, seconds)) is not None:
            seconds = max(1, math.ceil(wait))
            raise RateLimited("too many wrong tokens", f"Wait {seconds} s.", retry_after_seconds=seconds)

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Take a place while a request is answered. Raises `RateLimited`."""
        with _place(self._active, key, "requests"):
            yield

    @contextmanager
    def stream(self, key: str) -> Iterator[anyio.CancelScope]:
        """Take a place while a stream of events is open; yields what ends it, as `close_streams` does. Raises
        `RateLimited`."""
        with _place(self._open_streams, key, "streams"), anyio.CancelScope() as scope:
            self._streams.add(scope)
            try:
                yield scope
            finally:
                self._streams.discard(scope)

    @contextmanager
    def body(self, key: str) -> Iterator[Callable[[int], None]]:
        """Yields a function that reserves room for more bytes of a request, until its end. Raises `RateLimited`."""
        held = 0

        def take(amount: int) -> None:
            nonlocal held
            if not self._bodies.take(key, amount):
                raise _refusal(self._bodies, key, "bytes of requests")
            held += amount

        try:
            yield take
        finally:
            self._bodies.give_back(key, held)

    def read(self, key: str) -> AbstractAsyncContextManager[None]:
        """Wait for a place to read a resource, and keep it until the answer was sent."""
        return self._reads.turn(key)

    @property
    def streams(self) -> int:
        return self._open_streams.taken

    def close_streams(self) -> None:
        for scope in self._streams:
            scope.cancel()


@contextmanager
def _place(places: Shares, key: str, what: str) -> Iterator[None]:
    if not places.take(key):
        raise _refusal(places, key, what)
    try:
        yield
    finally:
        places.give_back(key)


def _refusal(shares: Shares, key: str, what: str) -> RateLimited:
    held = shares.held(key)
    if held and shares.left:
        text = f"you have {held:,} {what} open, and the remaining {shares.left:,} are reserved for others"
        return RateLimited(text, "Wait until one of yours has ended.", retry_after_seconds=BUSY_RETRY_SECONDS)
    text = f"the server has {shares.taken:,} {what} open, the maximum"
    return ServerBusy(text, "Try again.", retry_after_seconds=BUSY_RETRY_SECONDS)
