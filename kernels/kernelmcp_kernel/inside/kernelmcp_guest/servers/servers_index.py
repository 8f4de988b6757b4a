"""The offer to this kernel, as described in /servers: the kernel process may replace the files at any moment.

If the index file has changed, it is read again, and functions made from the earlier files are dropped. Without an
index, nothing is offered.
"""

import json
import os
from typing import Any, NotRequired, TypedDict

ROOT = "/servers"
INDEX = f"{ROOT}/index.json"
NO_OFFER = "no MCP servers are offered to this kernel"


class Server(TypedDict):
    """A server in the index."""

    name: str
    about: str
    tools: dict[str, list[str]]
    """By their names here: own name, signature, result, description."""
    denied: NotRequired[dict[str, str]]
    """The own names of tools that the client refuses to call, by their names here: they are not listed."""


class _Offered:
    """The index, and the functions created from the files, by module name."""

    def __init__(self) -> None:
        self.stamp: tuple[int, ...] | None = None
        self.servers: dict[str, Server] | None = None
        self.connecting: list[str] = []
        self.note = ""
        self.made: dict[str, Any] = {}


_offered = _Offered()


def current() -> dict[str, Server] | None:
    """The servers, by their names here; None if there is no offer."""
    try:
        status = os.stat(INDEX)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != _offered.stamp:
            with open(INDEX, encoding="utf-8") as file:
                index = json.load(file)
            _forget()
            _offered.servers, _offered.stamp = index["servers"], stamp
            _offered.connecting, _offered.note = index.get("connecting", []), index.get("note", "")
    except (OSError, ValueError, KeyError):
        _forget()
    return _offered.servers


def connecting() -> list[str]:
    """The servers of `current` that have no tools yet."""
    return _offered.connecting


def note() -> list[str]:
    """A line about these servers, if there are any."""
    return [_offered.note] if _offered.note else []


def made() -> dict[str, Any]:
    """The functions created from the files of this offer; filled by the caller."""
    return _offered.made


def _forget() -> None:
    _offered.servers, _offered.stamp, _offered.made = None, None, {}
    _offered.connecting, _offered.note = [], ""
