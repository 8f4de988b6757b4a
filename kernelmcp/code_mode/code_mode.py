"""Assembles code mode for one server process: the upstreams, the broker, the audit, and the offers to kernels.

Imported only if the settings name an upstream: a server without any pays nothing for it. Must not know sessions or MCP.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio

from kernelmcp.code_mode.audit import Audit
from kernelmcp.code_mode.broker import Broker
from kernelmcp.code_mode.tool_offers import Offers
from kernelmcp.config.settings import Settings
from kernelmcp.files.home import Home
from kernelmcp.upstreams.upstreams import Upstreams, open_upstreams


@dataclass(frozen=True)
class CodeMode:
    upstreams: Upstreams
    broker: Broker
    offers: Offers


class Changes:
    """Tracks changes of upstreams and settings."""

    def __init__(self, upstreams: Upstreams, broker: Broker, offers: Offers, audit: Audit) -> None:
        self._upstreams = upstreams
        self._broker = broker
        self._offers = offers
        self._audit = audit
        self._known = {name: self._digests(name) for name in upstreams.names}
        self._shown = {name: self._seen_by_guests(name) for name in upstreams.names}

    def changed(self, server: str) -> None:
        """Handle a change of one server's tools or state (`Upstreams.on_change`)."""
        self._broker.forget(server)
        before, now = self._known.get(server, {}), self._digests(server)
        self._known[server] = now
        changes: dict[Literal["new", "changed", "gone"], list[str]] = {
            "new": [name for name in now if name not in before],
            "changed": [name for name, digest in now.items() if before.get(name, digest) != digest],
            "gone": [name for name in before if name not in now],
        }
        if any(changes.values()):
            self._audit.note_tools(server, changes)
        if (shown := self._seen_by_guests(server)) != self._shown.get(server):
            self._shown[server] = shown
            self._offers.note_change()  # not when a connection comes or goes, which may be often

    def settings_changed(self) -> None:
        """Handle changes that concern no single server: the upstreams report their own changes."""
        self._broker.forget()
        self._offers.note_change()

    def _digests(self, server: str) -> dict[str, str]:
        catalogue = self._upstreams.catalogue(server)
        return {tool.name: tool.digest for tool in catalogue.tools} if catalogue is not None else {}

    def _seen_by_guests(self, server: str) -> object:
        """The data from which its files are rendered."""
        upstreams = self._upstreams
        if server not in upstreams.names:
            return None
        return upstreams.settings(server), upstreams.catalogue(server) or upstreams.status(server)


@asynccontextmanager
async def open_code_mode(settings: Settings, home: Home) -> AsyncIterator[CodeMode]:
    """Open code mode for the context. Leaving it ends the upstreams and writes the rest of the audit."""
    audit = Audit(settings)
    async with open_upstreams(settings, home) as upstreams, anyio.create_task_group() as tasks:
        broker = Broker(settings, upstreams, audit)
        offers = Offers(settings, upstreams, broker, home.root)
        changes = Changes(upstreams, broker, offers, audit)
        upstreams.on_change(changes.changed)
        settings.on_change(changes.settings_changed)
        tasks.start_soon(audit.run)
        tasks.start_soon(offers.run)
        try:
            yield CodeMode(upstreams, broker, offers)
        finally:
            tasks.cancel_scope.cancel()
