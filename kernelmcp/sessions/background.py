"""Runs work that goes on when the call which asked for it ends, and whose errors never end the server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio.abc
import structlog

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


async def complete(tasks: anyio.abc.TaskGroup, work: Callable[[], Awaitable[Result]]) -> Result:
    """Run `work` to its end even when the caller is cancelled while it waits. Raises what it raises."""
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
            outcome.cancel()  # when the server ends; otherwise the outcome is there already

    tasks.start_soon(run)
    return await asyncio.shield(outcome)


def start(tasks: anyio.abc.TaskGroup, what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` in the background. What it raises is logged and must not end the server."""

    async def run() -> None:
        try:
            await work()
        except Exception:
            log.exception("background work failed", what=what)

    tasks.start_soon(run)
