"""A cell that waited while its server stood still: another server has the session by then, and it is not run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernelmcp.cells.cell import Outputs
from kernelmcp.errors import SessionInUse
from kernelmcp.executions.execution import Execution
from kernelmcp.sessions.life import Event, Life
from kernelmcp.sessions.queue import ExecutionQueue
from kernelmcp.sessions.storage.record import Record, now

pytestmark = pytest.mark.anyio


class Binding:
    """It has a kernel."""

    kernel = "a kernel"

    async def bind(self) -> str:
        return self.kernel


class Persons:
    async def wait_idle(self, _cancelled: asyncio.Event) -> None:
        """Nobody else uses the kernel."""


async def test_what_was_taken_over_while_the_server_looked_is_not_begun() -> None:
    queue: Any = ExecutionQueue.__new__(ExecutionQueue)
    queue._cancelled, queue.persons, queue.turn, queue.binding = asyncio.Event(), Persons(), asyncio.Lock(), Binding()
    queue._record = Record(session_id="s", principal="local", created_at=now(), last_used_at=now())
    queue.life = Life("s")
    for event in (Event.KERNEL_WANTED, Event.KERNEL_READY):
        queue.life.note(event)
    execution = Execution("s", "local", "1", 1.0, Outputs())

    async def confirm() -> None:
        queue.life.note(Event.DESTROY)  # as `Registry.give_up`

    execution.confirm = confirm
    assert await queue._bind(execution) is None
    assert execution.done.is_set()
    assert isinstance(execution.failure, SessionInUse)
    assert execution.started is None
