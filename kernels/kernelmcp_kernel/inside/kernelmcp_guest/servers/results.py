"""The outcome of a tool call: its value, converted from an MCP result, or an exception.

Each exception is a ToolError, and the built-in exception for that kind of failure.
"""

import base64
import json
import os
from typing import Any

# Image types that are text in a bundle; other images are bytes.
_TEXT_PICTURES = ("image/svg+xml",)


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


class Lines(str):
    """Lines of text; the repr is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Text(str):
    """A text result."""

    __slots__ = ()

    def json(self) -> Any:
        """Parse the text as JSON."""
        return json.loads(self)


class Blob(bytes):
    """An image, audio or file result. An image is shown if it is a cell's last expression."""

    mime_type: str = "application/octet-stream"
    uri: str | None = None

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write it to a file; return the file's path."""
        with open(path, "wb") as file:
            file.write(self)
        return os.fspath(path)

    def __repr__(self) -> str:
        return f"<{self.mime_type}, {len(self):,} bytes>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        if self.mime_type in _TEXT_PICTURES:
            bundle[self.mime_type] = self.decode("utf-8", "replace")
        elif self.mime_type.startswith("image/"):
            bundle[self.mime_type] = bytes(self)
        return bundle

    def _repr_png_(self) -> bytes | None:
        return bytes(self) if self.mime_type == "image/png" else None


def value_of(result: dict[str, Any], name: str) -> Any:
    """The structured content unchanged; otherwise the only part, or the list of parts. Raises ToolError, with `name`
    for the tool, for an error result or an invalid result."""
    try:
        if "structuredContent" in result and not result.get("isError"):  # any JSON value, including null and 0
            return result["structuredContent"]
        content: list[dict[str, Any]] = result["content"]
        if result.get("isError"):
            texts = "\n".join(block["text"] for block in content if block.get("type") == "text")
            raise ToolError(f"{name}: {texts or 'it failed without a reason'}")
        parts = [_part(block) for block in content]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ToolError(f"{name}: its answer is not a tool result ({type(error).__name__}: {error})") from None
    return parts[0] if len(parts) == 1 else parts


def _part(block: dict[str, Any]) -> Any:
    kind = block["type"]
    if kind == "text":
        return Text(block["text"])
    if kind in ("image", "audio"):
        return _blob(block["data"], block.get("mimeType"), None)
    if kind == "resource":
        resource = block["resource"]
        if "blob" in resource:
            return _blob(resource["blob"], resource.get("mimeType"), resource.get("uri"))
        return Text(resource["text"])
    return block  # a link, or a newer type


def _blob(data: str, mime_type: str | None, uri: str | None) -> Blob:
    found = Blob(base64.b64decode(data))
    found.mime_type, found.uri = mime_type or Blob.mime_type, uri
    return found
