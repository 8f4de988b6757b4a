"""The offers to a principal's kernels: the files of the tools that it may use, rendered in a thread, and the skills
that it has promoted.

Rendered once for all principals with the same permissions and skills, and again when tools, settings or pins change.
Must not know sessions.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from kernelmcp.code_mode import refusals
from kernelmcp.code_mode.broker import CONNECT, Broker
from kernelmcp.config.settings import Settings
from kernelmcp.executions.approvals import SHELL
from kernelmcp.executions.principals import LOCAL
from kernelmcp.kernel.tool_channel import Offer
from kernelmcp.upstreams.catalogue import Catalogue, Tool
from kernelmcp.upstreams.skills import PromotedSkills

if TYPE_CHECKING:
    from kernelmcp.upstreams.upstreams import Upstreams

# In the home.
FOLDER = "offered"
# Delay until sessions have a newly promoted skill.
SKILLS_SECONDS = 5.0
# Servers start one after the other: wait a moment for more changes.
SETTLE_SECONDS = 0.1
# Shorter than the lifetime of files that nobody has published again (stubs/published.py).
KEPT_SECONDS = 24 * 3600.0


class Offers:
    """The offers of one server process. All methods run in the event loop."""

    def __init__(self, settings: Settings, upstreams: "Upstreams", broker: Broker, home: Path) -> None:
        self.on_change: list[Callable[[], None]] = []
        """Each is called when the offers may have changed."""
        self._settings = settings
        self._upstreams = upstreams
        self._broker = broker
        self._folder = home / FOLDER
        self._skills = PromotedSkills(home)
        self._rendered: dict[tuple[tuple[str, ...], bool, str], tuple[Offer, float]] = {}
        """The offers by all that they are made of, and when each was rendered."""
        self._judges = False
        """There have been rules for commands: the shells of some kernels ask."""
        self._version = 0
        self._rendering = asyncio.Lock()
        self._changed = asyncio.Event()

    def note_change(self) -> None:
        """Note that tools, state, settings or pins have changed."""
        self._version += 1
        self._rendered.clear()
        self._changed.set()

    async def run(self) -> None:
        """Report changes. Runs for the server's life."""
        skills = await anyio.to_thread.run_sync(self._skills.stamps)
        while True:
            with anyio.move_on_after(SKILLS_SECONDS):
                await self._changed.wait()
            before, skills = skills, await anyio.to_thread.run_sync(self._skills.stamps)
            if not self._changed.is_set() and skills == before:
                continue
            await anyio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            for tell in self.on_change:
                tell()

    async def of(self, principal: str) -> Offer:
        """The current offer for this principal's kernels; without servers if it may use none."""
        async with self._rendering:
            skills, digest = await anyio.to_thread.run_sync(self._read_skills, principal)
            servers, version = tuple(self._broker.usable(principal)), self._version
            key = servers, principal == LOCAL, digest
            offer, since = self._rendered.get(key, (None, 0.0))
            is_new = offer is not None and time.monotonic() - since < KEPT_SECONDS
            if offer is not None and is_new and await anyio.to_thread.run_sync(offer.folder.is_dir):
                return offer
            made = await self._make(servers, skills, principal)
            if version == self._version:  # else `run` reports the change, and all offers are made again
                self._rendered[key] = made, time.monotonic()
            return made

    def _read_skills(self, principal: str) -> tuple[dict[str, str], str]:
        """The principal's skills, and a digest of them: one with others is not offered these. Blocking."""
        skills = self._skills.read(principal)
        return skills, hashlib.sha256(repr(skills).encode()).hexdigest()

    async def _make(self, servers: tuple[str, ...], skills: dict[str, str], principal: str) -> Offer:
        # Taken at once: a server may disappear while files are written.
        upstreams = self._upstreams
        catalogues = [upstreams.catalogue(name) or self._unknown(name, principal) for name in servers]
        connecting = {
            name
            for name in servers
            if upstreams.catalogue(name) is None and upstreams.status(name).state == "connecting"
        }
        concurrent, is_offered = self._settings.config.upstreams.concurrent_calls, self._broker.offered(servers)
        self._judges = self._judges or bool(self._settings.config.shell.commands)
        named = [*servers, SHELL] if self._judges else servers
        if not named and not skills:
            return Offer("", Path(), [], concurrent)
        from kernelmcp.upstreams.stubs import publish, render

        def write() -> Offer:
            rendered = render(catalogues, is_offered, skills, connecting)
            return Offer(rendered.digest, publish(rendered, self._folder), list(named), concurrent)

        return await anyio.to_thread.run_sync(write)

    def _unknown(self, server: str, principal: str) -> Catalogue:
        """Catalogue of a server that has never answered. If it waits for a person, a tool asks that person: the one of
        stdio, whose browser is on this machine."""
        status = self._upstreams.status(server)
        if status.needs_person and principal == LOCAL:
            about = f"it waits for its user: connect() asks, and so does `kernelmcp upstreams login {server}`"
            return Catalogue(server, "", "", about, (_asking_tool(server),))
        return Catalogue(server, "", "", refusals.not_connected(server, status.state, status.error).message, ())


def _asking_tool(server: str) -> Tool:
    about = (
        f"Ask the user, in a browser, for the login or the values that {server} needs. Its tools are here afterwards."
    )
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return Tool(CONNECT, None, about, schema, None, True, None, None, "")
