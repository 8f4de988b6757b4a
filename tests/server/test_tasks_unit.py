"""Which executions `tasks/cancel` marks as cancelled by their client, and that later servers know it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.extensions.tasks import TaskParams, Tasks
from kernelmcp.sessions.session import Session

from .fake_kernels import CALLER, LONG, opened, settings_of

pytestmark = pytest.mark.anyio


class TasksOf(Tasks):
    """The task is an execution of this session; cancelling it is refused with this error."""

    def __init__(self, session: Session, execution: Execution, error: Exception | None) -> None:
        nobody: Any = None
        tools = cast("Any", SimpleNamespace(cancel_execution=self.cancel_execution))
        super().__init__(nobody, nobody, nobody, nobody, tools)
        self._session, self._execution, self._error = session, execution, error

    @asynccontextmanager
    async def _about(self, ctx: Any, task_id: str) -> AsyncIterator[tuple[Execution, Any]]:
        yield self._execution, None

    async def cancel_execution(self, _: Any, *, execution_id: str) -> None:
        if self._error is not None:
            raise self._error
        self._session.queue.interrupt(self._execution)
        await self._execution.done.wait()


@pytest.mark.parametrize("how", ["running", "waiting", "refused", "interrupted before", "over"])
async def test_only_what_its_client_has_cancelled_is_so_for_later_servers(tmp_path: Path, how: str) -> None:
    async with opened(settings_of(tmp_path)) as (registry, _):
        with anyio.fail_after(20):
            session, _ = await registry.find_or_create(CALLER, "s")
            executions = [session.submit(code, None) for code in ("1" if how == "over" else LONG, LONG)]
            execution = executions[how == "waiting"]
            session.log.flush()
            await (executions[0].done.wait() if how == "over" else anyio.wait_all_tasks_blocked())
            assert executions[0].started is not None
            tasks = TasksOf(session, execution, InvalidArgument("no", "") if how == "refused" else None)
            params = TaskParams(task_id=execution.id)
            if how == "interrupted before":
                session.queue.interrupt(execution)
            if how == "refused":
                with pytest.raises(InvalidArgument):
                    await tasks.cancel(cast("Any", None), params)
                session.queue.interrupt(execution)
            else:
                await tasks.cancel(cast("Any", None), params)
                await tasks.cancel(cast("Any", None), params)
            await execution.done.wait()
            session.log.flush()
            found = registry.stored.find_execution(CALLER, execution.id)
            assert isinstance(found, Execution)
            expected = how in ("running", "waiting")
            assert (execution.cancelled_as_task, found.cancelled_as_task) == (expected, expected)
            session.queue.interrupt_all()
