"""Offers the tools of the user's other MCP servers to the sessions' kernels, and attributes each call to an execution.

A kernel is offered tools when a session gets it, and again when they change; a call belongs to an execution, the
model's or a person's, and ends with it. Without an upstream or a rule for commands in the settings, or a skill in
the home, nothing is imported, sent or kept. Must not know policy or MCP.
"""

import asyncio
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.tool_calls import ToolCalls
from kernelmcp.files.home import Home
from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions import background
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Observer, Session

if TYPE_CHECKING:
    from kernelmcp.code_mode.code_mode import CodeMode
    from kernelmcp.sessions.tools.tool_calls import SessionToolCalls

# Time that a kernel's first cell waits for its offer, at most: the first rendering takes a while.
FIRST_OFFER_SECONDS = 3.0
# Time that an early request waits for code mode to open: until then, servers from other programs' files are unknown.
OPEN_SECONDS = 2.0
# Interval between checks for the first skill.
SKILLS_SECONDS = 5.0

log = structlog.get_logger(__name__)


class OfferedTools(Observer):
    """The tools offered by one server process. All methods run in the event loop."""

    def __init__(self, settings: Settings, home: Home, registry: Registry, tasks: anyio.abc.TaskGroup) -> None:
        self.code_mode: CodeMode | None = None
        """None if no upstream is configured, and for a moment after the start."""
        self._on_open: list[Callable[[CodeMode], None]] = []
        self._settings = settings
        self._home = home
        self._registry = registry
        self._tasks = tasks
        self._sessions: dict[Session, SessionToolCalls] = {}
        self._offered: WeakKeyDictionary[Kernel, asyncio.Event] = WeakKeyDictionary()
        """Kernels of sessions; the event is set once the first offer was made, or none is needed."""
        self._failed: WeakKeyDictionary[Kernel, Session] = WeakKeyDictionary()
        """Kernels that could not get their newest offer: it is made again before their next cell."""
        self._is_opening = False
        self._opened = asyncio.Event()

    @property
    def configured(self) -> bool:
        """True if the settings name an upstream, or a file with some."""
        section = self._settings.config.upstreams
        return bool(section.servers or section.files)

    def when_open(self, tell: "Callable[[CodeMode], None]") -> None:
        """Call `tell` with code mode, now or once it is open."""
        self._on_open.append(tell)
        if self.code_mode is not None:
            tell(self.code_mode)

    def start(self) -> None:
        """Open code mode in the background if the settings or promoted skills need it, now or later."""
        self._settings.on_change(self._open_soon)
        self._open_soon()
        background.start(self._tasks, "looking for skills", self._look_for_skills)

    def _open_soon(self) -> None:
        if self._tasks.cancel_scope.cancel_called:
            return  # the server has ended; another one may use these settings
        if (self.configured or self._settings.config.shell.commands) and not self._is_opening:
            self._open()

    def _open(self) -> None:
        self._is_opening = True
        background.start(self._tasks, "code mode", self._run)

    async def _look_for_skills(self) -> None:
        """A person may promote the first skill at any time; sessions are then offered it, even without upstreams."""
        while not self._is_opening:
            if await anyio.to_thread.run_sync(self._home.skills.is_dir):
                self._open()
            await anyio.sleep(SKILLS_SECONDS)

    async def _run(self) -> None:
        """Run for the server's life. A failure here affects only the tools of others, never a session."""
        for name in ("kernelmcp.code_mode.code_mode", "kernelmcp.sessions.tools.tool_calls"):
            await anyio.to_thread.run_sync(importlib.import_module, name)
        from kernelmcp.code_mode.code_mode import open_code_mode

        try:
            async with open_code_mode(self._settings, self._home) as self.code_mode:
                self._opened.set()
                self.code_mode.offers.on_change.append(self._offer_to_all)
                for tell in self._on_open:
                    tell(self.code_mode)
                self._offer_to_all()
                await anyio.sleep_forever()
        finally:
            self.code_mode, self._is_opening = None, False

    async def names(self, principal: str) -> Sequence[str]:
        """The servers that this principal may use, for display."""
        if not self.configured:
            return ()
        if self.code_mode is None and self._settings.config.upstreams.files:
            with anyio.move_on_after(OPEN_SECONDS):
                await self._opened.wait()
        if self.code_mode is not None:
            return self.code_mode.broker.usable(principal)
        from kernelmcp.code_mode.call_policy import may_use

        servers = self._settings.config.upstreams.servers
        return [name for name, settings in servers.items() if may_use(settings, principal)]

    # -- offers -------------------------------------------------------------------------------------------------

    def kernel_changed(self, session: Session) -> None:
        if not self._is_opening:
            return
        if (kernel := session.kernel) is None:
            if (calls := self._sessions.get(session)) is not None:
                calls.kernel_ended()
                if self._registry.find_open(session.principal, session.id) is not session:
                    del self._sessions[session]
        elif kernel not in self._offered:
            self._offer_soon(session, kernel)

    def execution_submitted(self, execution: Execution) -> None:
        if self.configured:
            execution.tool_calls = ToolCalls()

    async def before_cell(self, kernel: Kernel) -> None:
        """Wait until the kernel has its first offer, or one that failed, but not for long."""
        if not self._is_opening or (offered := self._offered.get(kernel)) is None:
            return
        if self.code_mode is not None and (session := self._failed.pop(kernel, None)) is not None:
            offered.clear()
            self._offer_soon(session, kernel)
        if offered.is_set():
            return
        with anyio.move_on_after(FIRST_OFFER_SECONDS):
            await offered.wait()
        offered.set()

    def _offer_to_all(self) -> None:
        for session in self._registry.every():
            if (kernel := session.kernel) is not None:
                self._offer_soon(session, kernel)

    def _offer_soon(self, session: Session, kernel: Kernel) -> None:
        self._offered.setdefault(kernel, asyncio.Event())
        if self.code_mode is not None:
            background.start(self._tasks, "offering tools", lambda: self._offer(session, kernel))

    async def _offer(self, session: Session, kernel: Kernel) -> None:
        from kernelmcp.sessions.tools.tool_calls import SessionToolCalls

        if (code_mode := self.code_mode) is None:
            return
        has_it = False
        try:
            offer = await code_mode.offers.of(session.principal)
            if session.kernel is not kernel:
                return
            if (calls := self._sessions.get(session)) is None:
                calls = self._sessions[session] = SessionToolCalls(self._settings, session, code_mode.broker)
            has_it = await calls.offer(kernel, offer)
        finally:
            if not has_it:
                self._failed[kernel] = session
            self._offered.setdefault(kernel, asyncio.Event()).set()
