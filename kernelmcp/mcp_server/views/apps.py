"""Which clients and tools have views (MCP Apps, `io.modelcontextprotocol/ui`), and the documents of a view.

A view only reads: it needs no tool, and no result is longer for it. A tool's `_meta` and the capability are for clients
that announce the extension; all others get what they got before.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import anyio
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID, client_supports_apps
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context
from mcp_types import Tool

from kernelmcp.config.settings import Settings
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.views.pages import mark
from kernelmcp.output.sanitize import as_dict, as_list

HERE = Path(__file__).parent
DOCUMENT = "ui://kernelmcp/output"
LIBRARIES = {f"kernelmcp://views/{name}": f"{name}.js.gz" for name in ("vega", "plotly", "markup")}
# Without `csp`, a host applies the strictest policy there is; the document has one of its own besides.
DOCUMENT_META: dict[str, Any] = {"ui": {"permissions": {"clipboardWrite": {}}, "prefersBorder": False}}
_PART = re.compile(r"/\*\{([a-z.]+)\}\*/")

RequestContext = ServerRequestContext[Any]


class Views:
    """The views of one server. It uses the settings at its start."""

    def __init__(self, settings: Settings) -> None:
        section = settings.config.tools
        self._rule = section.views
        self._tools = frozenset(section.viewed)
        self._scripts = section.view_scripts
        self._begun = anyio.Event()

    def is_for(self, context: RequestContext | Context[Any, Any]) -> bool:
        """True if this client has views."""
        return client_supports_apps(context) if self._rule == "auto" else self._rule == "always"

    def in_list(self, tools: list[Tool], context: RequestContext) -> list[Tool]:
        """The tools; for a client with views, with the address of their view."""
        if not self.is_for(context):
            return tools
        return [_bound(tool) if tool.name in self._tools else tool for tool in tools]

    async def in_capabilities(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware of mcp that announces the extension to clients that announce it."""
        result = await call_next(ctx)
        if ctx.method not in ("initialize", "server/discover") or not isinstance(result, dict):
            return result
        if not (self.is_for(ctx) or (self._rule == "auto" and _announced(ctx))):
            return result
        capabilities = as_dict(result.get("capabilities"))
        extensions: dict[str, Any] = {**as_dict(capabilities.get("extensions")), EXTENSION_ID: {}}
        return {**result, "capabilities": {**capabilities, "extensions": extensions}}

    def read(self, uri: str) -> ReadResourceContents | None:
        """A document of a view; None if the URI names something else."""
        if uri == DOCUMENT:
            return ReadResourceContents(document(scripts=self._scripts), APP_MIME_TYPE, DOCUMENT_META)
        if (name := LIBRARIES.get(uri)) is not None:
            return ReadResourceContents(library(name), "application/gzip")
        return None

    def note_begun(self, tool: str, code: str, execution: Execution, context: Context[Any, Any]) -> None:
        """Note an execution, and the code as the client sent it, if the call has a view: it looks for this code."""
        if tool in self._tools and self.is_for(context):
            execution.viewed = mark(code)
            begun, self._begun = self._begun, anyio.Event()
            begun.set()

    async def wait_begun(self, seconds: float) -> None:
        """Wait until the next execution with a view has begun, for at most `seconds`."""
        with anyio.move_on_after(seconds):
            await self._begun.wait()


def _announced(ctx: RequestContext) -> bool:
    """True if an `initialize` announces the extension: mcp knows its capabilities only afterwards."""
    capabilities = as_dict(as_dict(cast("Any", ctx.params)).get("capabilities"))
    extension = as_dict(as_dict(capabilities.get("extensions")).get(EXTENSION_ID))
    return APP_MIME_TYPE in as_list(extension.get("mimeTypes"))


def _bound(tool: Tool) -> Tool:
    ui = {"resourceUri": DOCUMENT, "visibility": ["model"]}
    # The flat key is for hosts of before 2026-01-26.
    return tool.model_copy(update={"meta": {**(tool.meta or {}), "ui": ui, "ui/resourceUri": DOCUMENT}})


@cache
def document(*, scripts: bool) -> str:
    """The page of every view, in one file. `scripts`: a person may run those of a displayed HTML."""
    page = _PART.sub(lambda part: _source(part[1]), _source("output.html"))
    return page.replace("<html ", '<html data-scripts="allowed" ', 1) if scripts else page


@cache
def library(name: str) -> bytes:
    """A library that draws, compressed."""
    return (HERE / "libraries" / name).read_bytes()


def _source(name: str) -> str:
    text = (HERE / "source" / name).read_text("utf-8")
    # In a script, the end of another one would end it.
    return text.replace("</script", r"<\/script") if name.endswith(".js") else text
