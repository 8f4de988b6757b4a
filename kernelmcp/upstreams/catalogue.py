"""An upstream's tools and results, as the rest of the server sees them.

Plain values without I/O. Every text in them comes from the upstream, and is hostile.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal["ToolError", "ToolDenied", "ToolTimeout", "ServerUnavailable", "LimitExceeded"]
State = Literal["connecting", "ready", "unavailable", "login_needed", "disabled"]


@dataclass(frozen=True)
class Tool:
    name: str
    title: str | None
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    read_only: bool | None
    """The upstream's annotation; None if it has none."""
    destructive: bool | None
    idempotent: bool | None
    digest: str
    """Digest of everything that a person accepts with the tool: name, description, schemas, annotations."""


@dataclass(frozen=True)
class Catalogue:
    server: str
    """Its name in the settings."""
    title: str
    version: str
    instructions: str
    tools: tuple[Tool, ...]

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True)
class ToolCallResult:
    """MCP's CallToolResult with its wire names: a `value`, or for a large one the unparsed `raw` JSON text."""

    value: dict[str, Any] | None
    raw: bytes | None
    is_error: bool
    """For a raw one: whether its text ends or begins with `"isError": true`; the guest checks for itself."""
    size: int
    """Bytes of JSON."""


@dataclass(frozen=True)
class Status:
    state: State
    error: str | None
    """A sentence for a person, if the state is `unavailable` or `login_needed`."""
    since: float
    """Unix time."""
    tools: int
    needs_person: bool = False
    """A person has to log in, or to give the value of a variable."""


class UpstreamError(Exception):
    """A call that failed without a result. The kind is the class that the guest raises, the message is for the
    model."""

    def __init__(self, kind: ErrorKind, message: str, *, was_sent: bool = True) -> None:
        """`was_sent`: False if its server was not connected."""
        super().__init__(message)
        self.was_sent = was_sent
        self.kind: ErrorKind = kind
        self.message = message


class ToolChanged(Exception):
    """The tool differs from the one that the call was meant for: its definition changed, or it is gone."""


def digest_of(listed: dict[str, Any]) -> str:
    """The digest of a tool as its upstream lists it, with wire names."""
    accepted = {
        key: listed.get(key) for key in ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    }
    return hashlib.sha256(json.dumps(accepted, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
