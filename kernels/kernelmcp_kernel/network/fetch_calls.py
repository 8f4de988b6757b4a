"""One host call `fetch`: a guest's request, its redirects, and the response as JSON.

Every redirect is checked like a request of the guest.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from typing import Any

from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.network.allowed_hosts import AllowList
from kernelmcp_kernel.network.credentials import Credentials
from kernelmcp_kernel.network.request import REDIRECTS, Request, Url, parse_request, redirected
from kernelmcp_kernel.network.transport import MAX_CONNECTIONS, Response, Transport
from kernelmcp_kernel.settings import NetworkSettings

_MAX_REDIRECTS = 10
_WHO = ": the owner of this server can add it there"


class Calls:
    """The requests of one kernel. Raises ValueError for invalid settings."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._settings = settings
        self._allowed = AllowList(settings.allow_hosts)
        self._credentials = Credentials(settings.headers, os.environ)
        self._transport = Transport(self._allowed, settings.max_response_mb * 2**20)
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def fetch(
        self, arguments: dict[str, Any], drained: Callable[[], Awaitable[None]] | None = None
    ) -> dict[str, Any]:
        """Arguments: method, url, headers (pairs), body (base64 or null), follow, timeout (seconds or null).
        `drained` waits until the guest has read earlier responses: few are held at a time.

        Returns status, reason, headers (pairs), body (base64), url and redirected. Raises HostCallError.
        """
        request = parse_request(arguments, self._settings.max_request_mb * 2**20)
        self._check(request.url)
        limit = min(request.timeout_seconds or self._settings.timeout_seconds, self._settings.timeout_seconds)
        async with self._slots:
            try:
                async with asyncio.timeout(limit):
                    found = await self._follow(request)
            except TimeoutError:
                raise HostCallError(
                    f"the request to {request.url.authority} took longer than {limit:,.15g} s"
                ) from None
            except HostCallError as error:
                raise HostCallError(self._credentials.redact_text(str(error))) from None
            if drained is not None:
                await drained()
            return found

    async def _follow(self, request: Request) -> dict[str, Any]:
        for hop in range(_MAX_REDIRECTS + 1):
            self._check(request.url)
            response = await self._exchange(request)
            location = next((value for name, value in response.headers if name == b"location"), None)
            if not request.follow or response.status not in REDIRECTS or location is None:
                return _as_json(response, request.url, redirected=hop > 0)
            request = redirected(request, response.status, location.decode("utf-8", "replace"))
        raise HostCallError(f"more than {_MAX_REDIRECTS} redirects")

    def _check(self, url: Url) -> None:
        if not self._allowed.permits(url.host, url.port):
            named = url.host_text if url.port in (80, 443) else f"{url.host_text}:{url.port}"
            raise HostCallError(f"{named} is not in [network] allow_hosts of mcp.toml{_WHO}")

    async def _exchange(self, request: Request) -> Response:
        """Make one request, with the configured headers; their values are removed from the response."""
        secret = self._credentials.headers(request.url)
        ours = {name.lower() for name, _ in secret}
        headers = [(name, value) for name, value in request.headers if name.lower() not in ours]
        response = await self._transport.exchange(request.method, request.url, [*headers, *secret], request.body)
        if secret and any(name == b"content-encoding" for name, _ in response.headers):
            raise HostCallError(f"{request.url.authority} encoded its answer in a way that was not asked for")
        redact = self._credentials.redact
        pairs = [(redact(name), redact(value)) for name, value in response.headers]
        # Other bytes are part of a value, or hide one.
        reason = bytes(byte for byte in redact(response.reason) if 0x20 <= byte <= 0x7E)
        return Response(response.status, redact(reason), pairs, redact(response.body))


def _as_json(response: Response, url: Url, redirected: bool) -> dict[str, Any]:
    return {
        "status": response.status,
        "reason": response.reason.decode("ascii"),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers],
        "body": base64.b64encode(response.body).decode("ascii"),
        "url": str(url),
        "redirected": redirected,
    }
