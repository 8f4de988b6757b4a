"""Notifications to clients: the list of resources has changed, or a resource has.

Clients of 2026-07-28 open a `subscriptions/listen` stream; older ones get `list_changed` on their connection and may
subscribe to single resources. Either way events stay with their principal: each has its own bus. Must not know the
contents of a resource.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import anyio
import anyio.abc
import structlog
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.lowlevel.server import Server as LowlevelServer
from mcp.server.mcpserver import require_client_extension
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from kernelmcp.mcp_server.extensions import TASKS
from kernelmcp.output.sanitize import as_dict
from kernelmcp.sessions.life import State
from kernelmcp.sessions.session import Observer, Session

# Listen streams per principal, and URIs that one connection or stream may subscribe to.
MAX_STREAMS = 32
MAX_SUBSCRIPTIONS = 256
MAX_URI_CHARS = 2048
# Stands for the list itself among changed URIs.
LIST = ""

log = structlog.get_logger(__name__)
RequestContext = ServerRequestContext[Any, Any]


class _Outlet:
    """The pending notifications of one receiver. One task sends them, and ends; each URI is queued only once."""

    def __init__(self, tasks: anyio.abc.TaskGroup, tell: Callable[[str], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._tell = tell
        self._news: dict[str, None] = {}
        self._scope: anyio.CancelScope | None = None

    def add(self, uri: str) -> None:
        self._news[uri] = None
        if self._scope is None:
            self._scope = anyio.CancelScope()
            self._tasks.start_soon(self._run, self._scope)

    def close(self) -> None:
        self._news.clear()
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                while self._news:
                    uri = next(iter(self._news))
                    del self._news[uri]
                    try:
                        await self._tell(uri)
                    except Exception as exc:  # noqa: BLE001  # whatever a connection that is ending raises
                        log.debug("a notification could not be sent", error=str(exc))
        finally:
            self._scope = None


class _Subscriber:
    """A connection of the older era: the URIs it asked for, and its outlet."""

    def __init__(self, principal: str, connection: Connection, tasks: anyio.abc.TaskGroup) -> None:
        self.principal = principal
        self.uris: set[str] = set()
        self._connection = ref(connection)  # it is a key of a weak dictionary
        self.outlet = _Outlet(tasks, self._tell)

    async def _tell(self, uri: str) -> None:
        if (connection := self._connection()) is None:
            return
        if uri == LIST:
            await connection.send_resource_list_changed()
        else:
            await connection.send_resource_updated(uri)


class _Listeners:
    """The streams of one principal in the era of 2026-07-28."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._bus = InMemorySubscriptionBus()
        self.handler = ListenHandler(self._bus, max_subscriptions=MAX_STREAMS)
        self.outlet = _Outlet(tasks, self._tell)
        self.open = 0

    async def _tell(self, uri: str) -> None:
        await self._bus.publish(ResourcesListChanged() if uri == LIST else ResourceUpdated(uri=uri))


class Notifications(Observer):
    """The subscriptions of one server. `principal` returns the sender of a request."""

    def __init__(self, tasks: anyio.abc.TaskGroup, principal: Callable[[RequestContext], str]) -> None:
        self._tasks = tasks
        self._principal = principal
        self._listeners: dict[str, _Listeners] = {}
        self._subscribers: WeakKeyDictionary[Connection, _Subscriber] = WeakKeyDictionary()
        self._known: set[tuple[str, str]] = set()

    def register(self, server: LowlevelServer[Any]) -> None:
        """Serve the requests of both eras, and announce this in the handshake."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)
        # Every transport of mcp takes these options from the server.
        options = partial(server.create_initialization_options, NotificationOptions(resources_changed=True))
        server.create_initialization_options = options  # pyright: ignore[reportAttributeAccessIssue]

    # -- requests -----------------------------------------------------------------------------------------------

    async def listen(self, ctx: RequestContext, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """2026-07-28: one call is one stream of events."""
        _check(params.notifications.resource_subscriptions or ())
        if as_dict(as_dict(cast("Any", ctx.params)).get("notifications")).get("taskIds") is not None:
            require_client_extension(ctx, TASKS)  # nothing is sent for tasks, as the acknowledgement says
        principal = self._principal(ctx)
        listeners = self._listeners.setdefault(principal, _Listeners(self._tasks))
        listeners.open += 1
        try:
            return await listeners.handler(ctx, params)
        finally:
            listeners.open -= 1
            if not listeners.open:
                self._listeners.pop(principal, None)

    async def subscribe(self, ctx: RequestContext, params: SubscribeRequestParams) -> EmptyResult:
        """Until 2025-11-25: subscribe a connection to changes of one resource."""
        uris = self._subscriber(ctx).uris
        _check(uris | {str(params.uri)})
        uris.add(str(params.uri))
        return EmptyResult()

    async def unsubscribe(self, ctx: RequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
        self._subscriber(ctx).uris.discard(str(params.uri))
        return EmptyResult()

    def remember(self, ctx: RequestContext) -> None:
        """Register a connection that has requested the list of resources for notifications of its changes."""
        self._subscriber(ctx)

    def _subscriber(self, ctx: RequestContext) -> _Subscriber:
        connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]  # the session is the request's only
        if (found := self._subscribers.get(connection)) is None:
            found = self._subscribers[connection] = _Subscriber(self._principal(ctx), connection, self._tasks)
            connection.exit_stack.callback(found.outlet.close)
        return found

    # -- events -------------------------------------------------------------------------------------------------

    def session_changed(self, session: Session) -> None:
        key, exists = (session.principal, session.id), not session.life.is_ending
        own = f"kernelmcp://sessions/{session.id}"
        news = ["kernelmcp://sessions", own, f"{own}/notebook"]
        if exists != (key in self._known):
            (self._known.add if exists else self._known.discard)(key)
            news.insert(0, LIST)
        if (listeners := self._listeners.get(session.principal)) is not None:
            for uri in news:
                listeners.outlet.add(uri)
        for subscriber in list(self._subscribers.values()):
            if subscriber.principal == session.principal:
                for uri in news:
                    if uri == LIST or uri in subscriber.uris:
                        subscriber.outlet.add(uri)

    def kernel_changed(self, session: Session) -> None:
        if session.life.state is State.GONE and (session.principal, session.id) in self._known:  # it was unloaded
            self.session_changed(session)


def _check(uris: Collection[str]) -> None:
    if len(uris) > MAX_SUBSCRIPTIONS:
        raise MCPError(INVALID_PARAMS, f"at most {MAX_SUBSCRIPTIONS} resources can be subscribed to; unsubscribe first")
    if any(len(uri) > MAX_URI_CHARS for uri in uris):
        raise MCPError(INVALID_PARAMS, f"the URI of a resource may have at most {MAX_URI_CHARS:,} characters")
