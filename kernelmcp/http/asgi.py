"""The ASGI application: MCP at `/mcp` and `/sse`, and endpoints for operators.

The application exists before the server runs, so that it can be mounted; until then, and after, it answers 503.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from mcp.server.auth.routes import create_protected_resource_routes
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PARAM_HEADER_PREFIX
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelmcp.config.settings import Settings
from kernelmcp.files.home import CONNECTIONS
from kernelmcp.http.access_log import AccessMiddleware
from kernelmcp.http.adopted_connections import AdoptedConnections
from kernelmcp.http.agreed_connections import AgreedConnections
from kernelmcp.http.guard import Gate, Guard
from kernelmcp.http.host_and_origin import HostMiddleware
from kernelmcp.http.mcp_connections import Connections
from kernelmcp.http.metrics import CONTENT_TYPE, Metrics
from kernelmcp.http.rate_limits import Throttle
from kernelmcp.http.sse import Sse
from kernelmcp.http.tokens import Authenticator
from kernelmcp.mcp_server.assemble import App
from kernelmcp.mcp_server.tools.contract_tool import HEADERS
from kernelmcp.version import __version__

BYTES_PER_MB = 1024 * 1024
# Headers that a browser's page may send and read (besides the always allowed ones).
CORS_HEADERS = [
    "Authorization",
    "Content-Type",
    "Last-Event-ID",
    "Mcp-Method",
    "Mcp-Name",
    *(f"{MCP_PARAM_HEADER_PREFIX}{header}" for header in HEADERS.values()),
    "Mcp-Protocol-Version",
    "Mcp-Session-Id",
]
CORS_EXPOSED = ["Mcp-Session-Id", "Retry-After", "WWW-Authenticate"]
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


class Web:
    """The web side of one server."""

    def __init__(self, settings: Settings, lifespan: Lifespan) -> None:
        self.settings = settings
        self.throttle = Throttle(settings)
        self.metrics = Metrics(self.throttle, lambda: settings.policy.output_budget_chars)
        self.draining = False
        self._gate = Gate(settings, Authenticator(settings), self.throttle)
        self._gate.on_denied = self.metrics.denied
        self._app: App | None = None
        self._connections: Connections | None = None
        self._sse: Sse | None = None
        self.asgi = Starlette(routes=self._routes(), middleware=self._middleware(), lifespan=lifespan)

    @property
    def protected(self) -> bool:
        """True if a token is needed."""
        return self._gate.authenticator.required

    @asynccontextmanager
    async def serving(self, app: App) -> AsyncIterator[None]:
        """Answer requests with this server. Leaving it ends every client connection."""
        config = self.settings.config
        limit = int(config.transport_http.max_request_size_mb * BYTES_PER_MB)
        manager = StreamableHTTPSessionManager(
            app.lowlevel,
            max_request_body_size=limit,
            session_idle_timeout=config.sessions.default_timeout_seconds,
            max_sessions=config.transport_http.max_streams,
        )
        self.metrics.watch(app.registry, app.pool)
        app.offered.when_open(self.metrics.watch_code_mode)
        app.server.middleware.append(self.metrics.count_call)
        async with manager.run(), anyio.create_task_group() as tasks:
            adopted = None
            if config.server.slot is not None:
                adopted = AdoptedConnections(manager, AgreedConnections(self.settings.home / CONNECTIONS))
                tasks.start_soon(adopted.sweep)
            self._connections = Connections(manager, self.throttle, limit, app.registry, app.callers, adopted)
            self._app, self.draining = app, False
            self._sse = Sse(app.lowlevel, self.throttle, limit)
            try:
                yield
            finally:
                self.throttle.close_streams()
                self._app = self._connections = self._sse = None
                tasks.cancel_scope.cancel()

    @property
    def _is_open(self) -> bool:
        """False if other servers answer: this one ends, and has a load balancer before it."""
        return not self.draining or self.settings.config.server.slot is None

    # -- routes -------------------------------------------------------------------------------------------------

    def _routes(self) -> list[BaseRoute]:
        section = self.settings.config.transport_http
        routes: list[BaseRoute] = [
            Route("/", Guard(request_response(self.status), self._gate, has_place=True), methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            Route("/metrics", Guard(request_response(self.show_metrics), self._gate, has_place=True), methods=["GET"]),
            Route(
                section.path, Guard(_while_running(lambda: self._connections if self._is_open else None), self._gate)
            ),
        ]
        if section.sse:
            stream = _while_running(lambda: self._sse and self._sse.stream)
            post = _while_running(lambda: self._sse and self._sse.post)
            routes.append(Route("/sse", Guard(stream, self._gate), methods=["GET"]))
            routes.append(Mount("/messages", Guard(post, self._gate, tools_answer=True)))
        return [*routes, *self._metadata_routes()]

    def _metadata_routes(self) -> list[Route]:
        section = self.settings.config.auth
        if section.issuer is None or section.resource_url is None:
            return []
        return create_protected_resource_routes(
            AnyHttpUrl(section.resource_url),
            [AnyHttpUrl(section.issuer)],
            scopes_supported=section.required_scopes or None,
        )

    def _middleware(self) -> list[Middleware]:
        found = [Middleware(AccessMiddleware, metrics=self.metrics), Middleware(HostMiddleware, settings=self.settings)]
        if origins := self.settings.config.transport_http.cors_origins:
            found.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=origins,
                    allow_methods=["GET", "POST", "DELETE"],
                    allow_headers=CORS_HEADERS,
                    expose_headers=CORS_EXPOSED,
                )
            )
        return found

    # -- for operators ------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Liveness: the process answers."""
        return JSONResponse({"status": "draining" if self.draining else "ok"})

    async def ready(self, request: Request) -> Response:
        """Readiness: new work may be sent here."""
        ready = self._app is not None and not self.draining
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def status(self, request: Request) -> Response:
        section = self.settings.config.transport_http
        app = self._app
        body: dict[str, Any] = {
            "name": self.settings.config.server.name,
            "version": __version__,
            "status": "stopped" if app is None else "draining" if self.draining else "ok",
            "endpoints": {"streamable_http": section.path, "sse": "/sse" if section.sse else None},
            "authentication": "bearer" if self.protected else "none",
            "sessions": len(app.registry.every()) if app else 0,
        }
        return JSONResponse(body)

    async def show_metrics(self, request: Request) -> Response:
        return Response(await self.metrics.to_text(), media_type=CONTENT_TYPE)


def _while_running(current: Callable[[], ASGIApp | None]) -> ASGIApp:
    """The app that `current` returns while the server runs."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        not_running = JSONResponse({"error": "the server is not running"}, 503, {"Retry-After": "1"})
        await (current() or not_running)(scope, receive, send)

    return app
