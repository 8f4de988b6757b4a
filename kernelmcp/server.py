"""A server as an object: for programs that embed kernelmcp, and for the command line.

    server = create_server(settings)
    app = server.http_app()            # an ASGI application with its lifespan, to serve or to mount
    await server.start_http()          # or: listen on a port; start_stdio() for stdin and stdout
    await server.wait()                # until somebody calls shutdown(), or stdin ends
    await server.shutdown()

Importing this module is cheap; starting loads the rest. It is long because all ways to run share one start and one end.
"""

import asyncio
import importlib
import logging
import math
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from kernelmcp.config.load import load
from kernelmcp.config.settings import Settings
from kernelmcp.errors import ConfigurationError
from kernelmcp.files.home import Home, open_home
from kernelmcp.kernel.pool import open_pool
from kernelmcp.observability.unread_stderr import UnreadStderr
from kernelmcp.preflight import check_limits, check_start
from kernelmcp.process_start import resume_garbage_collector

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from kernelmcp.http.asgi import Web
    from kernelmcp.mcp_server.assemble import App

# Time in seconds for the results of cells after they were interrupted.
INTERRUPT_SECONDS = 2.0
# Time in seconds for sending the answers of ended calls.
ANSWER_SECONDS = 1.0
DRAIN_POLL_SECONDS = 0.02
# Time from the end of draining to the exit of the process, whatever hangs.
END_SECONDS = 6.0
# The same on stdio, which does not drain. Clients wait 2 s after closing stdin before they send SIGTERM.
STDIO_END_SECONDS = 2.0
# More time at the end, for variables that are being saved: a client may kill the server earlier, but need not.
SAVING_SECONDS = 10.0
SAVING_POLL_SECONDS = 0.25
# Time for deleting our files at an end that is cut short: their disk may be what hangs.
DELETE_SECONDS = 0.5

log = structlog.get_logger(__name__)


def create_server(settings: Settings | None = None) -> "Server":
    """Create a server that does not run yet. Default settings: those of the files and the environment, as for the
    command."""
    return Server(settings or load())


class Server:
    """One server. It can be started once at a time, in one way."""

    def __init__(self, settings: Settings, on_ready: Callable[[], None] | None = None) -> None:
        """`on_ready` is called when all imports are done and calls can be served."""
        self.settings = settings
        self.url: str | None = None
        """The address for clients, after `start_http`: `http://127.0.0.1:8000/mcp`."""
        self._web: Web | None = None
        self._is_mounted = False
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.Event | None = None
        self._drain_seconds: float | None = None
        self._on_ready = on_ready
        self._home: Home | None = None
        self._running: App | None = None

    # -- ways to run --------------------------------------------------------------------------------------------

    def http_app(self) -> "Starlette":
        """The ASGI application. If it is mounted in another one, that one's lifespan must enter `lifespan`."""
        return self._the_web().asgi

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """The server's life without a port: required while `http_app()` is used. Raises `ConfigurationError`."""
        self._check_free()
        self._is_mounted = True
        try:
            async with self._open() as running, self._the_web().serving(running):
                try:
                    yield
                finally:
                    await self._drain(running)
        finally:
            self._is_mounted = False

    async def start_http(self) -> None:
        """Listen on the configured address. Returns once it listens. Raises `ConfigurationError`."""
        await self._start(self._run_http)

    async def start_stdio(self, on_end: Callable[[], None] | None = None) -> None:
        """Use the process's stdin and stdout for MCP; printed text goes to stderr from now on.

        `on_end` is called as soon as the client has gone, from any thread and perhaps twice: the command uses it to
        bound its end. Raises `ConfigurationError`."""
        await self._start(lambda started, end: self._run_stdio(started, end, on_end))

    async def wait(self) -> None:
        """Wait until it has ended."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def shutdown(self, drain_seconds: float | None = None) -> None:
        """End it: running cells have `drain_seconds` (default: the setting) to finish, then they are interrupted."""
        if self._task is None or self._end is None:
            return
        if drain_seconds is not None or self._end.is_set():
            # The second request ends it at once.
            self._drain_seconds = drain_seconds or 0.0
        self._end.set()
        await self.wait()

    @property
    def is_saving(self) -> bool:
        """True while the variables of a session are being saved because the server ends. Readable from any thread."""
        sessions = self._running.registry.every() if self._running is not None else []
        return any(session.is_saving for session in sessions)

    def cut_short(self) -> int:
        """Clean up for a process that ends now, whatever hangs. Returns its exit status: 0 if every cell is on disk.
        May be called from any thread."""
        if self._home is not None:
            deleting = threading.Thread(target=self._home.delete_runtime, daemon=True)
            deleting.start()
            deleting.join(DELETE_SECONDS)
        sessions = self._running.registry.every() if self._running is not None else []
        return 0 if all(session.log.is_written for session in sessions) else 1

    # -- its life -----------------------------------------------------------------------------------------------

    def _check_free(self) -> None:
        if self._is_mounted or (self._task is not None and not self._task.done()):
            raise RuntimeError("the server is running already")

    async def _start(self, run: Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        self._check_free()
        self._end = asyncio.Event()
        self._drain_seconds = None
        started = asyncio.Event()
        self._task = asyncio.create_task(run(started.set, self._end))
        waiting = asyncio.ensure_future(started.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            await self._task

    async def _run_http(self, started: Callable[[], None], end: asyncio.Event) -> None:
        from kernelmcp.http import http_listener
        from kernelmcp.http.tokens import Authenticator

        section = self.settings.config.transport_http
        if not section.enabled:
            raise ConfigurationError("transport_http.enabled is false", "Set it to true to serve over HTTP.")
        async with AsyncExitStack() as stack:
            starting = stack.enter_context(anyio.CancelScope())
            cancelling = asyncio.ensure_future(_cancel_last_at(end, [starting]))
            stack.callback(cancelling.cancel)
            # Mistakes in the settings are reported before anything starts.
            protected = Authenticator(self.settings).required
            sockets = stack.enter_context(http_listener.bound(section, protected=protected))
            running = await stack.enter_async_context(self._open())
            web = self._the_web()
            await stack.enter_async_context(web.serving(running))
            await stack.enter_async_context(http_listener.listening(web.asgi, section, sockets))
            self.url = http_listener.url_of(section, sockets) + section.path
            log.info("listening", url=self.url, authentication=protected)
            cancelling.cancel()
            started()
            await end.wait()
            await self._drain(running)
            web.throttle.close_streams()

    async def _run_stdio(
        self, started: Callable[[], None], end: asyncio.Event, on_end: Callable[[], None] | None
    ) -> None:
        from kernelmcp.stdio import serve

        await self._check_start()
        wire_in, wire_out = serve.claim()
        if on_end is not None:
            serve.when_closed(wire_in, on_end)
        # Outside of the tasks: its errors are for a person, and must not come in a group.
        with self._open_home() as home:
            if serve.has_ended(wire_in):
                return  # no client would use a kernel
            async with anyio.create_task_group() as tasks:
                scopes = [tasks.cancel_scope]
                tasks.start_soon(_cancel_last_at, end, scopes)
                started()
                async with self._open_in(home, *serve.MODULES) as running:
                    # From here on a signal is as the end of stdin: sessions are saved before their kernels end.
                    with anyio.CancelScope() as serving:
                        scopes.append(serving)
                        await serve.serve_wire(running.lowlevel, wire_in, wire_out)
                    if on_end is not None:
                        on_end()
                tasks.cancel_scope.cancel()

    async def _check_start(self) -> None:
        check_limits()  # before the first thread
        await anyio.to_thread.run_sync(check_start, self.settings)

    @contextmanager
    def _open_home(self) -> Iterator[Home]:
        settings, section = self.settings, self.settings.config.server
        guest_uid, is_shared = settings.policy.guest_uid, section.slot is not None
        with open_home(settings.home, section.runtime, guest_uid=guest_uid, is_shared=is_shared) as home:
            self._home = home
            yield home

    def _the_web(self) -> "Web":
        if self._web is None:
            from kernelmcp.http.asgi import Web

            self._web = Web(self.settings, self.lifespan)
        return self._web

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[App]":
        await self._check_start()
        with self._open_home() as home:
            async with self._open_in(home, "kernelmcp.http.asgi", over_http=True) as running:
                yield running

    @asynccontextmanager
    async def _open_in(self, home: Home, *modules: str, over_http: bool = False) -> "AsyncIterator[App]":
        """Open the server for a transport. The first kernel is spawned before mcp and the transport's `modules` are
        imported: their import takes about as long as a kernel's start, so they run in parallel."""
        async with AsyncExitStack() as last, open_pool(self.settings, home) as pool:
            await anyio.to_thread.run_sync(_import, *modules, abandon_on_cancel=True)
            from kernelmcp.mcp_server.assemble import open_server, release_sessions

            async with open_server(self.settings, home, pool, over_http=over_http) as running:
                last.callback(release_sessions, running.registry)
                self._running = running
                if self._on_ready is not None:
                    self._on_ready()
                yield running

    # -- the end ------------------------------------------------------------------------------------------------

    async def _drain(self, running: "App") -> None:
        """Let running cells finish; then interrupt them. Results can be fetched until then, with a slot from the other
        servers."""
        web = self._the_web()
        web.draining = True
        others_answer = running.registry.fleet is not None
        # Behind a load balancer, calls that are here already go on: only new ones are sent elsewhere.
        running.registry.draining = not others_answer
        began = anyio.current_time()

        def is_drained() -> bool:
            return not _busy(running) and not (others_answer and web.throttle.active)

        await _until(lambda: is_drained() or anyio.current_time() - began >= self._drain_bound(), math.inf)
        running.registry.draining = True
        if left := _busy(running):
            log.warning("interrupting what still runs", executions=left)
            for session in running.registry.every():
                session.queue.end()
            await _until(lambda: not _busy(running), INTERRUPT_SECONDS)
        await _until(lambda: not web.throttle.active, ANSWER_SECONDS)

    def _drain_bound(self) -> float:
        if self._drain_seconds is not None:
            return self._drain_seconds
        return self.settings.config.transport_http.drain_seconds


def _busy(running: "App") -> int:
    return sum(not session.is_idle for session in running.registry.every())


def _import(*modules: str) -> None:
    for name in ("kernelmcp.mcp_server.assemble", *modules):
        importlib.import_module(name)


def serve_stdio(settings: Settings) -> int:
    """The command for stdio. It ends when stdin ends or at a signal, within `STDIO_END_SECONDS` whatever hangs,
    unless it still saves variables: then within `SAVING_SECONDS` more."""
    asyncio.run(_serve_stdio(settings))
    return 0


async def _serve_stdio(settings: Settings) -> None:
    server = Server(settings, resume_garbage_collector)
    ending: list[asyncio.Task[None]] = []

    def bound_end() -> None:
        _exit_after(STDIO_END_SECONDS, server)

    def end() -> None:
        bound_end()
        ending.append(asyncio.ensure_future(server.shutdown()))

    # Before the start: a signal during the start must clean up too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        _on_signal(number, end)
    await server.start_stdio(bound_end)
    await server.wait()


def serve_http(settings: Settings) -> int:
    """The command for HTTP. SIGTERM drains; SIGINT, and a second SIGTERM, don't wait for running cells."""
    return asyncio.run(_serve_http(settings))


async def _serve_http(settings: Settings) -> int:
    server = Server(settings, resume_garbage_collector)
    ending: list[asyncio.Task[None]] = []

    def end(drain_seconds: float | None) -> None:
        ending.append(asyncio.ensure_future(server.shutdown(drain_seconds)))
        bound = settings.config.transport_http.drain_seconds if drain_seconds is None else drain_seconds
        _exit_after(bound + END_SECONDS, server)

    # Before the start, as on stdio.
    for number in (signal.SIGTERM, signal.SIGHUP):
        _on_signal(number, end, None)
    _on_signal(signal.SIGINT, end, 0.0)
    await server.start_http()
    await server.wait()
    return 0


def _on_signal(number: signal.Signals, call: Callable[..., None], *arguments: Any) -> None:
    """Call this at a signal, unless our parent process wants it ignored: nohup, or a shell's `&`."""
    if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(number, call, *arguments)


def _exit_after(seconds: float, server: Server, more: float = SAVING_SECONDS) -> None:
    """Bound the end, whatever hangs: the kernels notice their parent's exit by themselves. Variables that are then
    still being saved have some seconds `more`."""

    def exit_now() -> None:
        if more > 0 and server.is_saving:
            _exit_after(SAVING_POLL_SECONDS, server, more - SAVING_POLL_SECONDS)
            return
        status = 1
        try:
            status = server.cut_short()
            for handler in logging.getLogger().handlers:
                if isinstance(handler, UnreadStderr):
                    handler.flush()
        finally:
            os._exit(status)

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    with anyio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110  # what is waited for has many ends and no one event
            await anyio.sleep(DRAIN_POLL_SECONDS)


async def _cancel_last_at(end: asyncio.Event, scopes: list[anyio.CancelScope]) -> None:
    await end.wait()
    scopes[-1].cancel()
