"""The principal of a request, and the session that it means if it names none.

The only place that decides the principal. On stdio it is the user who started the process. Over HTTP it is the one that
`guard` found in the request: the holder of a token, or one principal for everybody without a token. Must not know how a
token is checked.
"""

import hmac
import re
from collections.abc import MutableMapping
from typing import Any

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.default_session import DefaultSession

Ctx = Context[Any, Any]
Scope = MutableMapping[str, Any]
ANONYMOUS = "anonymous"
"""The principal of HTTP without authentication. Not LOCAL: other users of the machine can reach a loopback port,
too."""
PRINCIPAL_KEY = "kernelmcp.principal"
"""The key of the principal in an ASGI scope."""
CLOSING_KEY = "kernelmcp.closing"
"""The key in an ASGI scope of the event that is set when the request's connection is deleted: calls then answer at
once."""
GONE_KEY = "kernelmcp.gone"
"""The key in an ASGI scope of the event that is set when the request has been answered, or its client has gone."""
ANSWER_BY_KEY = "kernelmcp.answer_by"
"""The key in an ASGI scope of the time of the event loop by which a call must answer: soon after it, the request is
cut off."""
REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{8,128}")
"""Of balancers: a UUID, or what their formats make. Nothing that JSON would escape."""
REFUSED_KEY = "kernelmcp.refused"
"""The key in an ASGI scope of a `RateLimited` that the tool call must answer with (`contract_tool`)."""


class Callers:
    """The callers of one server process. `secret`: a connection has the same own session at servers that have the same
    one."""

    def __init__(self, default_session: DefaultSession, secret: bytes, *, has_balancer: bool = False) -> None:
        """`has_balancer`: requests come from a load balancer, which gives each an id, and keeps it when it repeats
        one."""
        self._default = default_session
        self._has_balancer = has_balancer
        self._secret = secret

    def __call__(self, context: Ctx) -> Caller:
        request = context.request_context.request
        if request is None:
            client = context.session.client_params
            return self._default.caller(client.client_info.name if client is not None else "")
        principal = principal_of(request.scope)
        connection = _connection(context, request)
        return Caller(
            principal,
            lambda: self.own_handle(principal, connection) if connection else None,
            request_id=self._request_id(request),
        )

    def _request_id(self, request: Any) -> str | None:
        found = request.headers.get(REQUEST_ID_HEADER, "") if self._has_balancer else ""
        return found if REQUEST_ID.fullmatch(found) else None

    def in_result(self, result: CallToolResult) -> CallToolResult:
        """Add the note of a continued session to its first result, whichever call that answers."""
        fields: dict[str, Any] = result.structured_content or {}
        # A reset workspace has nothing of the earlier one.
        note = self._default.take_note(fields.get("session_id"), is_omitted=bool(fields.get("files_deleted")))
        if not note:
            return result
        first, *others = result.content
        if not isinstance(first, TextContent):
            return result.model_copy(update={"content": [TextContent(text=note), *result.content]})
        text = first.model_copy(update={"text": f"{first.text.rstrip()}\n{note}".lstrip()})
        return result.model_copy(update={"content": [text, *others]})

    def own_handle(self, principal: str, connection: str) -> str:
        """The default session of one legacy connection. Keyed with a secret: neither id reveals the other."""
        return hmac.digest(self._secret, f"{principal}\n{connection}".encode(), "sha256").hex()[:48]


def principal_of(scope: Scope) -> str:
    return str(scope.get(PRINCIPAL_KEY, ANONYMOUS))


def _connection(context: Ctx, request: Any) -> str | None:
    """The identity of a legacy connection. 2026-07-28 has none, whatever header a client sends."""
    if context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    return request.headers.get("mcp-session-id") or request.query_params.get("session_id")


def minted_note(caller: Caller, asked: str | None, session_id: str, *, created: bool) -> str:
    """A result's note on a session that was created for this call: neither the call nor its connection has one."""
    if not created or asked is not None or caller.default_handle is not None:
        return ""
    return f"\n[This is the new session {session_id}: pass it as session_id in the next call.]"


def is_gone(context: Ctx) -> bool:
    """True if the client has lost the connection on which it waits for the answer: nobody gets it."""
    request = context.request_context.request
    gone = request.scope.get(GONE_KEY) if request is not None else None
    return gone is not None and gone.is_set()


def gave_up(context: Ctx) -> bool:
    """True if the client cancelled the call, False if it only lost its connection.

    Until 2025-11-25 a client cancels with a message; if only the connection was lost, the work continues. In 2026-07-28
    a client over HTTP cancels by closing the response, and the server must treat it so.
    """
    if context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS or context.request_context.request is None:
        return True
    # mcp tells handlers only that they are cancelled; this attribute shows whether the client requested it.
    dispatch: Any = context.request_context.session._request_outbound  # pyright: ignore[reportPrivateUsage]
    return bool(dispatch.cancel_requested.is_set())
