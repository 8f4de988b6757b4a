"""A result's fields and notes on calls of other servers' tools: the calls, the saved tokens, and pending approvals."""

from kernelmcp.executions.approvals import named
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.schemas import CodeModeFields, PendingApproval

# Pending calls that a result names, and the length of their shown arguments.
MAX_PENDING = 10
MAX_ARGUMENTS_CHARS = 500


def fields(execution: Execution, budget_chars: int) -> CodeModeFields:
    """The fields. Empty if there are no other servers."""
    if (use := execution.tool_calls) is None:
        return {}
    return {
        "tools_called": use.tools_called,
        "tokens_saved": use.tokens_saved(execution.outputs, budget_chars),
        "pending_approvals": _pending(execution),
    }


def _pending(execution: Execution) -> list[PendingApproval]:
    if execution.approvals is None or execution.status != "running":
        return []
    return [
        {"server": one.server, "tool": one.tool, "arguments": one.arguments[:MAX_ARGUMENTS_CHARS]}
        for one in execution.approvals.waiting[:MAX_PENDING]
    ]


def notes(execution: Execution) -> list[str]:
    """Notes for the model, which waits, too."""
    if not (pending := _pending(execution)):
        return []
    names = ", ".join(dict.fromkeys(named(one["server"], one["tool"]) for one in pending))
    return [f"[It waits for the user's approval of {names}, and the user has been asked.]"]
