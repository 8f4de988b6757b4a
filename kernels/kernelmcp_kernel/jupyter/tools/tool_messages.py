"""Checks the messages of tools (docs/languages.md): calls from a hostile guest; replies and offers from a client of
this kernel, with content from untrusted servers in the replies.

It must not know which requests wait for a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES
from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.json_bounds import JsonBounds, JsonTooLarge, check_json

Content = dict[str, Any]

# Bytes of JSON. A server reads no message larger than 10 MiB.
MAX_ARGUMENTS_BYTES = 8 * 2**20
# A depth that all JSON libraries on the way support.
MAX_DEPTH = 100
# A server reads up to 1,000,000 values (the server's output/sanitize.py).
_ARGUMENTS = JsonBounds(MAX_ARGUMENTS_BYTES, 900_000, MAX_DEPTH)
MAX_NAME_CHARS = 1000
MAX_SERVERS = 1000
MAX_CALLS_AT_ONCE = 256
# Each call is answered, most with a refusal.
MAX_CALLS_IN_FRAME = 10_000
_MAX_MESSAGE_CHARS = 100_000

# Bytes of one reply, in a frame of its own.
MAX_REPLY_BYTES = MAX_FRAME_BYTES - 2**20
# The guest's own call numbers, which JavaScript must be able to represent.
_MAX_NUMBER = 2**53

KINDS = frozenset({"ToolError", "ToolDenied", "ToolTimeout", "ServerUnavailable", "LimitExceeded"})


@dataclass(frozen=True)
class Offer:
    """The content of a `tools_offer_request`. `folder` contains the files; None withdraws the offer."""

    digest: str
    folder: Path | None
    servers: frozenset[str]
    concurrent_calls: int


@dataclass(frozen=True)
class Body:
    """The answer to a guest's call: JSON on one line. `is_raw`: not parsed here, so it may be invalid JSON."""

    text: bytes
    is_raw: bool = False


@dataclass(frozen=True)
class ToolCall:
    """One call in a guest's frame. `problem`: the reason why it is refused."""

    number: int
    server: str
    tool: str
    arguments: str
    problem: Body | None = None


def failure(kind: str, message: str) -> Body:
    return Body(json.dumps({"error": {"kind": kind, "message": message}}).encode("ascii"))


def checked_tool_calls(arguments: Content) -> tuple[list[ToolCall], list[int]]:
    """The calls of a frame, and the numbers of cancelled calls. Raises HostCallError if a call has no number."""
    calls, cancelled = arguments.get("calls"), arguments.get("cancelled", [])
    if not isinstance(calls, list) or not isinstance(cancelled, list):
        raise HostCallError("`tools` has a list of calls")
    if len(cast("list[Any]", calls)) > MAX_CALLS_IN_FRAME:
        raise HostCallError(f"`tools` has at most {MAX_CALLS_IN_FRAME:,} calls")
    numbers = cast("list[Any]", cancelled)
    return [_checked_tool_call(each) for each in cast("list[Any]", calls)], [n for n in numbers if _is_number(n)]


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_NUMBER


def _checked_tool_call(call: Any) -> ToolCall:
    parts = cast("list[Any]", call)
    if not isinstance(call, list) or len(parts) != 4 or not _is_number(parts[0]):
        raise HostCallError("a call of a tool is a number, a server, a tool and arguments")
    number, server, tool, arguments = parts
    if not (isinstance(server, str) and isinstance(tool, str) and isinstance(arguments, dict)):
        return ToolCall(number, "", "", "", failure("ToolError", "a call names a server and a tool, and has arguments"))
    if max(len(server), len(tool)) > MAX_NAME_CHARS:
        return ToolCall(number, "", "", "", failure("ToolError", "no server and no tool has a name that long"))
    text = json.dumps(arguments)
    return ToolCall(number, server, tool, text, _excess(text))


def _excess(text: str) -> Body | None:
    """The error if a call's arguments are too large, or None."""
    try:
        check_json(text.encode("ascii"), _ARGUMENTS)
    except JsonTooLarge as error:
        return failure("LimitExceeded", f"the arguments of a call are too large: {error}. Send less at a time")
    return None


def checked_offer(content: Content) -> Offer:
    """Check an offer. Raises ValueError."""
    digest, servers, folder = content.get("digest"), content.get("servers"), content.get("folder")
    limit = content.get("concurrent_calls")
    if not isinstance(digest, str) or not isinstance(servers, list):
        raise ValueError("an offer has a digest and a list of servers")
    names = cast("list[Any]", servers)
    if len(names) > MAX_SERVERS or not all(isinstance(name, str) and len(name) <= MAX_NAME_CHARS for name in names):
        raise ValueError("the servers of an offer are some names")
    path = Path(folder) if isinstance(folder, str) else Path()
    if not names and not path.is_absolute():
        return Offer(digest, None, frozenset(), 1)
    if not path.is_absolute():
        raise ValueError("the folder of an offer is an absolute path")
    if type(limit) is not int or not 1 <= limit <= MAX_CALLS_AT_ONCE:
        raise ValueError(f"concurrent_calls is a number from 1 to {MAX_CALLS_AT_ONCE}")
    return Offer(digest, path, frozenset(cast("list[str]", names)), limit)


def checked_replies(content: Content, buffers: Sequence[Any]) -> Iterator[tuple[int, Body]]:
    """The id and the body of each reply; replies without an id are ignored."""
    replies = content.get("replies")
    for each in cast("list[Any]", replies) if isinstance(replies, list) else []:
        if isinstance(each, dict) and type(id_ := cast("Content", each).get("id")) is int:
            yield id_, _checked_reply(cast("Content", each), buffers)


def _checked_reply(reply: Content, buffers: Sequence[Any]) -> Body:
    error, buffer, result = reply.get("error"), reply.get("buffer"), reply.get("result")
    if isinstance(error, dict):
        kind, message = cast("Content", error).get("kind"), cast("Content", error).get("message")
        return failure(str(kind) if kind in KINDS else "ToolError", str(message)[:_MAX_MESSAGE_CHARS])
    if type(buffer) is int and 0 <= buffer < len(buffers):
        # One line of the frame: in JSON, line ends are only where a space could be.
        return _checked_size(Body(bytes(buffers[buffer]).replace(b"\n", b" "), is_raw=True))
    if not isinstance(result, dict):
        return _MALFORMED
    try:
        text = json.dumps(result, allow_nan=False).encode("ascii")
    except (ValueError, RecursionError):
        return _MALFORMED
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        return _checked_size(Body(text, is_raw=True))  # perhaps too deep; raw, it cannot affect other calls
    return _checked_size(Body(b'{"result":' + text + b"}"))


_MALFORMED = failure("ToolError", "the answer to this call was malformed")


def _checked_size(body: Body) -> Body:
    if len(body.text) <= MAX_REPLY_BYTES:
        return body
    size = f"{len(body.text) >> 20} MiB; the limit is {MAX_REPLY_BYTES >> 20} MiB"
    return failure("LimitExceeded", f"the result is {size}: ask for less at a time")
