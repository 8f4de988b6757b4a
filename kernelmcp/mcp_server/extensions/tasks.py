"""Tasks (`io.modelcontextprotocol/tasks`, SEP-2663): a call whose cell takes longer than `inline_wait_seconds` answers
with a task if its client announces the extension.

A task is an execution and has its id; `tasks/get` is `get_execution` without waiting. So it outlives its call, its
connection and its server. A question of the cell, which `get_execution` answers as `input_required`, has a key that is
its own: its name there and its place in the state that identifies it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    InputResponses,
    RequestParams,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from kernelmcp.config.settings import Settings
from kernelmcp.errors import ExecutionNotFound, ServerError, SessionInUse
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.approval_requests import take_approval
from kernelmcp.mcp_server.callers import Callers
from kernelmcp.mcp_server.elicitation import take_answer
from kernelmcp.mcp_server.extensions import TASKS
from kernelmcp.mcp_server.results.execution_result import error_result
from kernelmcp.mcp_server.results.structured import Structured
from kernelmcp.mcp_server.tools.contract_tool import check_not_refused
from kernelmcp.mcp_server.tools.execution_tools import ExecutionTools
from kernelmcp.mcp_server.tools.fleet_calls import FleetCalls
from kernelmcp.sessions.registry import Registry

VERSIONS = frozenset(MODERN_PROTOCOL_VERSIONS)
TOOLS = frozenset({"execute_code", "execute_command"})
POLL_MS = 1000

Ctx = Context[Any, Any]
RequestContext = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: InputResponses


class Tasks(Extension):
    """The tasks of one server."""

    identifier = TASKS

    def __init__(
        self, settings: Settings, registry: Registry, callers: Callers, structured: Structured, tools: ExecutionTools
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._callers = callers
        self._structured = structured
        self._tools = tools
        self.fleet_calls: FleetCalls | None = None
        """Set if other servers share the home."""

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self.get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self.update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self.cancel, VERSIONS),
        ]

    def created(self, tool: str, result: CallToolResult, context: Ctx) -> dict[str, Any] | None:
        """The task to answer a call with; None if its own result is the answer."""
        fields: dict[str, Any] = result.structured_content or {}
        if tool not in TOOLS or fields.get("status") != "running" or context.protocol_version not in VERSIONS:
            return None
        capabilities = context.client_capabilities
        if capabilities is None or self.identifier not in (capabilities.extensions or {}):
            return None
        session = self._registry.find_open(self._callers(context).principal, fields["session_id"])
        execution = session.executions.get(fields["execution_id"]) if session is not None else None
        return None if execution is None else {"resultType": "task", **self._task(execution, "working")}

    async def get(self, ctx: RequestContext, params: TaskParams) -> HandlerResult:
        async with self._about(ctx, params.task_id) as (execution, context):
            asking = [each for each in (execution.questions, execution.approvals) if each is not None]
            is_quiet = not any(each.asked.is_set() for each in asking)
            result = None if is_quiet and not execution.done.is_set() else await self._state(execution, context)
        if isinstance(result, InputRequiredResult):
            asked = {_key(name, result): request for name, request in (result.input_requests or {}).items()}
            requests = {key: _as_json(request) for key, request in asked.items()}
            return {**self._task(execution, "input_required"), "inputRequests": requests}
        # The result decides: the cell may have ended since it was made.
        fields: dict[str, Any] = (result.structured_content if result is not None else None) or {}
        if result is None or fields.get("status") == "running":
            return self._task(execution, "working")
        # Not if variables were lost with it, which only a result says.
        if execution.cancelled_as_task and execution.status == "interrupted" and not execution.state_lost:
            text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
            return {**self._task(execution, "cancelled"), "statusMessage": text}
        shown = self._structured.in_result(self._callers.in_result(result), ctx)
        return {**self._task(execution, "completed"), "result": _as_json(shown)}

    async def update(self, ctx: RequestContext, params: UpdateParams) -> HandlerResult:
        async with self._about(ctx, params.task_id) as (execution, _):
            if execution.is_elsewhere:
                raise SessionInUse("the task runs in another server, which did not get this answer", "Send it again.")
            for key, response in params.input_responses.items():
                name, _, place = key.partition(":")
                answer = CallToolRequestParams(
                    name="get_execution", input_responses={name: response}, request_state=f"{execution.id} {place}"
                )
                context: Ctx = Context(request_context=ctx, input_params=answer)
                take_answer(execution, context)
                take_approval(execution, context)
        return {}

    async def cancel(self, ctx: RequestContext, params: TaskParams) -> HandlerResult:
        async with self._about(ctx, params.task_id) as (execution, context):
            is_first = not execution.done.is_set() and execution.interruption is None
            execution.cancelled_as_task |= is_first  # before it ends: then it is recorded
            try:
                await self._tools.cancel_execution(context, execution_id=params.task_id)
            finally:
                if is_first and execution.interruption is None:  # refused
                    execution.cancelled_as_task = False
        return {}

    async def _state(self, execution: Execution, context: Ctx) -> CallToolResult | InputRequiredResult:
        try:
            return await self._tools.get_execution(execution.id, context, 0)
        except ServerError as exc:
            if execution.failure is None:
                raise
            return error_result(exc)

    @asynccontextmanager
    async def _about(self, ctx: RequestContext, task_id: str) -> AsyncIterator[tuple[Execution, Ctx]]:
        """A request about a task. Raises what a client gets instead of an answer: `MCPError`."""
        require_client_extension(ctx, self.identifier)
        context: Ctx = Context(request_context=ctx)
        try:
            check_not_refused(context)
            async with nullcontext() if self.fleet_calls is None else self.fleet_calls.confirmed(context):
                yield await self._registry.execution(self._callers(context), task_id), context
        except ServerError as exc:
            code = INVALID_PARAMS if isinstance(exc, ExecutionNotFound) else INTERNAL_ERROR
            raise MCPError(code, exc.to_text()) from exc

    def _task(self, execution: Execution, status: str) -> dict[str, Any]:
        running_ms = execution.queued_ms + execution.execution_time_ms
        changed = execution.created_at + timedelta(milliseconds=running_ms) if execution.done.is_set() else _now()
        keep_days = self._settings.config.sessions.keep_days
        return {
            "taskId": execution.id,
            "status": status,
            "createdAt": execution.created_at.isoformat(timespec="milliseconds"),
            "lastUpdatedAt": changed.isoformat(timespec="milliseconds"),
            "ttlMs": round(timedelta(days=keep_days) / timedelta(milliseconds=1)) if keep_days else None,
            "pollIntervalMs": POLL_MS,
        }


def _now() -> datetime:
    return datetime.now(UTC)


def _key(name: str, asked: InputRequiredResult) -> str:
    """The key of a question: no other question of the task has it."""
    return f"{name}:{(asked.request_state or '').partition(' ')[2]}"


def _as_json(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
