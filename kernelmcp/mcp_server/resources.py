"""The MCP resources: the targets of a result's `uri` fields, and the sessions with their transcripts."""

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import anyio.to_thread
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, UnexpectedResourceError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Resource,
)
from pydantic import AnyUrl

from kernelmcp.errors import CallerError, ServerError
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.tool_calls import ToolCalls
from kernelmcp.mcp_server.callers import Callers
from kernelmcp.mcp_server.descriptions import describe, describe_all
from kernelmcp.mcp_server.extensions.skills_extension import SCHEME, Skills
from kernelmcp.mcp_server.extensions.tasks import Tasks
from kernelmcp.mcp_server.file_resources import FileResources, controls_in
from kernelmcp.mcp_server.notifications import Notifications, RequestContext
from kernelmcp.mcp_server.progress import wait_for_news
from kernelmcp.mcp_server.prompts import usage
from kernelmcp.mcp_server.results.printed import unchanged_with_reports
from kernelmcp.mcp_server.results.structured import Structured
from kernelmcp.mcp_server.results.view import Cursor, View
from kernelmcp.mcp_server.told import Told
from kernelmcp.mcp_server.tools.fleet_calls import FleetCalls
from kernelmcp.mcp_server.views import pages
from kernelmcp.mcp_server.views.apps import Views
from kernelmcp.notebook.transcript import MAX_NOTEBOOK_BYTES
from kernelmcp.output.spool import Spool
from kernelmcp.pictures import headers
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.shares import Shares

Ctx = Context[Any, Any]
EXECUTION = "kernelmcp://executions/{execution_id}"
SESSIONS = "kernelmcp://sessions"
SESSION = "kernelmcp://sessions/{session_id}"
NOTEBOOK_TYPE = "application/x-ipynb+json"
# The others are available through kernelmcp://sessions.
MAX_LISTED_SESSIONS = 50
# Reads of views that may wait at the same time, those of all principals; more are answered at once.
MAX_WAITING = 100
# Outputs that come within this time after the first are on its page.
GATHER_SECONDS = 0.05
# Of the number of an output.
MAX_DIGITS = 9
# The type of a displayed object is known only when it is read.
OUTPUT_TYPE = "application/octet-stream"


class ResourceServer(MCPServer[Any]):
    """Corrects three behaviours of mcp: a resource without parameters gets no context, a template has a single type,
    and a client's mistake with a prompt is an internal error. It also omits structured content for some clients."""

    resources: "Resources"
    files: FileResources
    structured: Structured
    callers: Callers
    told: Told
    views: Views
    tasks: Tasks
    skills: Skills
    fleet_calls: FleetCalls | None = None
    """Set if other servers share the home."""

    async def _handle_list_tools(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        tools = await self.told.in_list(await self.list_tools(), ctx)
        return ListToolsResult(tools=self.views.in_list(self.structured.in_list(tools, ctx), ctx))

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Ctx | None = None
    ) -> CallToolResult | InputRequiredResult:
        if self.fleet_calls is None or context is None:
            result = await super().call_tool(name, arguments, context)
        else:
            call = partial(super().call_tool, name, arguments, context)
            result = await self.fleet_calls.answer(name, arguments, context, call)
        if context is None or isinstance(result, InputRequiredResult):
            return result
        if (task := self.tasks.created(name, result, context)) is not None:
            return cast("CallToolResult", task)  # mcp passes it on as it is
        return self.structured.in_result(self.callers.in_result(result), context.request_context)

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Ctx | None = None
    ) -> GetPromptResult | InputRequiredResult:
        try:
            return await super().get_prompt(name, arguments, context)
        except ValueError as exc:
            raise MCPError(INVALID_PARAMS, usage(await self.list_prompts(), name)) from exc

    async def _handle_list_resources(
        self, ctx: RequestContext, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        context: Ctx = Context(request_context=ctx, mcp_server=self)
        listed = await self.list_resources()
        listed += await self.skills.listed(context)
        return ListResourcesResult(resources=[*listed, *self.resources.list_open(context, ctx)])

    async def read_resource(
        self, uri: AnyUrl | str, context: Ctx | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        fleet = self.fleet_calls
        try:
            async with nullcontext() if fleet is None or context is None else fleet.read(str(uri), context):
                return await self._read(uri, context)
        except ServerError as exc:
            kind = ResourceNotFoundError if isinstance(exc, CallerError) else ResourceError
            raise kind(exc.to_text()) from exc
        except (MCPError, ResourceError):
            raise
        except Exception as exc:  # its text may have paths of the host; mcp logs it
            raise UnexpectedResourceError(f"Error reading resource {uri}") from exc

    async def _read(
        self, uri: AnyUrl | str, context: Ctx | None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        if str(uri) == SESSIONS and context is not None:
            return [ReadResourceContents(await self.resources.list_sessions(context), "application/json")]
        if (shown := self.views.read(str(uri))) is not None:
            return [shown]
        if context is not None and (asked := pages.Asked.parse(str(uri))) is not None:
            return [ReadResourceContents(await self.resources.view(asked, context, self.views), "application/json")]
        if context is not None and str(uri).startswith(SCHEME):
            return [await self.skills.read(str(uri), context)]
        if context is not None and (file := self.files.find(str(uri))) is not None:
            return [await self.files.read(file, context)]
        found = await super().read_resource(uri, context)
        if not isinstance(found, InputRequiredResult):
            for item in found:
                if item.mime_type == OUTPUT_TYPE:
                    item.mime_type = _type_of(item.content)
        return found


def _type_of(content: str | bytes) -> str:
    if isinstance(content, str):
        return "application/json"
    picture = headers.recognize(content)
    return picture.mime_type if picture is not None else OUTPUT_TYPE


def _printed(spool: Spool) -> str:
    """All of it. Raises `ResourceError` if it is too large for one message."""
    text = spool.read(0, MAX_NOTEBOOK_BYTES)
    if spool.size + 5 * controls_in(text.encode()) > MAX_NOTEBOOK_BYTES:
        raise ResourceError(
            f"this output has {spool.size:,} bytes, and a resource at most {MAX_NOTEBOOK_BYTES:,} as JSON: "
            "read it in pieces, with read_file and this address as its path"
        )
    return text


class Resources:
    """The resource functions of one server."""

    def __init__(self, registry: Registry, caller: Callable[[Ctx], Caller], notifications: Notifications) -> None:
        self._registry = registry
        self._caller = caller
        self._notifications = notifications
        self._waiting = Shares(lambda: MAX_WAITING, 1)

    def register(self, server: ResourceServer) -> None:
        server.resources = self
        server.resource(
            SESSIONS, name="sessions", title="Sessions", mime_type="application/json", description="Your sessions."
        )(self.sessions)
        server.resource(
            SESSION, name="session", title="Session", mime_type="application/json", description="One session."
        )(self.session)
        server.resource(
            SESSION + "/notebook",
            name="notebook",
            title="Notebook of a session",
            mime_type=NOTEBOOK_TYPE,
            description="Every execution of a session.",
        )(self.notebook)
        for part, what in (
            ("stdout", "Everything an execution printed."),
            ("stderr", "Everything an execution printed to stderr."),
            ("result", "The text form of the last expression's value."),
            ("error", "The traceback."),
        ):
            server.resource(f"{EXECUTION}/{part}", name=part, description=what)(getattr(self, part))
        server.resource(
            EXECUTION + "/calls",
            name="calls",
            mime_type="application/json",
            description="The calls of other servers' tools that an execution has made.",
        )(self.calls)
        server.resource(
            EXECUTION + "/outputs/{n}",
            name="output",
            mime_type=OUTPUT_TYPE,
            description="A displayed object: a picture as it is, anything else as a JSON mime bundle.",
        )(self.output)

    def list_open(self, context: Ctx, request: RequestContext) -> list[Resource]:
        """The dynamic part of resources/list: the caller's open sessions and their notebooks, newest first."""
        self._notifications.remember(request)
        found = sorted(self._registry.all(self._caller(context)), key=lambda session: -session.last_used)
        listed: list[Resource] = []
        for session in found[:MAX_LISTED_SESSIONS]:
            uri = SESSION.format(session_id=session.id)
            listed += [
                Resource(uri=uri, name=f"session {session.id}", mime_type="application/json"),
                Resource(uri=f"{uri}/notebook", name=f"notebook of {session.id}", mime_type=NOTEBOOK_TYPE),
            ]
        return listed

    async def sessions(self) -> str:
        raise ResourceNotFoundError("sessions are read through ResourceServer.read_resource")

    async def list_sessions(self, ctx: Ctx) -> str:
        return json.dumps(await describe_all(self._registry, self._caller(ctx)))

    async def session(self, session_id: str, ctx: Ctx) -> str:
        try:
            found = await describe(self._registry, self._caller(ctx), session_id)
        except ServerError as exc:
            raise ResourceNotFoundError(exc.to_text()) from exc
        return json.dumps(found)

    async def notebook(self, session_id: str, ctx: Ctx) -> str:
        session = self._session(session_id, ctx)
        return await self._registry.stored.searches.in_thread(session.principal, session.transcript.to_json)

    async def stdout(self, execution_id: str, ctx: Ctx) -> str:
        return _printed((await self._execution(execution_id, ctx)).outputs.stdout)

    async def stderr(self, execution_id: str, ctx: Ctx) -> str:
        return unchanged_with_reports(_printed((await self._execution(execution_id, ctx)).outputs.stderr))

    async def result(self, execution_id: str, ctx: Ctx) -> str:
        return (await self._execution(execution_id, ctx)).outputs.result or ""

    async def error(self, execution_id: str, ctx: Ctx) -> str:
        error = (await self._execution(execution_id, ctx)).error
        return (error.traceback or f"{error.name}: {error.value}") if error else ""

    async def output(self, execution_id: str, n: str, ctx: Ctx) -> str | bytes:
        displays = (await self._execution(execution_id, ctx)).outputs.displays
        if not n.isdecimal() or len(n) > MAX_DIGITS or int(n) >= len(displays):
            raise ResourceNotFoundError(f"execution {execution_id!r} has no output {n!r}, it has {len(displays)}")
        data = displays[int(n)].data
        picture = await anyio.to_thread.run_sync(headers.find, data)
        return picture.data if picture is not None else json.dumps(data)

    async def view(self, asked: pages.Asked, ctx: Ctx, views: Views) -> str:
        """What a view shows next, as JSON."""
        execution = await self._asked(asked, ctx, views)
        if asked.is_raw:
            value = await anyio.to_thread.run_sync(pages.raw, execution.outputs, asked.number, asked.mime)
            if value is None:
                raise ResourceNotFoundError(f"execution {execution.id!r} has no output of that number and type")
            return value
        try:
            since = Cursor.parse(asked.since, execution.id)
        except ServerError:
            since = Cursor()  # everything
        has_news = View(execution, since).end != since or execution.done.is_set() or execution.is_elsewhere
        principal = self._caller(ctx).principal
        if not has_news and asked.wait_seconds > 0 and self._waiting.take(principal):
            try:
                await wait_for_news(execution, asked.wait_seconds, ctx)
                await anyio.sleep(GATHER_SECONDS)
            finally:
                self._waiting.give_back(principal)
        execution.announce()
        return pages.page(execution, since)

    async def _asked(self, asked: pages.Asked, ctx: Ctx, views: Views) -> Execution:
        if asked.execution_id is not None:
            return await self._execution(asked.execution_id, ctx)
        caller, end = self._caller(ctx), anyio.current_time() + asked.wait_seconds
        while True:
            found = [
                execution
                for session in self._registry.all(caller)
                for execution in session.executions
                if execution.viewed == asked.code and not (asked.is_live and execution.done.is_set())
            ]
            if found:
                return max(found, key=lambda execution: execution.submitted)
            left = end - anyio.current_time()
            if left <= 0 or not self._waiting.take(caller.principal):
                raise ResourceNotFoundError("no execution of yours has that code")
            try:
                await views.wait_begun(left)
            finally:
                self._waiting.give_back(caller.principal)

    async def calls(self, execution_id: str, ctx: Ctx) -> str:
        use = (await self._execution(execution_id, ctx)).tool_calls
        return await anyio.to_thread.run_sync(use.to_json) if use is not None else ToolCalls().to_json()

    async def _execution(self, execution_id: str, ctx: Ctx) -> Execution:
        try:
            return await self._registry.execution(self._caller(ctx), execution_id)
        except ServerError as exc:
            raise ResourceNotFoundError(exc.to_text()) from exc

    def _session(self, session_id: str, ctx: Ctx) -> Session:
        try:
            return self._registry.get(self._caller(ctx), session_id)
        except ServerError as exc:
            raise ResourceNotFoundError(exc.to_text()) from exc
