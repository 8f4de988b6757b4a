"""Adoption: a server continues an MCP connection of an older client (until 2025-11-25) that was opened at another one.

The other server, or this one before a restart, has kept what `initialize` agreed (agreed_connections.py). For an
unknown `Mcp-Session-Id` with such a record, mcp's session manager gets a transport under the same id, by the same
`initialize` again. Subscriptions and the log level of a connection are not kept: a client sets them again if it does so
at a reconnect.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread
import structlog
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from kernelmcp.http.agreed_connections import AgreedConnections
from kernelmcp.http.rate_limits import BUSY_RETRY_SECONDS, ServerBusy
from kernelmcp.mcp_server.callers import ANONYMOUS, principal_of

SWEEP_SECONDS = 24 * 3600.0
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}

log = structlog.get_logger(__name__)


class AdoptedConnections:
    """The connections of one server that others may continue, and those that it continues itself."""

    def __init__(self, manager: StreamableHTTPSessionManager, agreed: AgreedConnections) -> None:
        self._manager: Any = manager  # also its undocumented parts
        self._agreed = agreed
        self._under_way: dict[str, anyio.Event] = {}
        self._recorded = set[str]()
        """Connections whose record this server has written or read."""

    def keeping(self, scope: Scope, opening: Mapping[str, Any], send: Send) -> Send:
        """Pass the answer to an `initialize` on, and keep the connection that it opens.

        The record is written before the client learns the id: a client that has an id can use it at any server from
        then on, and a DELETE that follows at once finds the record.
        """

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                connection = Headers(raw=message["headers"]).get("mcp-session-id")
                keep, principal = self._agreed.keep, principal_of(scope)
                if connection is not None and await anyio.to_thread.run_sync(keep, principal, connection, opening):
                    self._recorded.add(connection)
            await send(message)

        return sending

    async def adopt(self, connection: str, scope: Scope, take_place: Callable[[], None]) -> None:
        """Make a connection known to mcp's manager if there is a record of it, and end it here if another server has
        ended it. Of several requests at once, one adopts it and the others wait. Raises what `take_place` raises, and
        `ServerBusy`; a DELETE needs no place."""
        version = Headers(scope=scope).get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return  # this era has no connections, whatever header a client sends
        while (under_way := self._under_way.get(connection)) is not None:
            await under_way.wait()
        if connection in self._manager._server_instances:
            await self._end_if_forgotten(connection)
            return
        done = self._under_way[connection] = anyio.Event()
        try:
            principal = principal_of(scope)
            opening = await anyio.to_thread.run_sync(self._agreed.find, principal, connection)
            if opening is None:
                return
            if scope["method"] != "DELETE":
                take_place()
                self._check_sessions()
            await self._open(connection, scope, opening)
            self._recorded.add(connection)
            await anyio.to_thread.run_sync(self._agreed.renew, principal, connection)
        finally:
            del self._under_way[connection]
            done.set()

    async def forget(self, connection: str, principal: str) -> None:
        """The client ends the connection: no server will continue it."""
        if self._owner(connection) == principal:
            self._recorded.discard(connection)  # it ends here, not at another server
        await anyio.to_thread.run_sync(self._agreed.forget, principal, connection)

    async def sweep(self) -> None:
        """Delete old records, at once and then daily. Runs for the server's life."""
        while True:
            opened = {connection: self._owner(connection) for connection in self._manager._server_instances}
            self._recorded.intersection_update(opened)
            await anyio.to_thread.run_sync(self._renew_and_sweep, opened)
            await anyio.sleep(SWEEP_SECONDS)

    def _renew_and_sweep(self, opened: Mapping[str, str]) -> None:
        for connection, principal in opened.items():
            self._agreed.renew(principal, connection)
        self._agreed.sweep()

    def _owner(self, connection: str) -> str:
        return owner_of(connection, self._manager)

    async def _end_if_forgotten(self, connection: str) -> None:
        """The record is its owner's: a request of another principal, who has none, must not end the connection."""
        if connection not in self._recorded:
            return
        is_kept = await anyio.to_thread.run_sync(self._agreed.is_kept, self._owner(connection), connection)
        if is_kept or connection not in self._recorded:
            return
        self._recorded.discard(connection)
        if (transport := self._manager._server_instances.get(connection)) is not None:
            log.info("another server has ended a connection", principal=self._owner(connection))
            await self._manager._discard_session(connection, transport)

    def _check_sessions(self) -> None:
        limit, opened = self._manager.max_sessions, len(self._manager._server_instances)
        if limit is not None and opened >= limit:
            text = f"the server has {opened:,} connections open, the maximum"
            raise ServerBusy(text, "Try again.", retry_after_seconds=BUSY_RETRY_SECONDS)

    async def _open(self, connection: str, scope: Scope, opening: Mapping[str, Any]) -> None:
        """Register a transport, as the manager does for an `initialize`, and let it answer the recorded one."""
        manager = self._manager
        transport = StreamableHTTPServerTransport(
            mcp_session_id=connection,
            is_json_response_enabled=manager.json_response,
            event_store=manager.event_store,
            security_settings=manager.security_settings,
            retry_interval=manager.retry_interval,
            idle_timeout=manager.session_idle_timeout,
        )
        user = scope.get("user")
        if isinstance(user, AuthenticatedUser):
            manager._session_owners[connection] = authorization_context(user)
        manager._server_instances[connection] = transport
        initialize = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening}
        try:
            await manager._serve_opening_request(transport, *_request(connection, scope, initialize))
            await transport.handle_request(*_request(connection, scope, INITIALIZED))
        except BaseException:
            await manager._discard_session(connection, transport)
            raise
        log.info("adopted a connection", principal=principal_of(scope))


def owner_of(connection: str, manager: Any) -> str:
    """The principal of an open connection."""
    owner = manager._session_owners.get(connection)
    return ANONYMOUS if owner is None else str(owner["client_id"])


def _request(connection: str, scope: Scope, message: Mapping[str, Any]) -> tuple[Scope, Receive, Send]:
    """A request with this message, as the client of another request would have sent it. Nobody gets the answer."""
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-session-id": connection,
    }
    body = json.dumps(message).encode()
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not waiting:
            await anyio.sleep_forever()  # until then its client has not disconnected
        return waiting.pop()

    async def send(message: Message) -> None:
        pass

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {**scope, "method": "POST", "headers": raw}, receive, send
