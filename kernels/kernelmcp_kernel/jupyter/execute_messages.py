"""Checks an execute_request, sent by a client, and its reply, which a hostile guest may have made."""

from __future__ import annotations

from typing import Any, cast

from kernelmcp_kernel.jupyter.iopub import error_content
from kernelmcp_kernel.settings import Quota, settings

Content = dict[str, Any]

# Payloads of an execute_reply act on the frontend, so a guest may send only these.
_PAYLOADS = frozenset({"page", "set_next_input", "ask_exit"})


def header_of(message: Content) -> Content:
    """A message's header as JSON, for the guest's `get_parent()`."""
    return {name: str(value) for name, value in message.get("header", {}).items()}


def client_of(message: Content) -> str | None:
    """The client of the kernel that sent it."""
    client = message.get("header", {}).get("session")
    return client if isinstance(client, str) else None


def hexadecimal(ident: Any) -> list[str]:
    """The routing ids of a message as JSON. Empty before the first message of a channel."""
    return [part.hex() for part in cast("list[bytes]", ident)] if isinstance(ident, list) else []


def check_request(request: Content) -> None:
    """Check an execute_request. Raises ValueError if it breaks the protocol."""
    if not isinstance(request["code"], str):
        raise ValueError("the code of an execute_request must be text")
    if not isinstance(request["user_expressions"], dict):
        raise ValueError("the user_expressions of an execute_request must be an object")


def _ours(metadata: Content | None) -> Content:
    """Our own part of a request's metadata, which a client may have filled with anything."""
    ours: Any = (metadata or {}).get("kernelmcp")
    return cast("Content", ours) if isinstance(ours, dict) else {}


def cpu_seconds(metadata: Content | None) -> float | None:
    """The CPU limit of one execution: the request's own (`{"kernelmcp": {"cpu_seconds": 10}}` in its metadata),
    otherwise the kernel's."""
    ours = _ours(metadata)
    if "cpu_seconds" not in ours:
        return settings().cpu_seconds
    seconds = ours["cpu_seconds"]
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def quota(metadata: Content | None) -> Quota:
    """The guest's storage quota from now on: from the request's metadata (`{"kernelmcp": {"workspace_bytes": 10000000,
    "max_files": 100}}`), otherwise the kernel's own setting."""
    wanted = _ours(metadata)
    size, files = wanted.get("workspace_bytes"), wanted.get("max_files")
    usual = settings().quota
    return Quota(
        size if isinstance(size, int) and size >= 0 else usual.max_bytes,
        files if isinstance(files, int) and files > 0 else usual.max_files,
    )


def wants_views(metadata: Content | None) -> bool:
    """Whether the client shows objects in a page, which needs more forms of them (`{"kernelmcp": {"views": true}}`)."""
    return _ours(metadata).get("views") is True


def named_request(metadata: Content | None) -> str | None:
    """The execution that an interrupt_request is for: `{"kernelmcp": {"msg_id": ...}}` in its metadata.

    None: any execution that runs.
    """
    named = _ours(metadata).get("msg_id")
    return named if isinstance(named, str) else None


def grace_seconds(metadata: Content | None) -> float | None:
    """How long a cell may continue after an interrupt_request before its guest is ended: `{"kernelmcp":
    {"grace_seconds": ...}}` in the request's metadata. None: no limit, if it has noticed the interrupt."""
    seconds = _ours(metadata).get("grace_seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def checked_reply(reply: Content) -> Content:
    """The guest's execute_reply, reduced to the fields that a reply may have."""
    sent: Any = reply.get("payload")
    payload: list[Any] = [
        item for item in cast("list[Any]", sent if isinstance(sent, list) else []) if isinstance(item, dict)
    ]
    payload = [item for item in payload if str(cast("Content", item).get("source")) in _PAYLOADS]
    expressions = reply.get("user_expressions")
    rest: Content = {"user_expressions": expressions if isinstance(expressions, dict) else {}, "payload": payload}
    if reply.get("status") == "ok":
        return {"status": "ok", **rest}
    error = error_content(reply) or {
        "ename": "GuestFault",
        "evalue": "the guest sent a malformed reply",
        "traceback": [],
    }
    return {"status": "error", **error, **rest}
