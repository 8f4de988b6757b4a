"""An MCP conversation with one upstream over a link: negotiation of the era, lists of tools, and calls.

Calls go through mcp's dispatcher as dicts, without its models: validation takes most of a call's time, and rejects
results that differ from their declared schema, after the tool has done its work.
"""

import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from mcp import ClientSession, MCPError
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_REQUEST,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Implementation,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from kernelmcp.json_bounds import WEIGHT, JsonBounds, check_json
from kernelmcp.output.sanitize import as_dict, is_readable
from kernelmcp.upstreams.catalogue import Catalogue, Tool, ToolCallResult, UpstreamError
from kernelmcp.upstreams.large_results import FIRST_NUMBER, LARGE_BYTES, MAX_PARSED_BYTES, LargeResults, Waiting
from kernelmcp.upstreams.link import NUMBER_HEADER, OURS, UNSENT, Link
from kernelmcp.upstreams.tool_listing import MAX_DESCRIPTION_CHARS, MAX_NAME_CHARS, Listing, list_tools, text_of
from kernelmcp.version import __version__

_US = Implementation(name="kernelmcp", version=__version__)
# We report an upstream's errors once, in our words. Theirs contain addresses, which may hold secrets.
for _name in ("mcp.client", "mcp.shared", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

log = structlog.get_logger(__name__)


class Conversation:
    """Created only by `open_conversation`."""

    def __init__(self, name: str, session: ClientSession, dispatcher: JSONRPCDispatcher, large: LargeResults) -> None:
        self._name = name
        self._session = session
        self._dispatcher = dispatcher
        self._large = large
        self._numbers = itertools.count(FIRST_NUMBER)
        self._schemas: dict[str, dict[str, Any]] = {}
        version = session.protocol_version or ""
        self.is_modern = version in MODERN_PROTOCOL_VERSIONS
        self._headers = {MCP_PROTOCOL_VERSION_HEADER: version}
        self._meta: dict[str, Any] = {}
        if self.is_modern:
            self._meta = {
                PROTOCOL_VERSION_META_KEY: version,
                CLIENT_INFO_META_KEY: _US.model_dump(by_alias=True, mode="json", exclude_none=True),
                CLIENT_CAPABILITIES_META_KEY: {},
            }

    async def list(self) -> Listing:
        """List the tools. Raises `MCPError`."""

        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
            value, waiting = await self._request(method, params)
            return value if waiting.raw is None else await anyio.to_thread.run_sync(_parsed, waiting.raw)

        found = await list_tools(ask)
        if self.is_modern:
            self._schemas = {tool.name: tool.input_schema for tool in found.tools}
        return found

    def catalogue(self, tools: tuple[Tool, ...]) -> Catalogue:
        info = self._session.server_info
        return Catalogue(
            server=self._name,
            title=text_of(info and (info.title or info.name), MAX_NAME_CHARS),
            version=text_of(info and info.version, MAX_NAME_CHARS),
            instructions=text_of(self._session.instructions, MAX_DESCRIPTION_CHARS),
            tools=tools,
        )

    async def tool_call(self, tool: str, arguments: Mapping[str, Any]) -> ToolCallResult:
        """Call a tool. Raises `MCPError`, and `UpstreamError` for an invalid result. Cancelling it cancels the call
        there."""
        if _check(tool, arguments) >= LARGE_BYTES:
            await anyio.lowlevel.checkpoint()  # the arguments are encoded again: other tasks run in between
        value, waiting = await self._request("tools/call", {"name": tool, "arguments": arguments}, tool)
        if waiting.raw is not None:
            return ToolCallResult(None, waiting.raw, waiting.is_error, len(waiting.raw))
        if value.get("resultType") == "input_required":
            raise UpstreamError(
                "ToolError", f"{self._name}.{tool} asks the user for something before it answers: it can't be used here"
            )
        return ToolCallResult(value, None, value.get("isError") is True, len(json.dumps(value)))

    async def listen(self, changed: Callable[[], None], settled: Callable[[], None]) -> None:
        """Listen for changes of tools, as a server of 2026-07-28 reports them. Returns if it does not, or no longer
        does.

        `settled` is called once it listens, or once it is clear that it never will."""
        try:
            if self.is_modern:
                async with listen(self._session, tools_list_changed=True) as events:
                    settled()
                    async for _ in events:
                        changed()
        except (MCPError, SubscriptionLost, TimeoutError):
            pass
        finally:
            settled()

    async def _request(
        self, method: str, params: dict[str, Any], tool: str | None = None
    ) -> tuple[dict[str, Any], Waiting]:
        """Return the result, or the unparsed text of a large one. Raises `MCPError`, and `UpstreamError` if a tool's
        result is too large."""
        number = next(self._numbers)
        params, options = self._stamped(method, params, tool)
        options["request_id"] = number
        options["headers"] = {**options.get("headers", {}), NUMBER_HEADER: str(number)}
        with self._large.expecting(number) as waiting:
            try:
                return await self._dispatcher.send_raw_request(method, params, options), waiting
            except MCPError:
                if waiting.is_too_large and tool is not None:
                    raise UpstreamError("LimitExceeded", self._too_large(tool)) from None
                if waiting.unsent:
                    raise MCPError(UNSENT, waiting.unsent, OURS) from None
                raise

    def _too_large(self, tool: str) -> str:
        return (
            f"{self._name}.{tool} returned more than the {self._large.max_mb()} MB that a result may have "
            "(upstreams.result_mb). Ask for less at a time."
        )

    def _stamped(
        self, method: str, params: dict[str, Any], tool: str | None = None
    ) -> tuple[dict[str, Any], CallOptions]:
        """Add the fields that the protocol requires in each request of its era."""
        headers = dict(self._headers)
        if self.is_modern:
            params = {**params, "_meta": dict(self._meta)}
            headers[MCP_METHOD_HEADER] = method
            if tool is not None:
                headers[MCP_NAME_HEADER] = encode_header_value(tool)
                mirrored = x_mcp_header_map(self._schemas.get(tool, {}))
                headers.update(mcp_param_headers(mirrored, params["arguments"]))
        return params, {"headers": headers}


def _parsed(raw: bytes) -> dict[str, Any]:
    """Parse a large list of tools. Blocking. Raises `MCPError`."""
    if len(raw) <= MAX_PARSED_BYTES and is_readable(raw):
        with suppress(ValueError, RecursionError):
            return as_dict(json.loads(raw))
    raise MCPError(INVALID_REQUEST, "its list of tools cannot be read")


def _check(tool: str, arguments: Mapping[str, Any]) -> int:
    """Return the size in bytes of JSON. Raises `UpstreamError` for values that mcp's transports can't encode: they
    would end the connection, and other calls."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        check_json(text, JsonBounds(len(text), max_values=WEIGHT * len(text)))
        return len(text)
    except (ValueError, RecursionError, TypeError) as exc:
        said = "JSON has no NaN and no infinity" if "Out of range" in str(exc) else "they are nested too deep, or odd"
        raise UpstreamError("ToolError", f"{tool}: its arguments cannot be sent: {said}") from exc


@asynccontextmanager
async def open_conversation(
    name: str, link: Link, large: LargeResults, changed: Callable[[], None], *, was_legacy: bool
) -> AsyncIterator[Conversation]:
    """Negotiate. `changed` is called when a legacy server reports that its tools have changed. `was_legacy`: it was one
    last time, so the new way is not tried first, because some servers answer that only after a while.

    Raises `MCPError`, RuntimeError, ValidationError: mcp's errors for servers that do not speak MCP."""

    async def on_message(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed()
        await anyio.lowlevel.checkpoint()

    dispatcher = JSONRPCDispatcher(link.read, link.write)
    async with ClientSession(dispatcher=dispatcher, client_info=_US, message_handler=on_message) as session:
        await _negotiate(session, was_legacy)
        yield Conversation(name, session, dispatcher, large)


async def _negotiate(session: ClientSession, was_legacy: bool) -> None:
    if not was_legacy:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValidationError):
            pass  # no common version, or no answer to this request: not of the new era
        else:
            return
    try:
        await session.initialize()
    except MCPError as exc:
        if exc.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()
