"""What the arguments of several tools are, and what tools may do, for the model and its client to see."""

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from pydantic import Field

Ctx = Context[Any, Any]
SessionId = Annotated[
    str | None,
    Field(
        description="The session: an id from an earlier result, or a name of your own. Left out, your connection's "
        "own; one that has none gets a new session, and the result gives its id."
    ),
]
SameSession = Annotated[str | None, Field(description="The session. Left out, your connection's own.")]
SessionLanguage = Annotated[str | None, Field(max_length=64, description="Of cells that name none. Left out: python.")]
Language = Annotated[str | None, Field(max_length=64, description="Left out, it is the session's own language.")]

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
RUNS_CODE = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
MAKES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
