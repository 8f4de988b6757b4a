"""The metrics for Prometheus at `/metrics`. Each server has its own registry, so that two in one process don't mix.

No label has a value that a client can choose, and nothing names a session, a principal or executed code.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import psutil
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kernelmcp.config.tool_names import TOOL_NAMES
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.tool_calls import ToolCallRecord
from kernelmcp.http.rate_limits import Throttle
from kernelmcp.kernel.memory_use import memory_use
from kernelmcp.kernel.pool import Pool
from kernelmcp.mcp_server.results.structured import RESULT_KEY
from kernelmcp.output.sanitize import as_dict
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Observer
from kernelmcp.sessions.usage import tree_memory_mb

if TYPE_CHECKING:
    from kernelmcp.code_mode.code_mode import CodeMode

CONTENT_TYPE = CONTENT_TYPE_LATEST
METHODS = frozenset({"GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"})
STATES = ("starting", "idle", "busy", "stopped")
# Seconds. A call takes milliseconds; a cell may take minutes.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
BYTES_PER_MB = 1024 * 1024
OTHER = "other"


class Metrics(Observer):
    """The metrics of one server."""

    def __init__(self, throttle: Throttle, budget_chars: Callable[[], int]) -> None:
        self._throttle = throttle
        self._budget_chars = budget_chars
        self._watched: tuple[Registry, Pool] | None = None
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "kernelmcp_http_requests", "Requests answered.", ["method", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "kernelmcp_http_request_seconds", "Time to the end of the answer.", buckets=BUCKETS, registry=registry
        )
        self._active = Gauge("kernelmcp_http_requests_active", "Requests being answered.", registry=registry)
        self._streams = Gauge("kernelmcp_http_streams", "Open streams of events.", registry=registry)
        self._denials = Counter(
            "kernelmcp_denials", "Requests and calls refused, by reason.", ["reason"], registry=registry
        )
        self._sessions = Gauge("kernelmcp_sessions", "Sessions known to this server.", ["state"], registry=registry)
        self._kernels = Gauge("kernelmcp_kernels", "Kernel processes.", ["state"], registry=registry)
        self._memory = Gauge("kernelmcp_memory_bytes", "Resident memory.", ["of"], registry=registry)
        self._memory_share = Gauge(
            "kernelmcp_memory_used_share",
            "Used share of the machine's memory, or of a container's that is closer to its limit.",
            registry=registry,
        )
        self._executions = Counter("kernelmcp_executions", "Executions ended.", ["status"], registry=registry)
        self._execution_seconds = Histogram(
            "kernelmcp_execution_seconds", "Time in the kernel.", buckets=BUCKETS, registry=registry
        )
        self._queue_seconds = Histogram(
            "kernelmcp_queue_seconds", "Time waiting for the kernel.", buckets=BUCKETS, registry=registry
        )
        self._output_bytes = Counter(
            "kernelmcp_output_bytes", "Text that cells printed, as it was kept.", registry=registry
        )
        self._calls = Counter("kernelmcp_tool_calls", "Tool calls.", ["tool", "outcome"], registry=registry)
        self._upstream_calls = Counter(
            "kernelmcp_upstream_calls",
            "Calls to tools of other servers, by outcome.",
            ["server", "outcome"],
            registry=registry,
        )
        self._upstream_seconds = Histogram(
            "kernelmcp_upstream_call_seconds",
            "Time from a call to its answer, including a person's.",
            ["server"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._upstream_tokens = Counter(
            "kernelmcp_upstream_tokens_saved",
            "Estimated tokens of their results that stayed in kernels.",
            ["server"],
            registry=registry,
        )
        self._installs = Counter("kernelmcp_package_installs", "Package installs.", ["outcome"], registry=registry)

    def watch(self, registry: Registry, pool: Pool) -> None:
        """Count the sessions, executions and kernels of a running server. `count_call` must be its middleware too."""
        self._watched = registry, pool
        registry.observers.add(self)

    def execution_submitted(self, execution: Execution) -> None:
        execution.on_finish.append(self._finished)

    def watch_code_mode(self, code_mode: "CodeMode") -> None:
        """Count the calls of other servers' tools. Server names that a guest invents are not counted."""
        code_mode.broker.on_tool_call.append(lambda record: self._tool_call_ended(record, code_mode.upstreams.names))

    def _tool_call_ended(self, record: ToolCallRecord, servers: Sequence[str]) -> None:
        server = record.server if record.server in servers else OTHER
        self._upstream_calls.labels(server, record.outcome).inc()
        self._upstream_seconds.labels(server).observe(record.ms / 1000)

    def request(self, method: str, status: int, seconds: float) -> None:
        self._requests.labels(method if method in METHODS else OTHER, str(status)).inc()
        self._request_seconds.observe(seconds)

    def denied(self, reason: str) -> None:
        """`reason` is one of our fixed words."""
        self._denials.labels(reason).inc()

    async def to_text(self) -> bytes:
        self._active.set(self._throttle.active)
        self._streams.set(self._throttle.streams)
        if self._watched is not None:
            await self._look_at(*self._watched)
        return generate_latest(self._registry)

    async def _look_at(self, registry: Registry, pool: Pool) -> None:
        sessions = registry.every()
        for state in STATES:
            self._sessions.labels(state).set(sum(session.state == state for session in sessions))
        live = [session for session in sessions if session.kernel is not None]
        warm = pool.warm
        self._kernels.labels("warm").set(len(warm))
        self._kernels.labels("busy").set(sum(session.state == "busy" for session in live))
        self._kernels.labels("idle").set(sum(session.state == "idle" for session in live))
        pids = [kernel.pid for session in live if (kernel := session.kernel)] + [pooled.kernel.pid for pooled in warm]
        kernels = await anyio.to_thread.run_sync(lambda: sum(tree_memory_mb(pid) for pid in pids))
        self._memory.labels("kernels").set(kernels * BYTES_PER_MB)
        self._memory_share.set(memory_use().share)
        self._memory.labels("server").set(psutil.Process(os.getpid()).memory_info().rss)

    def _finished(self, execution: Execution) -> None:
        if (use := execution.tool_calls) is not None:
            for server, tokens in use.tokens_saved_by_server(execution.outputs, self._budget_chars()).items():
                self._upstream_tokens.labels(server).inc(tokens)
        self._executions.labels(execution.status).inc()
        self._execution_seconds.observe(execution.execution_time_ms / 1000)
        self._queue_seconds.observe(execution.queued_ms / 1000)
        self._output_bytes.inc(execution.outputs.stdout.size + execution.outputs.stderr.size)

    async def count_call(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware of mcp: counts the outcomes of tool calls."""
        result = await call_next(ctx)
        if ctx.method == "tools/call" and isinstance(result, dict):
            name = str((ctx.params or {}).get("name"))
            tool, outcome = name if name in TOOL_NAMES else OTHER, _outcome(result)
            self._calls.labels(tool, outcome).inc()
            if tool == "install_package":
                self._installs.labels(outcome).inc()
            if outcome == "PERMISSION_DENIED":
                self.denied("policy")
        return result


def _outcome(result: dict[str, Any]) -> str:
    """`ok`, `failed` (the guest's code), or one of the error codes. `result` is the client's version."""
    if not result.get("isError"):
        return "ok"
    fields = as_dict(as_dict(result.get("_meta")).get(RESULT_KEY))
    return str(as_dict(fields.get("error")).get("error_code") or "failed")
