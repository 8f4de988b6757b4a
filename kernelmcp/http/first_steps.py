"""Answers to requests that an MCP client would not send: mcp's status, and the correct first request.

People who try the server with curl see them. They are valid JSON-RPC, like mcp's own. Must not know sessions.
"""

import json
from typing import Any

from mcp_types import INVALID_REQUEST
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from kernelmcp.output.sanitize import as_dict

# mcp rejects these before it has read the message, or because they belong to no connection.
REFUSED = (400, 406, 415)
_INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": {},
            "clientInfo": {"name": "my-client", "version": "1"},
        },
    }
)
_HEADERS = "Content-Type: application/json and Accept: application/json, text/event-stream"
_ONE_MESSAGE = f"the body must be one JSON-RPC message in UTF-8 (not a list). Send first: {_INITIALIZE}"
# The beginning of mcp's message, and our addition. `whole`: ours replaces mcp's message, which would not help.
_STEPS: tuple[tuple[str, str, bool], ...] = (
    (
        "Bad Request: Missing session ID",
        f"begin with a POST of {_INITIALIZE} and give the Mcp-Session-Id of its answer with each request after it",
        False,
    ),
    ("Invalid Content-Type", f"a POST needs the headers {_HEADERS}", False),
    ("Not Acceptable", f"a POST needs the headers {_HEADERS}", False),
    ("Parse error", _ONE_MESSAGE, False),
    ("Validation error", _ONE_MESSAGE, True),
)


def explaining(send: Send) -> Send:
    """Pass messages through, and add the first step to a rejection that has one."""
    start: Message | None = None
    body = bytearray()

    async def sending(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and message["status"] in REFUSED:
            start = message
        elif start is None or message["type"] != "http.response.body":
            await send(message)
        else:
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                first, start = start, None
                await _send_explained(first, bytes(body), send)

    return sending


async def _send_explained(start: Message, body: bytes, send: Send) -> None:
    if (explained := _explained(body)) is not None:
        body = explained
        headers = MutableHeaders(scope=start)
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _explained(body: bytes) -> bytes | None:
    """The rejection with its first step; None if it needs none."""
    request_id, code, said = _read(body)
    for beginning, step, whole in _STEPS:
        if said.startswith(beginning):
            text = step if whole else f"{said.partition(chr(10))[0].rstrip('.')}: {step}"
            return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}).encode()
    return None


def _read(body: bytes) -> tuple[Any, int, str]:
    """The id, code and message of a rejection; some of mcp's are plain text."""
    try:
        found = as_dict(json.loads(body))
    except ValueError:
        return None, INVALID_REQUEST, body.decode("utf-8", "replace")
    error = as_dict(found.get("error"))
    return found.get("id"), error.get("code", INVALID_REQUEST), str(error.get("message", ""))
