"""Forwards a cell's `input()` to a client's user, by MCP's elicitation.

Before 2026-07-28 the server asks while the call waits. Since then a call is answered with `input_required`, and the
client repeats it with the answer; the returned state, sealed by mcp, identifies the question and its execution. With
several servers their slot is in front of it, by which a load balancer finds the cell that waits.
"""

from typing import Any

import structlog
from mcp.server.mcpserver import Context
from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
)
from pydantic import BaseModel, Field, ValidationError

from kernelmcp.executions.approvals import MAX_SECONDS as APPROVAL_SECONDS
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.questions import MAX_SECONDS, Question, Questions, asking_code
from kernelmcp.mcp_server.progress import reply_to

Ctx = Context[Any, Any]
INPUT_REQUIRED_SINCE = "2026-07-28"
ANSWER = "answer"
NO_PASSWORDS = (
    "getpass() is not answered here: MCP forbids asking for secrets in this way, and code in the sandbox should not "
    "have them; the server's owner can add secrets to requests with [network.headers]"
)
# For the way back of an answer that was given in the last moment.
MARGIN_SECONDS = 60.0
NOT_ACCEPTED = {
    "decline": "the user declined to answer input(): do not ask again unless they say so",
    "cancel": "the user closed the question of input() without an answer",
}
COULD_NOT_ASK = "the client could not ask its user"

log = structlog.get_logger(__name__)


class Line(BaseModel):
    """The form that a user fills in."""

    answer: str = Field(title="Answer", description="What the code gets from input()")


class _Sealed(AESGCMRequestStateCodec):
    def __init__(self, secret: bytes, slot: str | None) -> None:
        super().__init__([secret])
        self._slot = slot

    def seal(self, payload: bytes) -> str:
        sealed = super().seal(payload)
        return sealed if self._slot is None else f"{self._slot}.{sealed}"

    def unseal(self, token: str) -> bytes:
        return super().unseal(token if self._slot is None else token.partition(".")[2])


def request_states(secret: bytes, slot: str | None) -> RequestStateSecurity:
    """The states of a server: they live as long as a question. `secret`: of all servers with this home."""
    return RequestStateSecurity(codec=_Sealed(secret, slot), ttl=max(MAX_SECONDS, APPROVAL_SECONDS) + MARGIN_SECONDS)


def can_ask(ctx: Ctx) -> bool:
    """True if this client can ask its user with a form, or with whatever it did not name."""
    asks = _elicitation(ctx)
    return asks is not None and (asks.form is not None or asks.url is None)


def can_open(ctx: Ctx) -> bool:
    """True if this client can have its user open an address."""
    asks = _elicitation(ctx)
    return asks is not None and asks.url is not None


def _elicitation(ctx: Ctx) -> ElicitationCapability | None:
    capabilities = ctx.client_capabilities
    return capabilities.elicitation if capabilities is not None else None


def asked_by(ctx: Ctx) -> str | None:
    """The id of the execution that asked, if this call is repeated with the answer."""
    return ctx.request_state.partition(" ")[0] if ctx.request_state is not None else None


def take_answer(execution: Execution, ctx: Ctx) -> None:
    """Pass on the answer of a repeated call, unless its question was settled elsewhere meanwhile: the cell may have
    asked another question by now."""
    questions, response = execution.questions, (ctx.input_responses or {}).get(ANSWER)
    question = questions.open if questions is not None else None
    if questions is None or question is None or not isinstance(response, ElicitResult):
        return
    if ctx.request_state == _state(execution, question):
        text = (response.content or {}).get("answer") if response.action == "accept" else None
        questions.reply(question, text if isinstance(text, str) else None, _why_not(response.action))


async def ask(execution: Execution, questions: Questions, ctx: Ctx) -> InputRequiredResult | None:
    """Ask the user the execution's question. A returned result is for the client, which asks and calls again; None if
    the question is settled, or this call can wait for it no longer, and it stays open."""
    if (question := questions.open) is None:
        return None
    if question.is_password:
        questions.reply(question, None, NO_PASSWORDS)
        return None
    if ctx.protocol_version is not None and ctx.protocol_version >= INPUT_REQUIRED_SINCE:
        form = ElicitRequestFormParams(message=_message(execution, question), requested_schema=Line.model_json_schema())
        return InputRequiredResult(
            input_requests={ANSWER: ElicitRequest(params=form)}, request_state=_state(execution, question)
        )
    try:
        # It may be answered elsewhere meanwhile, or the cell may end.
        found = await reply_to(lambda: ctx.elicit(_message(execution, question), Line), question.answer, ctx)
    except (MCPError, ValueError) as exc:  # the client declared support; ValueError: invalid answer
        if not is_closed(exc):
            log.warning("a client could not ask its user", error=for_log(exc))
            questions.reply(question, None, COULD_NOT_ASK)
    else:
        if found is not None:
            questions.reply(question, found.data.answer if found.action == "accept" else None, _why_not(found.action))
    return None


def for_log(error: Exception) -> str:
    """The error without what the user has answered."""
    if isinstance(error, ValidationError):
        return f"an invalid answer: {', '.join(sorted({each['type'] for each in error.errors()}))}"[:200]
    return str(error)[:200]


def is_closed(error: Exception) -> bool:
    """True if the connection has ended on which the client was asked: another one may ask."""
    # A client may answer with the same code.
    closed = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
    return isinstance(error, MCPError) and error.error == closed


def _state(execution: Execution, question: Question) -> str:
    return f"{execution.id} {question.number}"


def _why_not(action: str) -> str:
    return NOT_ACCEPTED.get(action, COULD_NOT_ASK)


def _message(execution: Execution, question: Question) -> str:
    """The prompt comes from the guest, and must not look like the client's own words."""
    asks = question.prompt.strip() or "(it shows no prompt)"
    return f"{asking_code(execution.session_id)} asks for a line of input:\n\n{asks}"
