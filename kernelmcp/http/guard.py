"""Guards each endpoint: authentication, authorization, limits, and timeouts.

A request is rejected before its body is read, so nobody without a token makes the server hold one. Must not know MCP's
messages, except the form of a rejection.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import structlog
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.routes import build_resource_metadata_url
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import AnyHttpUrl
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelmcp.config.settings import Settings
from kernelmcp.errors import RateLimited
from kernelmcp.http.rate_limits import ServerBusy, Throttle, address_key
from kernelmcp.http.token_identity import Identity, Rejected
from kernelmcp.http.tokens import Authenticator
from kernelmcp.mcp_server.callers import ANONYMOUS, ANSWER_BY_KEY, PRINCIPAL_KEY, REFUSED_KEY
from kernelmcp.output.sanitize import as_dict

# A client that accepts no data for this long, in seconds, has stopped reading.
SEND_SECONDS = 30.0
SEND_BYTES = 256 * 1024
# The end of a stream waits for such a client only this long, in seconds.
END_SECONDS = 0.5
# A request gets at least this much more time than `inline_wait_seconds`, seconds.
ANSWER_MARGIN_SECONDS = 15.0
# A cancellation is short, and arrives at once.
MAX_CANCELLATION_BYTES = 4096
CANCELLATION_SECONDS = 5.0
CANCEL = "notifications/cancelled"
# JSON-RPC: a code that a server may define for itself.
REFUSED_CODE = -32000
# Key in an ASGI scope for whose share of the server a request uses.
SHARE_KEY = "kernelmcp.share"

log = structlog.get_logger(__name__)


class Gate:
    """State that all guards of a server share."""

    def __init__(self, settings: Settings, authenticator: Authenticator, throttle: Throttle) -> None:
        self.settings = settings
        self.authenticator = authenticator
        self.throttle = throttle
        self.on_denied: Callable[[str], None] = lambda reason: None
        """Called with the reason of each rejection; the metrics count them."""

    @property
    def deadline_seconds(self) -> float:
        config = self.settings.config
        return max(
            config.transport_http.request_timeout_seconds, config.sessions.inline_wait_seconds + ANSWER_MARGIN_SECONDS
        )


class Guard:
    """An ASGI app around one endpoint. `tools_answer`: the endpoint's answers use another channel (SSE), so the tool
    call itself must report a rejection. `has_place`: it is answered at once, even if the server is full."""

    def __init__(self, app: ASGIApp, gate: Gate, *, tools_answer: bool = False, has_place: bool = False) -> None:
        self._app = app
        self._gate = gate
        self._tools_answer = tools_answer
        self._has_place = has_place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._gate
        try:
            identity = await self._identify(scope)
        except Rejected as exc:
            await self._unauthorized(exc, scope, receive, send)
            return
        if not self._has_scopes(identity):
            gate.on_denied("scope")
            await self._challenge(403, "insufficient_scope", "the token lacks a scope")(scope, receive, send)
            return
        self._enter(scope, identity)
        is_read = False

        async def reading() -> Message:
            nonlocal is_read
            is_read = True
            return await receive()

        try:
            try:
                self._check_rate(scope)
                await self._serve(scope, reading, send)
            except RateLimited:
                # Requests that free capacity need no place: a cancellation is refused only before it is read.
                if is_read or (replay := await _cancellation(scope, receive)) is None:
                    raise
                await self._answer_in_time(scope, replay, send)
        except RateLimited as exc:
            gate.on_denied("busy" if isinstance(exc, ServerBusy) else "rate")
            await _refusal(exc)(scope, receive, send)

    # -- authentication -----------------------------------------------------------------------------------------

    async def _identify(self, scope: Scope) -> Identity:
        if not self._gate.authenticator.required:
            return Identity(_outer_principal(scope) or ANONYMOUS)
        found = Headers(scope=scope).getlist("authorization")
        scheme, _, token = found[0].partition(" ") if len(found) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            raise Rejected("")
        return await self._gate.authenticator.authenticate(token.strip())

    async def _is_valid(self, scope: Scope) -> bool:
        """False if the token of an open stream has been removed, or has expired."""
        if not self._gate.authenticator.required:
            return True
        try:
            identity = await self._identify(scope)
        except Rejected:
            return False
        return identity.principal == scope[PRINCIPAL_KEY] and self._has_scopes(identity)

    def _has_scopes(self, identity: Identity) -> bool:
        needed = self._gate.settings.config.auth.required_scopes
        return not identity.principal.startswith("oauth:") or identity.scopes.issuperset(needed)

    def _enter(self, scope: Scope, identity: Identity) -> None:
        scope[PRINCIPAL_KEY] = identity.principal
        anonymous = identity.principal == ANONYMOUS
        scope[SHARE_KEY] = f"{ANONYMOUS}:{address_key(_address(scope))}" if anonymous else identity.principal
        if identity.principal != ANONYMOUS:
            # mcp separates its connections by this.
            scope["user"] = AuthenticatedUser(
                AccessToken(token="", client_id=identity.principal, scopes=sorted(identity.scopes))
            )

    async def _unauthorized(self, error: Rejected, scope: Scope, receive: Receive, send: Send) -> None:
        self._gate.on_denied("token")
        if not str(error):
            is_outer = scope.get("user") is not None
            needed = "the application has not authenticated this request" if is_outer else "a bearer token is needed"
            await self._challenge(401, None, needed)(scope, receive, send)
            return
        address = _address(scope)
        log.warning("refused a token", client=address, reason=str(error)[:200])
        try:
            self._gate.throttle.check_failures(address_key(address))
        except RateLimited as exc:
            await _refusal(exc)(scope, receive, send)
        else:
            await self._challenge(401, "invalid_token", "the token is not valid")(scope, receive, send)

    def _challenge(self, status: int, error: str | None, description: str) -> Response:
        """The challenge of RFC 6750, with RFC 9728's link to the authorization server."""
        parts = [f'error="{error}"', f'error_description="{description}"'] if error else []
        if (url := metadata_url(self._gate.settings)) is not None:
            parts.append(f'resource_metadata="{url}"')
        if error == "insufficient_scope":
            parts.append(f'scope="{" ".join(self._gate.settings.config.auth.required_scopes)}"')
        body = json.dumps({"error": error or "unauthorized", "error_description": description})
        header = f"Bearer {', '.join(parts)}".strip()
        return Response(body, status, {"WWW-Authenticate": header}, "application/json")

    # -- limits -------------------------------------------------------------------------------------------------

    def _check_rate(self, scope: Scope) -> None:
        key = share_of(scope)
        try:
            self._gate.throttle.check_rate(key)
        except RateLimited as exc:
            if not self._tools_answer:
                raise
            # The tool answers the same number of requests again; a client that continues is flooding.
            self._gate.throttle.check_rate(f"{key} refused")
            scope[REFUSED_KEY] = exc
            self._gate.on_denied("rate")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._has_place:
            await self._answer_in_time(scope, receive, send)
        elif not self._tools_answer and is_stream(scope):
            answer = _Answer(send)
            with self._gate.throttle.stream(share_of(scope)) as opened:

                async def while_valid(message: Message) -> None:
                    if not await self._is_valid(scope):
                        opened.cancel()
                        await anyio.lowlevel.checkpoint()
                    await answer.send(message)

                await self._answer_in_time(scope, receive, while_valid, may_last=True)
            if opened.cancelled_caught:
                await answer.end()
        else:
            with self._gate.throttle.request(share_of(scope)):
                await self._answer_in_time(scope, receive, send)

    async def _answer_in_time(self, scope: Scope, receive: Receive, send: Send, *, may_last: bool = False) -> None:
        """`may_last`: only the request must come in time."""
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await bounded(message)

        bounded = _bounded(send)

        async def lifting() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                limit.deadline = math.inf
            return message

        with anyio.move_on_after(self._gate.deadline_seconds) as limit:
            if may_last and scope["method"] == "GET":  # it has no body
                limit.deadline = math.inf
            if not self._tools_answer:  # that answer is on a stream, which lasts
                scope[ANSWER_BY_KEY] = limit.deadline - ANSWER_MARGIN_SECONDS
            await self._app(scope, lifting if may_last else receive, noting)
        if limit.cancelled_caught:
            log.warning("a request was not answered in time", path=repr(scope["path"])[:200], client=_address(scope))
            if not started:
                self._gate.on_denied("timeout")
                await Response("the request took too long", 408, {"Connection": "close"})(scope, receive, send)


class _Answer:
    """The answer of a stream, which is ended properly if the stream is cancelled: a client can tell this from a lost
    connection."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lasts = False

    async def send(self, message: Message) -> None:
        self._lasts = message["type"] == "http.response.start" or message.get("more_body", False)
        await self._send(message)

    async def end(self) -> None:
        if self._lasts:
            with anyio.move_on_after(END_SECONDS):
                await self._send({"type": "http.response.body", "body": b""})


def is_stream(scope: Scope) -> bool:
    """True if the answer lasts as long as the client wants. mcp checks the header against the body, except for the
    versions that do not have it."""
    headers = Headers(scope=scope)
    version = headers.get("mcp-protocol-version")
    is_modern = version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS
    return scope["method"] == "GET" or (is_modern and headers.get("mcp-method") == "subscriptions/listen")


def share_of(scope: Scope) -> str:
    """Key of the share that a request uses: its principal's, or without authentication its address's."""
    return str(scope[SHARE_KEY])


def metadata_url(settings: Settings) -> str | None:
    """The path of the protected resource metadata (RFC 9728), if there is an authorization server."""
    section = settings.config.auth
    if section.issuer is None or section.resource_url is None:
        return None
    return str(build_resource_metadata_url(AnyHttpUrl(section.resource_url)))


def _outer_principal(scope: Scope) -> str | None:
    """The user that an enclosing application has authenticated (Starlette's `AuthenticationMiddleware`).

    Raises `Rejected` for one that it let through without authentication; for a user without a name, because all of them
    would share one principal's sessions; and for a name that a log could not show unchanged.
    """
    user: Any = scope.get("user")
    if user is None:
        return None
    if not getattr(user, "is_authenticated", False):
        raise Rejected("")
    name = str(user.display_name)
    if not name.strip() or not name.isprintable():
        raise Rejected("the application's user has no usable name")
    return f"app:{name}"


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _bounded(send: Send) -> Send:
    """Send in pieces: uvicorn waits for each piece to leave before it takes the next, but not for the last. Between the
    pieces of one message comes no other: sse-starlette pings from a task of its own."""
    whole = anyio.Lock()

    async def bounded(message: Message) -> None:
        body: bytes = message.get("body", b"")
        async with whole:
            for start in range(0, max(len(body), 1), SEND_BYTES):
                end = start + SEND_BYTES
                more = end < len(body) or message.get("more_body", False)
                with anyio.fail_after(SEND_SECONDS):
                    await send({**message, "body": body[start:end], "more_body": more} if body else message)

    return bounded


async def _cancellation(scope: Scope, receive: Receive) -> Receive | None:
    """Replay of a request that ends a connection or cancels a call; None if it is another request."""
    if scope["method"] == "DELETE":
        return receive
    length = Headers(scope=scope).get("content-length", "")
    if scope["method"] != "POST" or not length.isdecimal() or int(length) > MAX_CANCELLATION_BYTES:
        return None
    messages: list[Message] = []
    with anyio.move_on_after(CANCELLATION_SECONDS):
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
    if messages and messages[-1].get("more_body"):
        return None
    try:
        found = as_dict(json.loads(b"".join(message.get("body", b"") for message in messages)))
    except (ValueError, RecursionError):
        return None
    return replaying(messages, receive) if found.get("method") == CANCEL else None


def replaying(messages: list[Message], receive: Receive) -> Receive:
    """Messages that were received already, and then further ones."""

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay


def _refusal(error: RateLimited) -> Response:
    """An HTTP rejection with a JSON-RPC error in the body: MCP clients show that to the model."""
    status = 503 if isinstance(error, ServerBusy) else 429
    message = {"code": REFUSED_CODE, "message": error.to_text(), "data": {"error": error.to_dict()}}
    retry = str(error.context["retry_after_seconds"])
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": message})
    return Response(body, status, {"Retry-After": retry}, "application/json")
