"""When a session is checkpointed by itself: after a cell, once its reply has been sent and the session is idle."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio.abc

from kernelmcp.sessions import background

# Cells that come faster than this are not checkpointed in between.
IDLE_SECONDS = 0.5
# A client that is about to end its server may kill it two seconds later.
SECONDS_BETWEEN = 2.0
# Checkpoints take at most a twentieth of the time.
REST = 19.0


class AutomaticCheckpoints:
    """Schedules the automatic checkpoints of one session; `make` makes one, if the session is idle."""

    def __init__(self, tasks: anyio.abc.TaskGroup, make: Callable[[], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._make = make
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._is_closed = False

    def make_soon(self) -> None:
        """The session has changed."""
        if self._is_closed:
            return
        self._cancel()
        loop = asyncio.get_running_loop()
        due = max(loop.time() + IDLE_SECONDS, self._not_before)
        self._timer = loop.call_at(due, background.start, self._tasks, "making an automatic checkpoint", self._run)

    def close(self) -> None:
        self._is_closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            return
        began = loop.time()
        try:
            await self._make()
        finally:
            ended = loop.time()
            self._not_before = ended + max(SECONDS_BETWEEN, REST * (ended - began))
