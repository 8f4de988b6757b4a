"""The running request."""

import asyncio
from typing import Any


class _Running:
    """Its id, its task if it awaits, and whether the user's code has begun (`active`)."""

    active = False
    early = False
    request = ""
    task: asyncio.Task[Any] | None = None
    cancelled = False


running = _Running()
