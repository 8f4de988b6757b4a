"""What a call of a tool can raise. Each is a ToolError, and what Python calls that kind of failure."""


class ToolError(Exception):
    """The tool answered with an error, or could not be called. The text is the tool's own, or says what to do."""


class ToolDenied(ToolError, PermissionError):
    """The policy of the server's owner, or the user who was asked, says no."""


class ToolTimeout(ToolError, TimeoutError):
    """The tool did not answer in time. It may have done its work all the same."""


class ServerUnavailable(ToolError, ConnectionError):
    """The MCP server is not running, or ended while it worked on the call."""


class LimitExceeded(ToolError):
    """Too many calls, or too much in one."""


KINDS: dict[str, type[ToolError]] = {
    kind.__name__: kind for kind in (ToolError, ToolDenied, ToolTimeout, ServerUnavailable, LimitExceeded)
}


def error_of(reply: dict[str, str]) -> ToolError:
    """The exception of a reply's {kind, message}."""
    return KINDS.get(reply["kind"], ToolError)(reply["message"])
