"""Hints about the user's other MCP servers: a sentence in the instructions and a line in execute_code's description.

Only for a client whose principal has some. They contain no text from an upstream, only the names that the user
assigned; all of it together is at most about 120 tokens.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types import Tool

from kernelmcp.executions.principals import LOCAL
from kernelmcp.mcp_server.callers import principal_of
from kernelmcp.mcp_server.schemas import CodeModeFields, PendingApproval

# The settings' format; names in files of other programs may be anything.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Limit for the names together; the remaining servers are counted.
MAX_NAMES_CHARS = 90
SENTENCE = (
    "\nTools of the user's other MCP servers ({names}) are Python functions: servers.search('words') finds them, "
    "/servers/NAME/TOOL.py documents one, `from servers.NAME import TOOL` imports it. Call several in one cell, keep "
    "results in variables, print only what you need."
)
LINE = "\nTools of other MCP servers: `import servers`, servers.search('words')."

# Fields of results that concern other servers, anywhere in an output schema.
_FIELDS = CodeModeFields.__annotations__.keys()
_DEFINITION = PendingApproval.__name__

RequestContext = ServerRequestContext[Any]


class Told:
    """The hints of one server. `names_for` returns the servers that a principal may use."""

    def __init__(self, names_for: Callable[[str], Awaitable[Sequence[str]]]) -> None:
        self._names_for = names_for

    async def in_instructions(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware of mcp that adds the sentence."""
        result = await call_next(ctx)
        if ctx.method not in ("initialize", "server/discover") or not (names := await self._names(ctx)):
            return result
        if isinstance(result, dict) and isinstance(text := result.get("instructions"), str):
            return {**result, "instructions": text + sentence(names)}
        return result

    async def in_list(self, tools: list[Tool], ctx: RequestContext) -> list[Tool]:
        """The tools: with a line if the principal has other servers, otherwise without the fields that concern them."""
        if await self._names(ctx):
            return [_with_line(tool) if tool.name == "execute_code" else tool for tool in tools]
        return [tool.model_copy(update={"output_schema": _without_fields(tool.output_schema)}) for tool in tools]

    async def _names(self, ctx: RequestContext) -> Sequence[str]:
        return await self._names_for(LOCAL if ctx.request is None else principal_of(ctx.request.scope))


def sentence(names: Sequence[str]) -> str:
    shown: list[str] = []
    room = MAX_NAMES_CHARS
    for name in filter(_NAME.fullmatch, names):
        room -= len(name) + 2
        if room < 0:
            break
        shown.append(name)
    rest = len(names) - len(shown)
    more = [f"and {rest} more"] if rest else []
    return SENTENCE.format(names=", ".join([*shown, *more]))


def _with_line(tool: Tool) -> Tool:
    return tool.model_copy(update={"description": f"{tool.description or ''}{LINE}"})


def _without_fields(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_fields(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    left_out = {*_FIELDS, _DEFINITION}
    return {key: _without_fields(item) for key, item in cast("dict[str, Any]", schema).items() if key not in left_out}
