"""Waits for an execution, and shows the client its new output meanwhile; or for what its user replies to a question.

A call over HTTP has a time limit, by which it answers that the execution still runs.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from mcp.server.mcpserver import Context

from kernelmcp.executions.execution import Execution
from kernelmcp.executions.listener import Listener
from kernelmcp.mcp_server.callers import ANSWER_BY_KEY, CLOSING_KEY, GONE_KEY

# At most ten notifications a second: more is noise to a person and work for a client.
INTERVAL_SECONDS = 0.1
Reply = TypeVar("Reply")


async def wait_for(execution: Execution, seconds: float, context: Context[Any, Any], *asked: asyncio.Event) -> None:
    """Wait until it has ended, or `seconds` have passed, or it has `asked` a question, or the client ends its
    connection and wants an answer at once, or has lost it."""
    if execution.done.is_set() or any(event.is_set() for event in asked):
        return
    meta, scope = context.request_context.meta, _scope(context)
    wants_progress = bool(meta) and meta.get("progress_token", meta.get("progressToken")) is not None
    wait = _report(execution, context) if wants_progress else execution.done.wait()
    of_request = [scope[key] for key in (CLOSING_KEY, GONE_KEY) if key in scope]
    ends = [event.wait() for event in (*of_request, *asked)]
    seconds = min(seconds, _seconds_left(context))
    if ends:
        await _wait_for_first([wait, *ends], seconds)
    else:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wait


async def reply_to(
    ask: Callable[[], Coroutine[Any, Any, Reply]], settled: "asyncio.Future[Any]", context: Context[Any, Any]
) -> Reply | None:
    """What the user replies. None if the question is settled elsewhere, or the call must answer before the user. Raises
    what `ask` raises."""
    scope, seconds = _scope(context), _seconds_left(context)
    # A client that has gone is not asked; but one that was asked, and lost the response since, can still reply.
    if not seconds or any(key in scope and scope[key].is_set() for key in (CLOSING_KEY, GONE_KEY)):
        return None
    asking = asyncio.ensure_future(ask())
    closing = [asyncio.ensure_future(scope[CLOSING_KEY].wait())] if CLOSING_KEY in scope else []
    try:
        waits = [asking, settled, *closing]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() and not settled.done() else None
    finally:
        for task in (asking, *closing):
            task.cancel()


def _scope(context: Context[Any, Any]) -> dict[str, Any]:
    """The ASGI scope of its request; empty if it came otherwise."""
    request = context.request_context.request
    return request.scope if request is not None else {}


def _seconds_left(context: Context[Any, Any]) -> float:
    """Time that its call has to answer."""
    return max(_scope(context).get(ANSWER_BY_KEY, math.inf) - asyncio.get_running_loop().time(), 0.0)


async def wait_for_news(execution: Execution, seconds: float, context: Context[Any, Any]) -> None:
    """Wait until it has new outputs or has ended, or `seconds` have passed, or the client ends its connection."""
    request = context.request_context.request
    closing = request.scope.get(CLOSING_KEY) if request is not None else None
    with execution.listening() as listener:
        events = [listener.has_news, execution.done, *([closing] if closing is not None else [])]
        await _wait_for_first([event.wait() for event in events], seconds)


async def _wait_for_first(waits: Iterable[Coroutine[Any, Any, object]], seconds: float) -> None:
    """Wait until one of them has ended, or `seconds` have passed; the others are cancelled. Raises what they raise."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ended:
        if isinstance(end, Exception):
            raise end


async def _report(execution: Execution, context: Context[Any, Any]) -> None:
    number = 0
    with execution.listening() as listener:
        done = asyncio.ensure_future(execution.done.wait())
        try:
            while not done.done():
                await _wait_for_news(listener, done)
                if text := listener.take():
                    number += 1
                    await context.report_progress(number, None, text)
                    # Text that arrives meanwhile goes into one message.
                    await asyncio.wait([done], timeout=INTERVAL_SECONDS)
        finally:
            done.cancel()
        if text := listener.take():
            await context.report_progress(number + 1, None, text)


async def _wait_for_news(listener: Listener, done: "asyncio.Future[Any]") -> None:
    news = asyncio.ensure_future(listener.has_news.wait())
    try:
        await asyncio.wait([news, done], return_when=asyncio.FIRST_COMPLETED)
    finally:
        news.cancel()
