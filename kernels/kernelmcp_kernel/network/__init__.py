"""The guest's network: this trusted process makes its HTTP requests, to allowed hosts only.

Below it, in this order: `fetch_calls` (one host call), `request` (valid requests), `allowed_hosts` (permitted targets),
`credentials` (secrets that the guest uses but never sees), `transport` (the only user of an HTTP library). This module
imports none of them, so that a kernel without requests does not pay for them.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from kernelmcp_kernel.guests.cell_requests import Request
from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.settings import NetworkSettings

if TYPE_CHECKING:
    from kernelmcp_kernel.network.fetch_calls import Calls

NO_NETWORK = (
    "the sandbox has no network; the owner of this server can allow hosts with [network] allow_hosts in mcp.toml"
)


class Network:
    """The host call `fetch`."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._settings = settings
        self._calls: Calls | None = None

    async def fetch(self, arguments: dict[str, Any], request: Request) -> dict[str, Any]:
        """Make one request for the guest. Raises HostCallError with a remedy."""
        if not self._settings.allow_hosts:
            # Without an HTTP library, so that a kernel without a network does not pay for one.
            parse_url = import_module("kernelmcp_kernel.network.request").parse_url
            raise HostCallError(f"{parse_url(arguments.get('url')).host_text} cannot be reached: {NO_NETWORK}")
        calls = self._calls
        if calls is None:
            module = await asyncio.to_thread(import_module, "kernelmcp_kernel.network.fetch_calls")  # takes 150 ms
            calls = self._calls = self._calls or cast("Calls", module.Calls(self._settings))
        guest = request.supervisor.guest if request.supervisor is not None else None
        return await calls.fetch(arguments, guest.drained if guest is not None else None)
