"""OpenTelemetry traces, from the request through the queue to the kernel, if a collector is configured.

mcp creates a span for each MCP request itself; this module creates the one around it (HTTP) and those below it (the
execution, and its time in the kernel). Without a collector all of them are no-ops. No span contains code, output or a
principal.
"""

import importlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.to_thread
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from starlette.datastructures import Headers
from starlette.types import Scope

from kernelmcp.config.models import TelemetrySection
from kernelmcp.errors import ConfigurationError
from kernelmcp.executions.execution import Execution
from kernelmcp.sessions.session import Observer
from kernelmcp.version import __version__

TRACES_PATH = "/v1/traces"
FLUSH_SECONDS = 1.0
NANOSECONDS = 1_000_000_000

_tracer = trace.get_tracer("kernelmcp", __version__)


def check_installed() -> None:
    """Raises `ConfigurationError` if OpenTelemetry is not installed."""
    try:
        for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
            importlib.import_module(name)
    except ImportError as exc:
        raise ConfigurationError(
            "telemetry.otlp_endpoint is set, but the packages for it are not installed",
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ) from exc


@asynccontextmanager
async def exporting(section: TelemetrySection, name: str) -> AsyncIterator[None]:
    """Send spans while the context is open, and the rest at its end."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(f"{str(section.otlp_endpoint).rstrip('/')}{TRACES_PATH}")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)  # process-wide, and only once; a second server shares the first one's
    try:
        yield
    finally:
        # A collector that does not answer must not delay the end.
        with anyio.move_on_after(FLUSH_SECONDS, shield=True):
            await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


@contextmanager
def request_span(scope: Scope) -> Iterator[Span]:
    """The span of an HTTP request; part of the caller's trace if it sent one."""
    context = propagate.extract(Headers(scope=scope))
    attributes = {"http.request.method": scope["method"], "url.path": scope["path"][:200]}
    with _tracer.start_as_current_span(scope["method"], context, SpanKind.SERVER, attributes) as span:
        yield span


def end_request(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


class Tracing(Observer):
    """A span of each execution from submission to end, below the current span, with a child for its time in the
    kernel."""

    def execution_submitted(self, execution: Execution) -> None:
        began = time.time_ns()
        ids = {"kernelmcp.execution_id": execution.id, "kernelmcp.session_id": execution.session_id}
        span = _tracer.start_span("execution", attributes=ids, start_time=began)
        if span.is_recording():
            execution.on_finish.append(lambda ended: _finish(span, began, ended))


def _finish(span: Span, began: int, ended: Execution) -> None:
    if ended.started is not None and ended.ended is not None:
        start = began + int((ended.started - ended.submitted) * NANOSECONDS)
        kernel = _tracer.start_span("kernel", trace.set_span_in_context(span), start_time=start)
        kernel.end(start + int((ended.ended - ended.started) * NANOSECONDS))
    span.set_attribute("kernelmcp.status", ended.status)
    span.set_attribute("kernelmcp.queued_ms", ended.queued_ms)
    if ended.status != "ok":
        span.set_status(StatusCode.ERROR, ended.status)
    span.end()
