"""One execution as the kernel process sees it. Host calls and output both belong to an execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Cell:
    """One execution: the message that its output answers, and how much it has sent."""

    parent: dict[str, Any]
    ident: Any = None  # the client's ZMQ routing id, for input requests
    silent: bool = False
    allow_stdin: bool = False
    request_id: str = ""
    """Of the request to the guest, which nobody but this guest can know."""
    host_calls: frozenset[str] = frozenset()
    """What its guest may call."""
    interrupted: bool = False
    stream_chars: int = 0
    display_bytes: int = 0
    messages: int = 0
    dropped: int = 0
    files: dict[str, None] = field(default_factory=dict[str, None])
    """Paths in the workspace that the guest says it has written. It may be lying: nothing has checked it."""
