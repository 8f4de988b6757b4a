"""Decides which clients get `structuredContent` and output schemas; every client gets the same facts in `_meta`.

Some clients show their model the structured content instead of the content, so that pictures and notes are lost: only
clients that request it, or are known to need it, get it (docs/tools.md).
"""

from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types import CallToolResult, Tool

from kernelmcp.config.settings import Settings

ASKED_KEY = "kernelmcp/structured"
RESULT_KEY = "kernelmcp/result"
# Fields that the text of a result contains in full, or truncated to the budget.
TEXTS = frozenset({"stdout", "stderr", "result", "return_value", "content", "background"})
MAX_VALUE_CHARS = 500

RequestContext = ServerRequestContext[Any]


class Structured:
    """The rule of one server. It uses the settings at its start."""

    def __init__(self, settings: Settings) -> None:
        self._rule = settings.config.tools.structured_content
        self._clients = frozenset(settings.config.tools.structured_clients)

    def is_for(self, context: RequestContext) -> bool:
        """True if the answer to this request includes it."""
        if self._rule != "auto":
            return self._rule == "always"
        if (context.meta or {}).get(ASKED_KEY) is True:
            return True
        client = context.session.client_params
        return client is not None and client.client_info.name in self._clients

    def in_result(self, result: CallToolResult, context: RequestContext) -> CallToolResult:
        """The result with the facts in `_meta`; without structured content if the client does not get it."""
        if (fields := result.structured_content) is None:
            return result
        meta = {**(result.meta or {}), RESULT_KEY: _without_texts(fields)}
        content = fields if self.is_for(context) else None
        return result.model_copy(update={"meta": meta, "structured_content": content})

    def in_list(self, tools: list[Tool], context: RequestContext) -> list[Tool]:
        """The tools; without output schemas if the client does not get them."""
        if self.is_for(context):
            return tools
        return [tool.model_copy(update={"output_schema": None}) for tool in tools]


def _without_texts(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if name not in TEXTS}
    error: dict[str, Any] | None = kept.get("error")
    if error and "traceback" in error:
        kept["error"] = {**error, "value": error["value"][:MAX_VALUE_CHARS]}
        del kept["error"]["traceback"]
    return kept
