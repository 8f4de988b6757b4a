"""Asks a client's user whether a cell may call a tool of another server, or to open an address for the login or the
values that the server needs, by MCP's elicitation. It works in each era of MCP as in `elicitation`."""

import secrets
from typing import Any

import structlog
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)
from pydantic import BaseModel, Field

from kernelmcp.executions.approvals import CHOICES, Answer, Approval, Approvals, answer_of, question
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.elicitation import COULD_NOT_ASK, INPUT_REQUIRED_SINCE, for_log, is_closed
from kernelmcp.mcp_server.progress import reply_to

Ctx = Context[Any, Any]
ANSWER = "approval"

log = structlog.get_logger(__name__)


class Choice(BaseModel):
    """The form that a user fills in."""

    answer: str = Field(
        title="Allow it?",
        description="this execution: until the cell ends; this session: until its kernel ends",
        json_schema_extra={"enum": list(CHOICES)},
    )


def take_approval(execution: Execution, ctx: Ctx) -> None:
    """Pass on the answer of a repeated call, unless its question was settled meanwhile."""
    approvals, response = execution.approvals, (ctx.input_responses or {}).get(ANSWER)
    approval = approvals.open if approvals is not None else None
    if approvals is None or approval is None or not isinstance(response, ElicitResult):
        return
    if ctx.request_state == _state(execution, approval):
        approvals.reply(approval, _answer(approval, response.action, (response.content or {}).get("answer")))


async def ask_approval(execution: Execution, approvals: Approvals, ctx: Ctx) -> InputRequiredResult | None:
    """Ask the user about the first waiting call. A returned result is for the client, which asks and calls again; None
    if that is settled, or this tool call can wait for it no longer, and it stays open."""
    if (approval := approvals.open) is None:
        return None
    message = question(execution.session_id, execution.code, approval)
    if ctx.protocol_version is not None and ctx.protocol_version >= INPUT_REQUIRED_SINCE:
        asks = (
            ElicitRequestFormParams(message=message, requested_schema=Choice.model_json_schema())
            if approval.address is None
            else ElicitRequestURLParams(message=message, url=approval.address)
        )
        return InputRequiredResult(
            input_requests={ANSWER: ElicitRequest(params=asks)}, request_state=_state(execution, approval)
        )
    try:
        # It may be answered elsewhere meanwhile, or the cell may end.
        found = await reply_to(lambda: _ask_now(approval, message, ctx), approval.answer, ctx)
    except (MCPError, ValueError) as exc:  # the client declared support; ValueError: invalid answer
        if not is_closed(exc):
            log.warning("a client could not ask its user", error=for_log(exc))
            approvals.give_up(approval, COULD_NOT_ASK)
    else:
        if found is not None:
            approvals.reply(approval, found)
    return None


async def _ask_now(approval: Approval, message: str, ctx: Ctx) -> Answer:
    if approval.address is not None:
        opened = await ctx.elicit_url(message, approval.address, secrets.token_urlsafe(16))
        return _answer(approval, opened.action, None)
    found = await ctx.elicit(message, Choice)
    return _answer(approval, found.action, found.data.answer if found.action == "accept" else None)


def _answer(approval: Approval, action: str, chosen: Any) -> Answer:
    if action != "accept":
        return "no"
    return answer_of(chosen) if approval.address is None else "once"


def _state(execution: Execution, approval: Approval) -> str:
    return f"{execution.id} approval-{approval.number}"
