"""What clients are told without asking: the list of resources has changed, a resource has.

Clients of 2026-07-28 open a `subscriptions/listen` stream; older ones get `list_changed` on their connection and may
subscribe to single resources. Either way events stay with their principal: each has a bus of its own.
Above: app, resources. Below: sessions, mcp. Must not know what a resource holds.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import anyio.abc
import structlog
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.lowlevel.server import Server as LowlevelServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ResourceUpdated
from mcp_types import (
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from kernelmcp.sessions import Session

# Listen streams per principal, and URIs that one connection may subscribe to.
MAX_STREAMS = 32
MAX_SUBSCRIPTIONS = 256
# Until a connection must have taken a notification.
TELL_SECONDS = 5.0

log = structlog.get_logger(__name__)
RequestContext = ServerRequestContext[Any, Any]


class Notifications:
    """The subscriptions of one server. `principal` says who sends a request."""

    def __init__(self, tasks: anyio.abc.TaskGroup, principal: Callable[[RequestContext], str]) -> None:
        self._tasks = tasks
        self._principal = principal
        self._buses: defaultdict[str, InMemorySubscriptionBus] = defaultdict(InMemorySubscriptionBus)
        self._listeners: dict[str, ListenHandler] = {}
        self._connections: WeakKeyDictionary[Connection, tuple[str, set[str]]] = WeakKeyDictionary()
        self._known: set[tuple[str, str]] = set()

    def register(self, server: LowlevelServer[Any]) -> None:
        """Serve the requests of both eras, and say in the handshake that we do."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)
        # Every transport of mcp asks the server for these options and gives none of its own.
        options = partial(server.create_initialization_options, NotificationOptions(resources_changed=True))
        server.create_initialization_options = options  # pyright: ignore[reportAttributeAccessIssue]

    # -- requests -----------------------------------------------------------------------------------------------

    async def listen(self, ctx: RequestContext, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """2026-07-28: one call is one stream of events."""
        principal = self._principal(ctx)
        if principal not in self._listeners:
            self._listeners[principal] = ListenHandler(self._buses[principal], max_subscriptions=MAX_STREAMS)
        return await self._listeners[principal](ctx, params)

    async def subscribe(self, ctx: RequestContext, params: SubscribeRequestParams) -> EmptyResult:
        """Until 2025-11-25: a connection wants to know of changes of one resource."""
        uris = self._uris(ctx)
        if len(uris) < MAX_SUBSCRIPTIONS:
            uris.add(str(params.uri))
        return EmptyResult()

    async def unsubscribe(self, ctx: RequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
        self._uris(ctx).discard(str(params.uri))
        return EmptyResult()

    def remember(self, ctx: RequestContext) -> None:
        """A connection that has asked for the list of resources will hear of its changes."""
        self._uris(ctx)

    def _uris(self, ctx: RequestContext) -> set[str]:
        connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]  # the session is the request's only
        return self._connections.setdefault(connection, (self._principal(ctx), set()))[1]

    # -- events -------------------------------------------------------------------------------------------------

    def session_changed(self, session: Session) -> None:
        """A session was made, used, stopped or destroyed."""
        key, exists = (session.principal, session.id), not session.destroyed
        if exists != (key in self._known):
            (self._known.add if exists else self._known.discard)(key)
            self._tasks.start_soon(self._list_changed, session.principal)
        own = f"kernelmcp://sessions/{session.id}"
        for uri in ("kernelmcp://sessions", own, f"{own}/notebook"):
            self._tasks.start_soon(self._updated, session.principal, uri)

    async def _list_changed(self, principal: str) -> None:
        await self._buses[principal].publish(ResourcesListChanged())
        for connection, (owner, _) in list(self._connections.items()):
            if owner == principal:
                await _tell(connection.send_resource_list_changed)

    async def _updated(self, principal: str, uri: str) -> None:
        await self._buses[principal].publish(ResourceUpdated(uri=uri))
        for connection, (owner, uris) in list(self._connections.items()):
            if owner == principal and uri in uris:
                await _tell(partial(connection.send_resource_updated, uri))


async def _tell(send: Callable[[], Awaitable[None]]) -> None:
    """Bounded: a client that does not read must not hold up the others, nor let their news pile up."""
    try:
        with anyio.fail_after(TELL_SECONDS):
            await send()
    except Exception as exc:  # noqa: BLE001  # whatever a connection that is ending raises
        log.debug("a notification could not be sent", error=str(exc))
