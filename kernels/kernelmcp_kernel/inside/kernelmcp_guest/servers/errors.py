"""Exceptions of tool calls. Each is a ToolError, and the built-in exception for that kind of failure."""


class ToolError(Exception):
    """The tool returned an error, or could not be called. The text is the tool's own, or says what to do."""


class ToolDenied(ToolError, PermissionError):
    """The server owner's policy, or the user who was asked, denied the call."""


class ToolTimeout(ToolError, TimeoutError):
    """The tool did not answer in time. It may still have done its work."""


class ServerUnavailable(ToolError, ConnectionError):
    """The MCP server is not running, or ended during the call."""


class LimitExceeded(ToolError):
    """Too many calls, or too much data in one."""


KINDS: dict[str, type[ToolError]] = {
    kind.__name__: kind for kind in (ToolError, ToolDenied, ToolTimeout, ServerUnavailable, LimitExceeded)
}


def error_of(reply: dict[str, str]) -> ToolError:
    """The exception of a reply's {kind, message}."""
    return KINDS.get(reply["kind"], ToolError)(reply["message"])
