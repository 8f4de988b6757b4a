"""One upstream: a task that connects and keeps the connection, and calls, which may come from any task.

The next call restores a lost connection, not a loop; only an upstream that never connected is retried by itself. An
upstream's failures end here: they reach neither other upstreams nor the server.
"""

import asyncio
import os
import time
from collections import ChainMap
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import anyio
import anyio.to_thread
import structlog
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from kernelmcp.atomic import NO_FILE
from kernelmcp.config.expansion import missing
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import cause
from kernelmcp.output.sanitize import clean
from kernelmcp.upstreams.catalogue import Catalogue, State, Status, Tool, ToolCallResult, ToolChanged, UpstreamError
from kernelmcp.upstreams.catalogue_store import CatalogueStore, Remembered
from kernelmcp.upstreams.connect import Way, connected, in_words
from kernelmcp.upstreams.conversation import Conversation
from kernelmcp.upstreams.link import (
    CLOSED,
    SESSION_GONE,
    TOO_LARGE,
    UNREACHED,
    UNSENT,
    Link,
    code_of_ours,
    is_closed,
)
from kernelmcp.upstreams.logins.asked_values import ask_for_values
from kernelmcp.upstreams.logins.browser_login import LoginFailed, Show, log_in
from kernelmcp.upstreams.logins.login_file import LoginNeeded
from kernelmcp.upstreams.logins.oauth import Logins
from kernelmcp.upstreams.target import error_without_secrets, identity_of, remover, without_secrets

# Delay in seconds before the second and later attempts to connect. The first is immediate.
BACKOFF_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 10.0)
# Retry interval of an upstream that has never answered: initial and longest, in seconds.
UNKNOWN_SECONDS = (2.5, 300.0)
# A connection that lasted this long counts as stable.
STABLE_SECONDS = 30.0
# Minimum interval between lists of tools, in seconds: at first, and if they change each time.
RELIST_SECONDS = (1.0, 60.0)
# Without a change for this long, they count as stable.
QUIET_SECONDS = 120.0
# Time for a server to say whether it reports changed tools.
LISTEN_SECONDS = 2.0
# From the loss of a connection until its task must have found the reason.
SETTLE_SECONDS = 2.0
MAX_MESSAGE_CHARS = 2000
REPLACED = "its settings changed, or it was removed; call it again, or see which servers there are"

log = structlog.get_logger(__name__)


class Upstream:
    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        store: CatalogueStore,
        logins: Logins,
        way: Way,
        on_change: Callable[[str], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self.catalogue: Catalogue | None = None
        self._store = store
        self._logins = logins
        self._login = self._pins_stamp = NO_FILE
        self._way = way
        self._on_change = on_change
        self._identity = identity_of(settings)
        self._was_legacy = False
        self._pins: dict[str, str] | None = None
        self._state: State = "disabled" if settings.disabled else "connecting"
        self._error: str | None = None
        self._since = time.time()
        self._why_lost, self._has_ended = "", False
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._tools_changed = asyncio.Event()
        self._stale_at = float("inf")
        self._open: tuple[Link, Conversation] | None = None
        self._connecting = asyncio.Lock()
        self._values: dict[str, str] = {}
        """What a person has entered for variables that the environment lacks."""
        self._values_work = False
        self._environ = ChainMap(self._values, os.environ)

    @property
    def status(self) -> Status:
        tools = len(self.catalogue.tools) if self.catalogue else 0
        lacks_values = self._state == "unavailable" and bool(missing(self.settings, self._environ))
        return Status(self._state, self._error, self._since, tools, self._state == "login_needed" or lacks_values)

    def remember(self) -> None:
        """Restore its saved data. Reads files."""
        self._pins_stamp, self._pins = self._store.pins_stamp(self.name), self._store.pins(self.name)
        if (found := self._store.catalogue(self.name, self._identity)) is not None:
            self.catalogue, self._was_legacy = found.catalogue, found.is_legacy

    # -- its task -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled; its calls end with it."""
        try:
            await self._keep_connected()
        finally:
            self._has_ended, self._state, self._error, self._why_lost = True, "unavailable", REPLACED, REPLACED
            self._wake()

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            self._set("connecting")
            self._login = self._logins.stamp(self.name)
            began = time.monotonic()
            try:
                await self._connect_and_serve()
            except Exception as exc:  # noqa: BLE001  # whatever it is, it is this upstream's
                needs_login = isinstance(cause(exc), LoginNeeded)
                error = f"run `kernelmcp upstreams login {self.name}`" if needs_login else self._in_words(exc)
                self._why_lost = error
                if not self._values_work:  # perhaps they are wrong: they are asked for again
                    self._values.clear()
                self._set("login_needed" if needs_login else "unavailable", error)
                log.warning("an MCP server is not available", server=self.name, error=error)
            failures = 0 if time.monotonic() - began > STABLE_SECONDS else failures + 1
            self._wanted.clear()
            with anyio.move_on_after(self._patience(failures)):
                await self._wanted.wait()
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1] if failures else 0)

    def _patience(self, failures: int) -> float:
        """Time that a call waits, in seconds. An upstream that has never answered has no tools to call."""
        if self.catalogue is not None:
            return float("inf")
        return min(UNKNOWN_SECONDS[0] * 2 ** min(failures, 10), UNKNOWN_SECONDS[1])

    async def _connect_and_serve(self) -> None:
        """Never returns; raises if the connection is lost, or is not established in time."""
        with anyio.fail_after(self.settings.timeout_seconds) as limit:
            way = replace(self._way, environ=self._environ)
            opened = connected(self.name, self.settings, way, self._tools_changed.set, was_legacy=self._was_legacy)
            async with opened as (link, conversation), anyio.create_task_group() as tasks:
                self._was_legacy = not conversation.is_modern
                listening = anyio.Event()
                tasks.start_soon(conversation.listen, self._tools_changed.set, listening.set)
                with anyio.move_on_after(LISTEN_SECONDS):
                    await listening.wait()  # before the list, so that no change is missed in between
                await self._list(conversation)
                limit.deadline = float("inf")
                self._open = link, conversation
                self._values_work = True
                self._set("ready")
                try:
                    tasks.start_soon(self._keep_listed, conversation)
                    await link.ended.wait()
                finally:
                    self._open = None
                raise MCPError(CONNECTION_CLOSED, CLOSED)

    async def _keep_listed(self, conversation: Conversation) -> None:
        pause, listed = RELIST_SECONDS[0], -float("inf")
        while True:
            await self._tools_changed.wait()
            self._tools_changed.clear()
            # Each different list costs all kernels new files, so tools that change constantly are listed less often.
            is_quiet = time.monotonic() - listed > QUIET_SECONDS
            pause = RELIST_SECONDS[0] if is_quiet else min(2 * pause, RELIST_SECONDS[1])
            try:
                with anyio.fail_after(self.settings.timeout_seconds):
                    await self._list(conversation)
            except (MCPError, TimeoutError) as exc:
                log.info(
                    "an MCP server's tools were not listed",
                    server=self.name,
                    error=self._in_words(exc),
                )
            listed = time.monotonic()
            await asyncio.sleep(pause)

    async def _list(self, conversation: Conversation) -> None:
        try:
            found = await conversation.list()
        except MCPError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise
            tools, fresh, whole = (), None, True  # a server with only prompts or resources
        else:
            tools, fresh, whole = found.tools, found.fresh_seconds, found.is_whole
        self._stale_at = float("inf") if fresh is None else time.monotonic() + max(fresh, RELIST_SECONDS[0])
        if not whole:
            log.warning("an MCP server has more tools than are used", server=self.name, used=len(tools))
        catalogue = conversation.catalogue(tools)
        if self._pins is None:
            self._pins = {tool.name: tool.digest for tool in tools}
            await anyio.to_thread.run_sync(self._store.keep_pins, self.name, dict(self._pins))
        if catalogue != self.catalogue:
            self.catalogue = catalogue
            self._on_change(self.name)
            remembered = Remembered(catalogue, not conversation.is_modern)
            await anyio.to_thread.run_sync(self._store.keep_catalogue, self.name, self._identity, remembered)

    def _set(self, state: State, error: str | None = None) -> None:
        if (state, error) != (self._state, self._error):
            self._state, self._error, self._since = state, error, time.time()
            self._on_change(self.name)
        self._wake()

    def _wake(self) -> None:
        """Wake the tasks that wait for another state."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    # -- calls --------------------------------------------------------------------------------------------------

    async def tool_call(
        self, tool: str, arguments: dict[str, Any], timeout_seconds: float, digest: str | None = None
    ) -> ToolCallResult:
        """Call a tool. Raises `UpstreamError`, and `ToolChanged` if the tool no longer has this digest."""
        reached = sent = False
        try:
            async with asyncio.timeout(timeout_seconds):
                for last in (False, True):
                    try:
                        conversation = await self._conversation()
                    except UpstreamError as exc:
                        exc.was_sent = exc.was_sent or sent
                        raise
                    reached = True
                    if digest is not None and ((now := self._tool(tool)) is None or now.digest != digest):
                        raise ToolChanged
                    try:
                        return await self._looked_at(await conversation.tool_call(tool, arguments))
                    except MCPError as exc:
                        code = code_of_ours(exc)
                        undone = code in (SESSION_GONE, UNSENT)
                        sent = sent or not undone
                        again = undone or (_is_lost(exc) and self._may_repeat(tool))
                        if code == SESSION_GONE and self._open is not None and self._open[1] is conversation:
                            self._open[0].ended.set()
                        if last or not again:
                            raise await self._translated(exc, tool, was_sent=sent) from exc
        except TimeoutError:
            said = f"{self.name}.{tool} did not answer within {timeout_seconds:,.15g} s"
            if not reached:
                raise UpstreamError("ServerUnavailable", f"{said}: it is not connected yet", was_sent=False) from None
            raise UpstreamError("ToolTimeout", f"{said}, and was cancelled") from None
        raise AssertionError("the second attempt returns or raises")

    @property
    def is_connecting(self) -> bool:
        return self._connecting.locked()

    async def connect(self, show: Show) -> None:
        """Have a person do what the connection lacks, and wait for it; one at a time. Raises `UpstreamError`, and what
        `show` raises."""
        async with self._connecting:
            if self._state == "login_needed" and self._logins.stamp(self.name) == self._login:
                way = replace(self._way, environ=self._environ)
                try:
                    await log_in(self.name, self.settings, way, self._logins, show)
                except LoginFailed as exc:
                    said = self._without_secrets(str(exc))
                    raise UpstreamError("ServerUnavailable", f"{self.name}: the login failed: {said}") from exc
            elif names := missing(self.settings, self._environ):
                self._values.update(await ask_for_values(self.name, names, show))
                self._values_work = False
            try:
                async with asyncio.timeout(self.settings.timeout_seconds):
                    await self._conversation()
            except TimeoutError:
                raise UpstreamError("ServerUnavailable", f"{self.name} has not connected in time") from None

    async def _conversation(self) -> Conversation:
        """The conversation of this connection, or of the next one. Raises `UpstreamError` if that fails."""
        asked = False
        while True:
            if self._open is not None and not self._open[0].ended.is_set():
                if time.monotonic() > self._stale_at:
                    self._tools_changed.set()
                return self._open[1]
            if self._state in ("unavailable", "login_needed", "disabled"):
                logged_in = self._state == "login_needed" and self._logins.stamp(self.name) != self._login
                if asked or self._has_ended or not (self._state == "unavailable" or logged_in):
                    raise UpstreamError(
                        "ServerUnavailable", f"the MCP server {self.name} is {self._why()}", was_sent=False
                    )
                asked = True
                self._wanted.set()
            await self._news.wait()

    def _why(self) -> str:
        if self._state == "login_needed":
            return f"not logged in: {self._error}"
        return "disabled" if self._state == "disabled" else f"not available: {self._error}"

    def _tool(self, name: str) -> Tool | None:
        return self.catalogue.tool(name) if self.catalogue is not None else None

    def _may_repeat(self, tool: str) -> bool:
        """True if a call that may have done its work may be repeated."""
        found = self._tool(tool)
        trusted = self.settings.trust_annotations is not False
        return trusted and found is not None and (found.read_only is True or found.idempotent is True)

    async def _looked_at(self, result: ToolCallResult) -> ToolCallResult:
        if result.is_error and result.value is not None and "nknown tool" in str(result.value.get("content"))[:300]:
            self._tools_changed.set()
        if not result.is_error:
            return result
        without = remover(self.settings, self._environ, self._logins.secrets(self.name))
        return await anyio.to_thread.run_sync(error_without_secrets, result, without)

    def _without_secrets(self, text: str) -> str:
        return without_secrets(text, self.settings, self._environ, self._logins.secrets(self.name))

    def _in_words(self, exc: BaseException) -> str:
        return in_words(exc, self.settings, self._environ, self._logins.secrets(self.name))

    async def _translated(self, exc: MCPError, tool: str, *, was_sent: bool) -> UpstreamError:
        if exc.code in (METHOD_NOT_FOUND, INVALID_PARAMS):
            self._tools_changed.set()  # its tools may have changed
        said = self._without_secrets(clean(str(exc)))[:MAX_MESSAGE_CHARS]
        if exc.code == REQUEST_TIMEOUT:
            return UpstreamError("ToolTimeout", f"{self.name}.{tool}: {said}")
        if code_of_ours(exc) == TOO_LARGE:
            said = f"the arguments are too large for this server ({said}); nothing was done. Send them in parts"
            return UpstreamError("LimitExceeded", f"{self.name}.{tool}: {said}")
        if not _is_lost(exc):
            return UpstreamError("ToolError", f"{self.name}.{tool}: {said}")
        if not was_sent:
            said = f"the MCP server {self.name} is not available: {said}; nothing was done"
            return UpstreamError("ServerUnavailable", said, was_sent=False)
        if not is_closed(exc):
            return UpstreamError("ServerUnavailable", f"the MCP server {self.name} gave no result of {tool}: {said}")
        if self._open is None or self._open[0].ended.is_set():
            with anyio.move_on_after(SETTLE_SECONDS):
                while self._state == "ready":
                    await self._news.wait()
            said = self._why_lost
        return UpstreamError(
            "ServerUnavailable", f"the MCP server {self.name} was lost while it worked on {tool}: {said}"
        )

    # -- pins ---------------------------------------------------------------------------------------------------

    def changed_tools(self) -> dict[str, Literal["new", "changed"]]:
        """Compare with the tools accepted here or by `kernelmcp upstreams try NAME --accept`. Checks a file."""
        if (stamp := self._store.pins_stamp(self.name)) != self._pins_stamp:
            self._pins_stamp, self._pins = stamp, self._store.pins(self.name) or self._pins
        if self.catalogue is None or self._pins is None:
            return {}
        return {
            tool.name: "changed" if tool.name in self._pins else "new"
            for tool in self.catalogue.tools
            if self._pins.get(tool.name) != tool.digest
        }


def _is_lost(exc: MCPError) -> bool:
    return is_closed(exc) or code_of_ours(exc) in (UNREACHED, SESSION_GONE, UNSENT)
