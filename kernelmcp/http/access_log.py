"""Logs one line for each request, and counts it in the metrics. Never logs a token, a body or a query."""

import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelmcp.http.metrics import Metrics
from kernelmcp.mcp_server.callers import principal_of
from kernelmcp.observability import telemetry

MAX_PATH_CHARS = 200
# The client disconnected before the answer; nginx's code for it.
CLIENT_CLOSED = 499
QUIET_PATHS = ("/health", "/ready", "/metrics")

log = structlog.get_logger(__name__)


class AccessMiddleware:
    """The outermost layer: sees the answers of all others."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, size, began = CLIENT_CLOSED, 0, time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        with telemetry.request_span(scope) as span:
            try:
                await self._app(scope, receive, noting)
            except Exception:
                status = 500 if status == CLIENT_CLOSED else status
                raise
            finally:
                seconds = time.perf_counter() - began
                telemetry.end_request(span, status)
                self._metrics.request(scope["method"], status, seconds)
                self._write(scope, status, size, seconds)

    def _write(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        # As sent, so that it cannot contain line ends.
        path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:MAX_PATH_CHARS]
        client = scope.get("client")
        own_path = path.removeprefix(scope.get("root_path", ""))  # where it is mounted
        write = log.debug if own_path in QUIET_PATHS and status < 400 else log.info
        write(
            "request",
            method=scope["method"],
            path=path,
            status=int(status),
            ms=round(1000 * seconds, 1),
            bytes=size,
            client=client[0] if client else None,
            principal=principal_of(scope),
        )
