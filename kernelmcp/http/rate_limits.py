"""How much of the server one principal, and all together, may take: requests per window, requests at one time, streams.

Counting only; `guard` asks and answers.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from kernelmcp.config.settings import Settings
from kernelmcp.errors import RateLimited

# How many keys are remembered; beyond that the oldest are forgotten. Without authentication each address is a key.
MAX_KEYS = 10_000
# Wrong tokens per address and window. More are answered 429: guessing gets slow, and a right token is never refused.
MAX_FAILURES = 30
# When the server is full: how soon to try again, seconds.
BUSY_RETRY_SECONDS = 1


class ServerBusy(RateLimited):
    """The server is full; this principal alone may have sent little."""


class Windows:
    """Counts events per key in windows that begin with a key's first event."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, key: str, limit: int, seconds: float) -> float | None:
        """One more. None when it is within the limit, else the seconds until the window ends."""
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
        self._requests = Windows()
        self._failures = Windows()
        self.active = 0
        """Requests being answered now."""
        self._streams: set[anyio.CancelScope] = set()

    def check_rate(self, principal: str) -> None:
        """Count a request. Raises `RateLimited`."""
        section = self._settings.config.transport_http
        if not section.rate_limit_requests:
            return
        wait = self._requests.count(principal, section.rate_limit_requests, section.rate_limit_window_seconds)
        if wait is not None:
            raise RateLimited(
                f"more than {section.rate_limit_requests} requests in {section.rate_limit_window_seconds:g} s",
                f"Wait {math.ceil(wait)} s. One execute_code can run many lines; get_execution waits by itself.",
                retry_after_seconds=max(1, math.ceil(wait)),
            )

    def check_failures(self, address: str) -> None:
        """Count a wrong token. Raises `RateLimited`."""
        seconds = self._settings.config.transport_http.rate_limit_window_seconds
        if (wait := self._failures.count(address, MAX_FAILURES, seconds)) is not None:
            raise RateLimited("too many wrong tokens", "Wait.", retry_after_seconds=max(1, math.ceil(wait)))

    @contextmanager
    def request(self) -> Iterator[None]:
        """Take a place while a request is answered. Raises `ServerBusy` when all are taken."""
        self._check_room(self.active, self._settings.config.transport_http.max_concurrent_requests, "requests")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Take a place while a stream of events is open. `close_streams` ends it."""
        self._check_room(len(self._streams), self._settings.config.transport_http.max_streams, "streams")
        with anyio.CancelScope() as scope:
            self._streams.add(scope)
            try:
                yield
            finally:
                self._streams.discard(scope)

    @property
    def streams(self) -> int:
        return len(self._streams)

    def close_streams(self) -> None:
        for scope in self._streams:
            scope.cancel()

    def _check_room(self, taken: int, limit: int, what: str) -> None:
        if taken >= limit:
            raise ServerBusy(
                f"the server has {limit} {what} open", "Try again.", retry_after_seconds=BUSY_RETRY_SECONDS
            )
