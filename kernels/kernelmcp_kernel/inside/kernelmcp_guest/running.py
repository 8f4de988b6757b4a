"""The request that runs now."""

import asyncio
from typing import Any


class _Running:
    """Its id, its task when it awaits, whether the user's code has begun (`active`)."""

    active = False
    early = False
    request = ""
    task: asyncio.Task[Any] | None = None
    cancelled = False


running = _Running()
