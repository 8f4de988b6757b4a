"""Runs work that continues after the call that requested it has ended; its errors never stop the server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio.abc
import structlog

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


async def complete(tasks: anyio.abc.TaskGroup, work: Callable[[], Awaitable[Result]]) -> Result:
    """Run `work` to its end even if the caller is cancelled meanwhile. Raises what `work` raises."""
    outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await work()
        except Exception as exc:  # noqa: BLE001  # raised again in the caller
            if not outcome.done():
                outcome.set_exception(exc)
        else:
            if not outcome.done():
                outcome.set_result(result)
        finally:
            outcome.cancel()  # when the server ends; otherwise the outcome is already set

    tasks.start_soon(run)
    return await asyncio.shield(outcome)


def start(tasks: anyio.abc.TaskGroup, what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` in the background. Its exceptions are logged and must not stop the server."""

    async def run() -> None:
        try:
            await work()
        except Exception:
            log.exception("background work failed", what=what)

    tasks.start_soon(run)
