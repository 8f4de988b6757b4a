"""Arguments that several tools share, and annotations of tools, as the model and its client see them."""

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import Field

Ctx = Context[Any, Any]
SessionId = Annotated[
    str | None,
    Field(
        description="An id from an earlier result, or a new name. Omitted: the connection's own session, "
        "or a new one whose id the result gives."
    ),
]
SameSession = Annotated[str | None, Field(description="Omitted: your own.")]
SessionLanguage = Annotated[str | None, Field(max_length=64, description="Of its cells. Omitted: python.")]
Language = Annotated[str | None, Field(max_length=64, description="Omitted: the session's language.")]

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
RUNS_CODE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
MAKES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
