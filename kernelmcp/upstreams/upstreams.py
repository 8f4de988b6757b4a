"""All upstreams of a server: started and ended with it, updated with its settings, each in its own task.

Modules that speak MCP are imported when the first upstream starts: a server without upstreams pays nothing for them.
Knows no policy: permission to call is decided above.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config.client_files import configured
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.files.home import Home
from kernelmcp.upstreams.catalogue import Catalogue, Status, ToolCallResult, UpstreamError
from kernelmcp.upstreams.catalogue_store import FOLDER, CatalogueStore
from kernelmcp.upstreams.process_reaper import ProcessReaper

if TYPE_CHECKING:
    from kernelmcp.upstreams.logins.browser_login import Show
    from kernelmcp.upstreams.logins.oauth import Logins
    from kernelmcp.upstreams.upstream import Upstream

# Settings that can change without a new connection.
_POLICY = ("default", "tools", "trust_annotations", "pin", "principals", "tokenize", "reveal")

log = structlog.get_logger(__name__)


class Upstreams:
    """Created only by `open_upstreams`. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, home: Home, tasks: anyio.abc.TaskGroup, reaper: ProcessReaper) -> None:
        self._settings = settings
        self._home = home
        self._tasks = tasks
        self._reaper = reaper
        self._logins: Logins | None = None
        self._found: dict[str, Upstream] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._applying = anyio.Lock()
        self._closed = False

    @property
    def names(self) -> list[str]:
        """As configured, in order; includes disabled ones."""
        return list(self._found)

    def catalogue(self, name: str) -> Catalogue | None:
        """Its current or last known catalogue; None if it has never answered. Never waits."""
        upstream = self._found.get(name)
        return None if upstream is None or upstream.settings.disabled else upstream.catalogue

    def status(self, name: str) -> Status:
        """The status of an upstream. Raises `KeyError`."""
        return self._found[name].status

    def settings(self, name: str) -> UpstreamSettings:
        """Its settings, with the section's defaults filled in. Raises `KeyError`."""
        return self._found[name].settings

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call this with the name of a server that came or went, or whose tools, state or settings have changed."""
        self._listeners.append(callback)

    async def tool_call(
        self, name: str, tool: str, arguments: dict[str, Any], *, timeout_seconds: float, digest: str | None = None
    ) -> ToolCallResult:
        """Call a tool. Raises `UpstreamError`, and `ToolChanged` if the tool no longer has the digest that the caller
        has judged: connecting and listing may happen while the call waits. Cancelling the task cancels the call at the
        upstream."""
        upstream = self._found.get(name)
        if upstream is None:
            raise UpstreamError("ServerUnavailable", f"there is no MCP server {name!r}", was_sent=False)
        return await upstream.tool_call(tool, arguments, timeout_seconds, digest)

    def is_connecting(self, name: str) -> bool:
        """True while a person does what the connection of this server lacks."""
        return (upstream := self._found.get(name)) is not None and upstream.is_connecting

    async def connect(self, name: str, show: "Show") -> None:
        """Have a person do what the connection lacks, at an address that `show` shows. Raises `UpstreamError`, and what
        `show` raises."""
        if (upstream := self._found.get(name)) is None:
            raise UpstreamError("ServerUnavailable", f"there is no MCP server {name!r}")
        await upstream.connect(show)

    def changed_tools(self, name: str) -> dict[str, Literal["new", "changed"]]:
        """Compare with the tools accepted at the first contact, or by a person since. Checks a file."""
        return self._found[name].changed_tools()

    # -- its life -----------------------------------------------------------------------------------------------

    async def apply(self, settings: Settings) -> None:
        """Start, end and restart the changed upstreams only."""
        async with self._applying:
            self._settings = settings
            wanted = await anyio.to_thread.run_sync(configured, settings.config.upstreams)
            for problem in wanted.problems:
                log.warning("a file of MCP servers is not used", problem=problem)
            for name in [name for name in self._found if name not in wanted.servers]:
                self._end(name)
                self._announce(name)
            for name, server in wanted.servers.items():
                await self._take_over(name, server)
            self._found = {name: self._found[name] for name in wanted.servers}

    async def _take_over(self, name: str, settings: UpstreamSettings) -> None:
        old = self._found.get(name)
        if old is not None and _connection(old.settings) == _connection(settings):
            if old.settings != settings:
                old.settings = settings
                self._announce(name)
            return
        self._end(name)
        from kernelmcp.upstreams.connect import Way
        from kernelmcp.upstreams.logins.oauth import Logins
        from kernelmcp.upstreams.upstream import Upstream

        folder = self._home.root / FOLDER
        logins = self._logins = self._logins or Logins(folder)
        way = Way(self._reaper, logins.authorize, lambda: self._settings.config.upstreams.result_mb)
        upstream = Upstream(name, settings, CatalogueStore(folder), logins, way, self._announce)
        await anyio.to_thread.run_sync(upstream.remember)
        self._found[name] = upstream
        if not settings.disabled:
            scope = self._scopes[name] = anyio.CancelScope()
            self._tasks.start_soon(_run, upstream, scope)
        self._announce(name)

    def _end(self, name: str) -> None:
        self._found.pop(name, None)
        if (scope := self._scopes.pop(name, None)) is not None:
            scope.cancel()

    def _announce(self, name: str) -> None:
        for listener in self._listeners:
            try:
                listener(name)
            except Exception:
                log.exception("a change of an MCP server could not be passed on", server=name)

    def follow(self) -> None:
        """Handle a change of the settings, which may not concern upstreams."""
        if not self._closed:
            self._tasks.start_soon(self.apply, self._settings)

    def close(self) -> None:
        """Begin to end all of them."""
        self._closed = True
        for name in list(self._scopes):
            self._end(name)


@asynccontextmanager
async def open_upstreams(settings: Settings, home: Home) -> AsyncIterator[Upstreams]:
    """Start the upstreams in the background. Leaving the context ends them, and their processes."""
    with closing(ProcessReaper()) as reaper:
        async with anyio.create_task_group() as tasks:
            upstreams = Upstreams(settings, home, tasks, reaper)
            await upstreams.apply(settings)
            settings.on_change(upstreams.follow)
            try:
                yield upstreams
            finally:
                upstreams.close()
                tasks.cancel_scope.cancel()


async def _run(upstream: "Upstream", scope: anyio.CancelScope) -> None:
    with scope:
        await upstream.run()


def _connection(settings: UpstreamSettings) -> UpstreamSettings:
    """The settings whose change requires a new connection."""
    return settings.model_copy(update=dict.fromkeys(_POLICY))
