"""The tools that an upstream lists: validated, cleaned, and truncated if they are too many or too large.

An invalid tool is omitted and does not affect the others. Must not know connections.
"""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import anyio.to_thread
from mcp.shared.inbound import find_invalid_x_mcp_header

from kernelmcp.output.sanitize import as_dict, as_list, clean, clean_json
from kernelmcp.upstreams.catalogue import Tool, digest_of
from kernelmcp.upstreams.large_results import MAX_PARSED_BYTES

MAX_PAGES = 100
MAX_TOOLS = 2000
# A longer one ends the list: they are all kept, and each is sent back.
MAX_CURSOR_CHARS = 4096
MAX_NAME_CHARS = 128
# Limit for an untrusted text that a model reads.
MAX_DESCRIPTION_CHARS = 4000
# A larger schema is replaced by one that accepts anything: one tool must not fill the disk, or a model's context.
MAX_SCHEMA_CHARS = 64 * 1024
# Limit for all tools together, in characters of JSON as listed. A thousand large tools fit.
MAX_LISTED_CHARS = MAX_PARSED_BYTES
_ANYTHING: dict[str, Any] = {"type": "object"}
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends a request and returns its result."""


@dataclass(frozen=True)
class Listing:
    tools: tuple[Tool, ...]
    is_whole: bool
    """True if these are all of the upstream's tools."""
    fresh_seconds: float | None
    """Seconds that they stay valid, according to the upstream."""


async def list_tools(ask: Ask) -> Listing:
    """List all pages. Raises what `ask` raises."""
    found: dict[str, Tool] = {}
    cursor: str | None = None
    seen: set[str] = set()
    fresh: float | None = None
    room = MAX_LISTED_CHARS
    for _ in range(MAX_PAGES):
        page = await ask("tools/list", {} if cursor is None else {"cursor": cursor})
        # A page with one tool may take half a second.
        room = await anyio.to_thread.run_sync(_add, found, page.get("tools"), room)
        if room < 0:
            return Listing(tuple(found.values()), is_whole=False, fresh_seconds=fresh)
        lasting: Any = page.get("ttlMs")
        if isinstance(lasting, int | float) and not isinstance(lasting, bool) and lasting > 0:
            fresh = min(fresh or lasting / 1000, lasting / 1000)
        following: Any = page.get("nextCursor")
        if not isinstance(following, str):
            return Listing(tuple(found.values()), is_whole=True, fresh_seconds=fresh)
        if len(following) > MAX_CURSOR_CHARS or following in seen:
            break
        seen.add(following)
        cursor = clean(following)
    return Listing(tuple(found.values()), is_whole=False, fresh_seconds=fresh)


def _add(found: dict[str, Tool], listed: Any, room: int) -> int:
    """Add the tools of a page; returns the number of characters left for further ones, negative if some were omitted.
    Blocking."""
    for one in as_list(listed):
        if len(found) >= MAX_TOOLS:
            return -1
        room -= len(json.dumps(one))
        if room < 0:
            break
        if (tool := _tool(one)) is not None:
            found.setdefault(tool.name, tool)
        time.sleep(0)  # let the event loop's thread continue
    return room


def _tool(listed: Any) -> Tool | None:
    if not isinstance(listed, dict):
        return None
    try:
        one = cast("dict[str, Any]", clean_json(listed))
    except ValueError:
        return None
    name, description, title = one.get("name"), one.get("description"), one.get("title")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        return None
    schema: Any = one.get("inputSchema")
    if not isinstance(schema, dict) or find_invalid_x_mcp_header(schema) is not None:
        return None
    hints = as_dict(one.get("annotations"))
    title = hints.get("title") if not isinstance(title, str) else title
    return Tool(
        name=name,
        title=title[:MAX_NAME_CHARS] if isinstance(title, str) else None,
        description=description[:MAX_DESCRIPTION_CHARS] if isinstance(description, str) else "",
        input_schema=_schema(schema) or _ANYTHING,
        output_schema=_schema(one.get("outputSchema")),
        read_only=_hint(hints.get("readOnlyHint")),
        destructive=_hint(hints.get("destructiveHint")),
        idempotent=_hint(hints.get("idempotentHint")),
        digest=digest_of(one),
    )


def _schema(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or len(json.dumps(value)) > MAX_SCHEMA_CHARS:
        return None
    return cast("dict[str, Any]", value)


def _hint(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def text_of(value: Any, max_chars: int) -> str:
    """An untrusted text: valid Unicode, at most `max_chars`."""
    return clean(value)[:max_chars] if isinstance(value, str) else ""
