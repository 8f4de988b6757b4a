"""What an upstream offers, and what it answers, as the rest of the server sees it.

Plain values without I/O. Every text in them is the upstream's claim, and hostile.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

ErrorKind = Literal["ToolError", "ToolDenied", "ToolTimeout", "ServerUnavailable", "LimitExceeded"]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)
State = Literal["connecting", "ready", "unavailable", "login_needed", "disabled"]


@dataclass(frozen=True)
class Tool:
    name: str
    title: str | None
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    read_only: bool | None
    """The annotations: what the upstream says of itself. None where it says nothing."""
    destructive: bool | None
    idempotent: bool | None
    digest: str
    """Of all that a person accepts with the tool: name, description, schemas, annotations."""


@dataclass(frozen=True)
class Catalogue:
    server: str
    """The name that the settings give it."""
    title: str
    version: str
    instructions: str
    tools: tuple[Tool, ...]

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True)
class CallResult:
    """MCP's CallToolResult in its wire names: a `value`, or of a large one the `raw` JSON text, which nobody parsed."""

    value: dict[str, Any] | None
    raw: bytes | None
    is_error: bool
    """Of a raw one: whether its text ends or begins with `"isError": true`; the guest sees for itself."""
    size: int
    """Bytes of JSON."""


@dataclass(frozen=True)
class Status:
    state: State
    error: str | None
    """A sentence for a person, when the state is `unavailable` or `login_needed`."""
    since: float
    """Unix time."""
    tools: int


class UpstreamError(Exception):
    """A call that gave no result. The kind is the class that the guest raises, the message is for the model."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message


class ToolChanged(Exception):
    """A tool is not the one that a call was meant for: another definition, or none."""


def digest_of(listed: dict[str, Any]) -> str:
    """Of a tool as its upstream lists it, in wire names."""
    accepted = {
        key: listed.get(key) for key in ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    }
    return hashlib.sha256(json.dumps(accepted, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
