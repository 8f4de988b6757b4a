"""An MCP server of 60 tools: 48 that a CRM would have (8 entities, 6 operations), and 12 that misbehave.

    python crm_server.py [--legacy] [--http PORT | --sse PORT] [--json] [--regions N]

On stdio unless a port is given; 0 is any, and the first line of stdout says which. `--legacy` knows nothing of protocol
2026-07-28. `--json` answers HTTP requests with JSON instead of events. `--regions`: the 48 tools so many times more,
only to be listed, as a company has them that bought one CRM after the other.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import socket
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.message import SessionMessage
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

ENTITIES = ("account", "contact", "deal", "ticket", "invoice", "product", "campaign", "order")
STAGES = ["new", "open", "pending", "won", "lost", "closed"]
FIELDS: dict[str, dict[str, Any]] = {
    "name": {
        "type": "string",
        "description": "Display name of the record, as shown in lists and search results. At most 255 characters.",
    },
    "owner_id": {
        "type": "string",
        "description": "Id of the user who is responsible for the record. Use list_users to find ids. "
        "Defaults to the caller.",
    },
    "status": {
        "type": "string",
        "enum": STAGES,
        "description": "Stage of the record's life cycle. Only forward transitions are allowed unless force is set.",
    },
    "amount": {
        "type": "number",
        "description": "Monetary amount in the account's currency, with at most two decimals.",
    },
    "tags": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Free-form labels used for filtering. Each tag is lowercase and has at most 40 characters.",
    },
    "notes": {
        "type": "string",
        "description": "Long-form description in Markdown. Attachments are referenced by their file id.",
    },
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


# -- what it lists --------------------------------------------------------------------------------------------------


def an_object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def record(entity: str) -> dict[str, Any]:
    return {
        "type": "object",
        "title": entity.title(),
        "properties": {
            "id": {"type": "string"},
            **FIELDS,
            "created_at": {"type": "string", "format": "date-time"},
        },
        "required": ["id", "name", "status", "amount"],
    }


def of_an_entity(entity: str) -> list[t.Tool]:
    plural = f"{entity}s"
    about = f"Part of the {plural} API of the CRM. "
    identifier = {"type": "string", "description": f"Id of the {entity}, such as {entity}_42."}
    reads = t.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = t.ToolAnnotations(read_only_hint=False, destructive_hint=False)
    deletes = t.ToolAnnotations(read_only_hint=False, destructive_hint=True)
    force = {"type": "boolean", "default": False, "description": "Allow transitions that go backwards."}
    page_size = {"type": "integer", "minimum": 1, "maximum": 500, "default": 100, "description": "Records per page."}
    cursor = {
        "type": ["string", "null"],
        "default": None,
        "description": "Where to go on: next_cursor of the page before.",
    }
    query = {"type": "string", "description": 'The query, such as status:open AND "renewal".'}
    found = an_object(
        ("id", "score", "snippet"), id={"type": "string"}, score={"type": "number"}, snippet={"type": "string"}
    )
    page = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": record(entity)},
            "next_cursor": {"type": ["string", "null"]},
            "total": {"type": "integer"},
        },
        "required": ["items", "next_cursor", "total"],
    }
    return [
        t.Tool(
            name=f"create_{entity}",
            description=f"{about}Create a new {entity} and return the stored record with its id. Use this only when "
            f"the user has asked for a new {entity}; search first to avoid duplicates. "
            f"Required permissions: {plural}:write.",
            input_schema=an_object(("name",), **FIELDS),
            output_schema=record(entity),
            annotations=writes,
        ),
        t.Tool(
            name=f"get_{entity}",
            description=f"{about}Get one {entity} by its id, with all of its fields. Returns an error when the "
            f"{entity} does not exist or the caller may not see it.",
            input_schema=an_object(("id",), id=identifier),
            output_schema=record(entity),
            annotations=reads,
        ),
        t.Tool(
            name=f"update_{entity}",
            description=f"{about}Change fields of an existing {entity}. Fields that are left out stay as they are. "
            f"Returns the record as it is afterwards. Required permissions: {plural}:write.",
            input_schema=an_object(("id",), id=identifier, **FIELDS, force=force),
            output_schema=record(entity),
            annotations=writes,
        ),
        t.Tool(
            name=f"delete_{entity}",
            description=f"{about}Delete a {entity} for good, with its history and attachments. This cannot be undone. "
            f"Required permissions: {plural}:delete.",
            input_schema=an_object(("id",), id=identifier),
            annotations=deletes,
        ),
        t.Tool(
            name=f"list_{plural}",
            description=f"{about}List {plural}, newest first, in pages. Filter by status, owner or tag. Returns at "
            "most page_size records and a cursor for the next page, which is null on the last one.",
            input_schema=an_object(
                status=FIELDS["status"],
                owner_id=FIELDS["owner_id"],
                tag={"type": "string", "description": "Only records with this tag."},
                page_size=page_size,
                cursor=cursor,
            ),
            output_schema=page,
            annotations=reads,
        ),
        t.Tool(
            name=f"search_{plural}",
            description=f"{about}Full-text search over {plural}. The query supports AND, OR, NOT, quotes and "
            "field:value. Results are ranked; each has a score and a snippet.",
            input_schema=an_object(
                ("query",),
                query=query,
                limit={"type": "integer", "default": 20, "minimum": 1, "maximum": 200},
            ),
            output_schema={
                "type": "object",
                "properties": {"results": {"type": "array", "items": found}},
                "required": ["results"],
            },
            annotations=reads,
        ),
    ]


def misbehaving() -> list[t.Tool]:
    reads = t.ToolAnnotations(read_only_hint=True)
    anything: dict[str, Any] = {"type": "object", "properties": {}}
    a = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    odd = {"from": {"type": "string"}, "$filter": {"type": "string"}, "class": {"type": "integer"}}

    def taking(**properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties}

    return [
        t.Tool(name="echo", description="Give back the value.", input_schema=taking(value={}), annotations=reads),
        t.Tool(name="die", description="End the server process at once.", input_schema=anything),
        t.Tool(
            name="slow",
            description="Answer after some seconds, with progress.",
            input_schema=taking(seconds={"type": "number"}),
        ),
        t.Tool(
            name="big",
            description="A text of so many MB, or as many of structured rows.",
            input_schema=taking(mb={"type": "number"}, rows={"type": "boolean"}),
        ),
        t.Tool(name="picture", description="A PNG, an audio clip, an embedded blob and a link.", input_schema=anything),
        t.Tool(name="fail", description="An error result.", input_schema=anything),
        t.Tool(
            name="lies-about.output",
            description="Declares an output schema and returns no structured content.",
            input_schema=anything,
            output_schema=a,
        ),
        t.Tool(
            name="import",
            description='Odd names """ and a backslash \\ in the docs.\nimport os  # not code',
            input_schema=taking(**odd, self={"type": "string"}),
        ),
        t.Tool(name="ask_user", description="Asks the user something (elicitation).", input_schema=anything),
        t.Tool(name="ask_model", description="Asks the client's model (sampling).", input_schema=anything),
        t.Tool(name="add_tool", description="Adds a tool at run time.", input_schema=anything),
        t.Tool(
            name="stats",
            description="How many calls were received and are under way.",
            input_schema=anything,
            annotations=reads,
        ),
    ]


# -- what it does ---------------------------------------------------------------------------------------------------


def rows_of(entity: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{entity}_{number}",
            "name": f"{entity.title()} number {number}",
            "owner_id": f"user_{number % 7}",
            "status": STAGES[number % 6],
            "amount": round((number * 7919) % 100000 / 100, 2),
            "tags": ["eu", "renewal"][: number % 3],
            "notes": f"Notes of {entity} {number}: " + "the customer asked about terms. " * 4,
            "created_at": "2026-01-01T00:00:00Z",
        }
        for number in range(1000)
    ]


def ok(value: Any) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text=json.dumps(value))], structured_content=value)


def no(text: str) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text=text)], is_error=True)


class Crm:
    def __init__(self, bus: InMemorySubscriptionBus, regions: int = 0) -> None:
        ours = [tool for entity in ENTITIES for tool in of_an_entity(entity)]
        more = [
            tool.model_copy(update={"name": f"region{region}_{tool.name}"})
            for region in range(regions)
            for tool in ours
        ]
        self.tools = ours + misbehaving() + more
        self.rows = {entity: rows_of(entity) for entity in ENTITIES}
        self.bus = bus
        self.received = self.under_way = self.most = self.cancelled = 0

    async def list_tools(self, ctx: Any, params: Any) -> t.ListToolsResult:
        return t.ListToolsResult(tools=self.tools)

    async def call_tool(self, ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
        self.received += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            arguments = params.arguments or {}
            special = getattr(self, "do_" + params.name.replace("-", "_").replace(".", "_"), None)
            return await special(ctx, arguments) if special else self.on_records(params.name, arguments)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1

    async def do_echo(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        return t.CallToolResult(content=[t.TextContent(text=json.dumps(arguments.get("value")))])

    async def do_stats(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        return ok(
            {
                "received": self.received,
                "under_way": self.under_way - 1,
                "max_under_way": self.most,
                "cancelled": self.cancelled,
                "pid": os.getpid(),
            }
        )

    async def do_die(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        os._exit(3)

    async def do_slow(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        seconds = float(arguments.get("seconds", 1))
        await anyio.sleep(seconds)
        return ok({"slept": seconds})

    async def do_big(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        if arguments.get("rows"):
            rows = self.rows["deal"]
            count = int(float(arguments["mb"]) * 1e6 * len(rows) / len(json.dumps(rows)))
            return ok({"rows": [rows[number % len(rows)] for number in range(count)]})
        return t.CallToolResult(content=[t.TextContent(text="x" * int(float(arguments["mb"]) * 1e6))])

    async def do_picture(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        sound, blob = base64.b64encode(b"RIFF0000").decode(), base64.b64encode(bytes(range(256))).decode()
        kept = t.BlobResourceContents(uri="crm://blob", mime_type="application/octet-stream", blob=blob)
        return t.CallToolResult(
            content=[
                t.TextContent(text="a picture"),
                t.ImageContent(data=PNG, mime_type="image/png"),
                t.AudioContent(data=sound, mime_type="audio/wav"),
                t.EmbeddedResource(resource=kept),
                t.ResourceLink(name="more", uri="crm://more"),
            ]
        )

    async def do_fail(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        return no("the record is locked by user_3")

    async def do_lies_about_output(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        return t.CallToolResult(content=[t.TextContent(text="no structure")])

    async def do_import(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        return ok({"got": arguments})

    async def do_ask_user(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
        answer = await ctx.session.elicit_form("Really?", schema)
        return ok({"answer": answer.model_dump(mode="json")})

    async def do_ask_model(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        asked = [t.SamplingMessage(role="user", content=t.TextContent(text="hi"))]
        answer = await ctx.session.create_message(messages=asked, max_tokens=10)
        return ok({"answer": answer.model_dump(mode="json")})

    async def do_add_tool(self, ctx: Any, arguments: dict[str, Any]) -> t.CallToolResult:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        self.tools.append(t.Tool(name=f"added_{len(self.tools)}", description="New.", input_schema=schema))
        await self.bus.publish(ToolsListChanged())
        await ctx.session.send_tool_list_changed()
        return ok({"tools": len(self.tools)})

    def on_records(self, name: str, arguments: dict[str, Any]) -> t.CallToolResult:
        verb, _, rest = name.partition("_")
        entity = rest if rest in self.rows else rest[:-1]
        if entity not in self.rows or f"{verb}_{rest}" not in {tool.name for tool in self.tools}:
            raise MCPError(t.INVALID_PARAMS, f"Unknown tool: {name}")
        rows = self.rows[entity]
        if verb == "create":
            rows.append({"id": f"{entity}_{len(rows)}", "status": "new", "amount": 0, **arguments})
            return ok(rows[-1])
        if verb == "list":
            return self.page(rows, arguments)
        if verb == "search":
            found = [row for row in rows if arguments["query"] in row["name"]][: arguments.get("limit", 20)]
            return ok({"results": [{"id": row["id"], "score": 1.0, "snippet": row["notes"][:60]} for row in found]})
        row = next((row for row in rows if row["id"] == arguments["id"]), None)
        if row is None:
            return no(f"there is no {entity} {arguments['id']!r}")
        if verb == "update":
            row.update({key: value for key, value in arguments.items() if key != "force"})
        if verb == "delete":
            rows.remove(row)
            return ok({"deleted": row["id"]})
        return ok(row)

    def page(self, rows: list[dict[str, Any]], arguments: dict[str, Any]) -> t.CallToolResult:
        wanted = {key: arguments[key] for key in ("status", "owner_id") if arguments.get(key)}
        tag = arguments.get("tag")
        chosen = [
            row
            for row in rows
            if all(row.get(key) == value for key, value in wanted.items()) and (not tag or tag in row.get("tags", []))
        ]
        start = int(arguments.get("cursor") or 0)
        end = start + arguments.get("page_size", 100)
        following = str(end) if end < len(chosen) else None
        return ok({"items": chosen[start:end], "next_cursor": following, "total": len(chosen)})


# -- how it is reached ----------------------------------------------------------------------------------------------


async def not_known(ctx: Any, params: Any) -> Any:
    raise MCPError(t.METHOD_NOT_FOUND, "Method not found")


def make_server(*, legacy: bool, regions: int = 0) -> Server[Any]:
    bus = InMemorySubscriptionBus()
    crm = Crm(bus, regions)
    server: Server[Any] = Server(
        "crm",
        version="1.0",
        instructions="Customer records.",
        on_list_tools=crm.list_tools,
        on_call_tool=crm.call_tool,
        on_subscriptions_listen=ListenHandler(bus),
    )
    if legacy:
        server.add_request_handler("server/discover", t.RequestParams, not_known)
    return server


def options(server: Server[Any]) -> Any:
    return server.create_initialization_options(NotificationOptions(tools_changed=True))


def over_sse(server: Server[Any]) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def events(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, options(server))
        return Response()

    return Starlette(routes=[Route("/sse", events), Mount("/messages/", app=transport.handle_post_message)])


async def on_stdio(server: Server[Any], legacy: bool) -> None:
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        send, passed = anyio.create_memory_object_stream[SessionMessage | Exception]()

        async def pass_on() -> None:
            """An older server has no answer to the first question of a newer client, and goes on."""
            async with send:
                async for item in read:
                    message = item.message if isinstance(item, SessionMessage) else None
                    if legacy and isinstance(message, t.JSONRPCRequest) and message.method == "server/discover":
                        error = t.ErrorData(code=t.METHOD_NOT_FOUND, message="Method not found")
                        await write.send(SessionMessage(t.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)))
                    else:
                        await send.send(item)

        tasks.start_soon(pass_on)
        await server.run(passed, write, options(server))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--regions", type=int, default=0)
    parser.add_argument("--http", type=int)
    parser.add_argument("--sse", type=int)
    parsed = parser.parse_args()
    server = make_server(legacy=parsed.legacy, regions=parsed.regions)
    port = parsed.http if parsed.http is not None else parsed.sse
    if port is None:
        anyio.run(on_stdio, server, parsed.legacy)
        return
    application = over_sse(server) if parsed.sse is not None else server.streamable_http_app(json_response=parsed.json)
    with contextlib.closing(socket.create_server(("127.0.0.1", port))) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(application, log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
