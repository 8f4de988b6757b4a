"""Messages for calls that do not reach their server, or whose result does not reach the guest: the problem, and the
next step. Small models act on the error that they get, and on nothing else.

Text only. Must not know sessions or MCP.
"""

import difflib
import json
from collections.abc import Iterable, Sequence

from kernelmcp.executions.approvals import SHELL, named
from kernelmcp.output.sanitize import clean
from kernelmcp.upstreams.catalogue import ErrorKind, UpstreamError

# Limit for names that a guest invented, or of a server's list.
MAX_NAME_CHARS = 80
MAX_SUGGESTIONS = 5


class Refused(UpstreamError):
    """A refusal by us. `rule` is the setting or the limit, for the audit."""

    def __init__(self, kind: ErrorKind, rule: str, message: str) -> None:
        super().__init__(kind, message)
        self.rule = rule


def quoted(name: str) -> str:
    """Any name, on one line."""
    return json.dumps(clean(name)[:MAX_NAME_CHARS], ensure_ascii=True)


def with_advice(message: str, tool: str) -> str:
    """Add advice to an upstream's error without a result: the cause is often an argument, which the error does not
    name."""
    return f"{message}; servers.search({quoted(tool)}) shows what it takes"


def unknown_server(name: str, known: Iterable[str]) -> Refused:
    names = ", ".join(known)
    there = f"there are: {names}" if names else "none is configured for you"
    return Refused("ToolError", "unknown server", f"there is no MCP server {quoted(name)}; {there}")


def unknown_tool(server: str, name: str, known: Iterable[str], *, suggest: bool) -> Refused:
    close = difflib.get_close_matches(name[:MAX_NAME_CHARS], list(known), MAX_SUGGESTIONS) if suggest else []
    hint = f"did you mean {' or '.join(map(quoted, close))}? " if close else ""
    return Refused(
        "ToolError",
        "unknown tool",
        f"{server} has no tool {quoted(name)}; {hint}servers.search('words') finds tools, and "
        f"/servers/{server}/ lists them",
    )


def not_connected(server: str, state: str, error: str | None) -> Refused:
    advice = {
        "connecting": "it is still connecting; try again in a few seconds",
        "login_needed": f"the user has to run `kernelmcp upstreams login {server}`",
    }.get(state, f"the user can find out why with `kernelmcp upstreams try {server}`")
    said = f": {error}" if error else ""
    return Refused("ServerUnavailable", state, f"{server} is not available{said}; {advice}")


def connected_again(server: str, state: str) -> Refused:
    done = (
        f"the login to {server} had ended; the user has logged in again"
        if state == "login_needed"
        else f"{server} lacked a value; the user has entered it"
    )
    return Refused("ServerUnavailable", state, f"{done}. Make the call again, unless it may have been done")


def too_many_calls(limit: int) -> Refused:
    return Refused(
        "LimitExceeded",
        "calls_per_execution",
        f"one cell may make {limit:,} tool calls; continue in another cell, or ask for more records per call "
        "(the setting is [upstreams] calls_per_execution)",
    )


def too_many_scripts(limit: int) -> Refused:
    return Refused(
        "LimitExceeded",
        "calls_per_execution",
        f"one cell may run {limit:,} bash scripts, and its tool calls count too; continue in another cell, or put more "
        "commands into one script (the setting is [upstreams] calls_per_execution)",
    )


def too_long(limit: float) -> Refused:
    return Refused(
        "LimitExceeded",
        "call_seconds_per_execution",
        f"the tool calls of one cell may take {limit:,.15g} s together; go on in another cell "
        "(the setting is [upstreams] call_seconds_per_execution)",
    )


def too_much(limit_mb: int) -> Refused:
    return Refused(
        "LimitExceeded",
        "execution_mb",
        f"the results of one cell may have {limit_mb:,} MiB together; go on in another cell, or ask for less "
        "(the setting is [upstreams] execution_mb)",
    )


def large_arguments(server: str, tool: str, size: int, limit_mb: int) -> Refused:
    return Refused(
        "LimitExceeded",
        "arguments",
        f"{server}.{tool}: the arguments have {size:,} bytes of JSON, and {limit_mb} MiB are allowed; send them in "
        "parts",
    )


def large_result(server: str, tool: str, size: int, limit_mb: int) -> Refused:
    return Refused(
        "LimitExceeded",
        "result_mb",
        f"{server}.{tool}: the result has {size:,} bytes, and {limit_mb} MiB are allowed. The call was made. Ask for "
        "less: a filter, a page (see the tool's arguments), one record (the setting is [upstreams] result_mb)",
    )


def large_to_tokenize(server: str, tool: str, size: int, limit_mb: int) -> Refused:
    return Refused(
        "LimitExceeded",
        "tokenize",
        f"{server}.{tool}: the result has {size:,} bytes, and personal data can be replaced by tokens in up to "
        f"{limit_mb} MiB. The call was made. Ask for less: a filter, a page (see the tool's arguments), one record",
    )


def too_many_tokens(server: str) -> Refused:
    return Refused(
        "LimitExceeded",
        "tokenize",
        f"the results of {server} in this session have more personal data than can be tokenized; use another session",
    )


def denied(server: str, tool: str, rule: str) -> Refused:
    return Refused(
        "ToolDenied",
        rule,
        f"{server}.{tool} is denied by the user's settings ([upstreams.servers.{server}] {_setting(rule)}); do it "
        "another way, or tell the user",
    )


def commands_denied(commands: Sequence[str], rules: Sequence[str]) -> Refused:
    return Refused(
        "ToolDenied",
        ", ".join(rules),
        f"the user's settings deny {_some(commands)} ([shell] commands: {_some(rules)}); tell the user",
    )


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MAX_SUGGESTIONS:,} more" if len(texts) > MAX_SUGGESTIONS else ""
    return ", ".join(map(quoted, texts[:MAX_SUGGESTIONS])) + more


def not_asked(server: str, tool: str, why: str) -> Refused:
    where = (
        "[shell] commands"
        if server == SHELL
        else f'[upstreams.servers.{server}] tools = {{ {quoted(tool)} = "allow" }}'
    )
    return Refused(
        "ToolDenied",
        "not asked",
        f"{named(server, tool)} needs the user's approval, and {why}; the user can allow it in the settings: {where}",
    )


def declined(server: str, tool: str) -> Refused:
    return Refused(
        "ToolDenied",
        "declined",
        f"the user declined this call of {named(server, tool)}; do not repeat it unless the user says so",
    )


def not_connected_by_person(server: str) -> Refused:
    return Refused(
        "ToolDenied",
        "declined",
        f"the user did not do what {server} needs in the browser; do not ask again unless the user says so",
    )


def withdrawn(server: str, tool: str) -> Refused:
    return Refused(
        "ToolDenied",
        "changed",
        f"{server}.{tool} or the settings for it changed while the call waited; call it again",
    )


def _setting(rule: str) -> str:
    return f"tools = {{ {quoted(rule.removeprefix('tools.'))} = ... }}" if rule.startswith("tools.") else rule
