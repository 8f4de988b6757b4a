"""Limits for parsing a client's message, on every transport. A tool takes texts and few values."""

from kernelmcp.json_bounds import JsonBounds, JsonTooLarge, check_json

# As parsed by mcp, a value takes twice its own size.
_MAX_VALUES = 200_000


def excess(message: bytes) -> str | None:
    """The exceeded bound of a JSON-RPC message, as text for its sender; None if it may be parsed."""
    try:
        check_json(message, JsonBounds(len(message), _MAX_VALUES))
    except JsonTooLarge as error:
        return f"the message is too large: {error}"
    return None
