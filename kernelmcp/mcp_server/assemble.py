"""Assembles a server, and manages the lifetimes of its parts."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import structlog
from mcp.server._otel import OpenTelemetryMiddleware  # pyright: ignore[reportPrivateUsage]  # to be dropped, mcp says
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel.server import Server as LowlevelServer
from mcp.server.mcpserver import Context
from opentelemetry import trace

from kernelmcp.config import reload
from kernelmcp.config.settings import Settings
from kernelmcp.files.home import Home
from kernelmcp.files.volumes import SHARED_INSIDE
from kernelmcp.kernel.pool import Pool
from kernelmcp.mcp_server import prompts
from kernelmcp.mcp_server.callers import Callers
from kernelmcp.mcp_server.client_log import ClientLog
from kernelmcp.mcp_server.completions import Completions
from kernelmcp.mcp_server.elicitation import request_states
from kernelmcp.mcp_server.extensions.skills_extension import Skills
from kernelmcp.mcp_server.extensions.tasks import Tasks
from kernelmcp.mcp_server.file_resources import FileResources
from kernelmcp.mcp_server.notifications import Notifications
from kernelmcp.mcp_server.resources import Resources, ResourceServer
from kernelmcp.mcp_server.results.structured import Structured
from kernelmcp.mcp_server.runtimes import Runtimes
from kernelmcp.mcp_server.told import Told
from kernelmcp.mcp_server.tools.contract_tool import add_headers
from kernelmcp.mcp_server.tools.execution_tools import ExecutionTools
from kernelmcp.mcp_server.tools.file_tools import FileTools
from kernelmcp.mcp_server.tools.fleet_calls import FleetCalls
from kernelmcp.mcp_server.tools.icons import CODE, FILE, PACKAGE, SERVER, SESSION, icon, with_icon
from kernelmcp.mcp_server.tools.package_tools import PackageTools
from kernelmcp.mcp_server.tools.repeated_calls import RepeatedCalls
from kernelmcp.mcp_server.tools.session_tools import SessionTools
from kernelmcp.mcp_server.views.apps import Views
from kernelmcp.preflight import check_change
from kernelmcp.sessions.control import Control
from kernelmcp.sessions.default_session import DefaultSession
from kernelmcp.sessions.descriptors import Descriptors
from kernelmcp.sessions.fleet.fleet import holding_slot
from kernelmcp.sessions.hibernation.idle_sessions import stop_idle_sessions
from kernelmcp.sessions.hibernation.memory_relief import MemoryRelief
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.tools.offered_tools import OfferedTools
from kernelmcp.version import __version__

INSTRUCTIONS = """\
A Jupyter kernel of your own, in a sandbox. execute_code runs Python; variables, imports and files in /workspace stay
between calls, so build on earlier cells instead of repeating them. Plots and other displayed pictures come back as
images. A long cell answers with status "running": poll it with get_execution."""
WITH_SHELL = """
execute_command runs a shell on the same files."""
SHARED_FOLDER = f"""
{SHARED_INSIDE} is a folder on the user's machine: read the user's files there, and write there what they
should keep."""
# A client of MCP 2026-07-28 has no connection that could have a session.
OVER_HTTP = """
Pass your session_id in each call: the first result has it. Without one, a call may get a session that is new and
empty."""
# These lists are the same while a server runs, except for hints at other servers. Private: each principal has its own.
LASTING = CacheHint(ttl_ms=300_000)
CACHE_HINTS: dict[CacheableMethod, CacheHint] = dict.fromkeys(
    ("tools/list", "prompts/list", "resources/templates/list", "server/discover"), LASTING
)
# Time at shutdown to write transcripts that changed in the last half second: a few milliseconds, on a busy machine a
# few seconds. Anything later is in the log.
CLOSE_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class App:
    """A running server: the MCP interface, the sessions, and the kernels."""

    server: ResourceServer
    registry: Registry
    callers: Callers
    pool: Pool
    offered: OfferedTools

    @property
    def lowlevel(self) -> LowlevelServer[Any]:
        """The server object that mcp's transports drive."""
        return self.server._lowlevel_server  # pyright: ignore[reportPrivateUsage]  # as mcp's own Client does


@asynccontextmanager
async def open_server(settings: Settings, home: Home, pool: Pool, *, over_http: bool = False) -> AsyncIterator[App]:
    """Open a server and its sessions. Leaving it writes the remaining transcripts."""
    telemetry = settings.config.telemetry
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        registry = Registry(settings, home, pool, tasks)
        offered = OfferedTools(settings, home, registry, tasks)
        has_balancer = over_http and registry.fleet is not None
        default_session = DefaultSession(settings, registry, _folder())
        callers, client_log = Callers(default_session, home.secret, has_balancer=has_balancer), ClientLog()
        runtimes, views, structured = Runtimes(settings), Views(settings), Structured(settings)
        execution_tools = ExecutionTools(settings, registry, callers, runtimes, client_log, views)
        running, skills = Tasks(settings, registry, callers, structured, execution_tools), Skills(home, callers)
        tools = [
            *with_icon(CODE, execution_tools.all()),
            *with_icon(SESSION, SessionTools(settings, registry, callers, runtimes).all()),
            *with_icon(PACKAGE, PackageTools(settings, registry, callers).all()),
            *with_icon(FILE, FileTools(settings, registry, callers, runtimes.about_imports).all()),
        ]
        if over_http:
            for tool in tools:
                add_headers(tool)
        enabled = settings.config.tools.enabled
        server = ResourceServer(
            settings.config.server.name,
            title="kernelmcp",
            version=__version__,
            icons=[icon(SERVER)],
            instructions=_instructions(settings, runtimes, over_http),
            tools=[tool for tool in tools if enabled is None or tool.name in enabled],
            log_level="WARNING",
            extensions=[running, skills],
            cache_hints=CACHE_HINTS,
            request_state_security=request_states(home.secret, settings.config.server.slot),
        )
        if registry.fleet is not None:
            server.fleet_calls = running.fleet_calls = FleetCalls(registry.fleet, callers, RepeatedCalls(home.root))
            drain_seconds = settings.config.transport_http.drain_seconds
            await stack.enter_async_context(holding_slot(home, registry.fleet.slot, drain_seconds))
            tasks.start_soon(registry.fleet.run)
        server.structured, server.callers, server.told = structured, callers, Told(offered.names)
        server.views, server.tasks, server.skills = views, running, skills
        server.middleware.append(server.told.in_instructions)
        server.middleware.append(views.in_capabilities)
        notifications = Notifications(tasks, lambda ctx: callers(Context(request_context=ctx)).principal)
        notifications.register(server._lowlevel_server)  # pyright: ignore[reportPrivateUsage]  # as mcp's own Client does
        descriptors = Descriptors(home, registry.stored, "http" if over_http else "stdio")
        control = Control(registry, descriptors)
        for observer in (notifications, descriptors, offered, control):
            registry.observers.add(observer)
        offered.when_open(lambda code_mode: code_mode.broker.on_approval.append(control.asked.offer_approvals))
        offered.start()
        await stack.enter_async_context(control.listening(home))
        Resources(registry, callers, notifications).register(server)
        FileResources(registry, callers).register(server)
        Completions(registry, callers).register(server._lowlevel_server)  # pyright: ignore[reportPrivateUsage]
        client_log.register(server._lowlevel_server)  # pyright: ignore[reportPrivateUsage]
        runtimes.register(server)
        prompts.register(server)
        if telemetry.otlp_endpoint is not None:
            from kernelmcp.observability.telemetry import Tracing, exporting

            await stack.enter_async_context(exporting(telemetry, settings.config.server.name))
            registry.observers.add(Tracing())
        elif isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # nor does an embedding program ask
            drop_spans(server)
        tasks.start_soon(stop_idle_sessions, settings, registry, tasks)
        tasks.start_soon(registry.sweep_disk)
        tasks.start_soon(MemoryRelief(settings, registry).run)
        tasks.start_soon(reload.keep_current, settings, check_change)
        try:
            yield App(server, registry, callers, pool, offered)
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True) as limit:
                await registry.close()
            if limit.cancelled_caught:
                log.warning("not every notebook could be written in time: the next server completes them")
            tasks.cancel_scope.cancel()


def release_sessions(registry: Registry) -> None:
    """Once nothing of a server runs any more, its kernels included: the next one, perhaps of this process, may open its
    sessions."""
    for session in registry.every():
        session.lock.close()


def drop_spans(server: ResourceServer) -> None:
    """Make no span of each request, which nobody would get: that is a twentieth of the server's time for a call."""
    server.middleware[:] = [each for each in server.middleware if not isinstance(each, OpenTelemetryMiddleware)]


def _folder() -> str | None:
    """The working directory at the start of this process; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _instructions(settings: Settings, runtimes: Runtimes, over_http: bool) -> str:
    """The instructions, which a model reads first."""
    shared = SHARED_FOLDER if settings.config.volumes.default_volume is not None else ""
    return INSTRUCTIONS + (WITH_SHELL if runtimes.has_shell else "") + shared + (OVER_HTTP if over_http else "")
