"""Conditions under which a session cannot be saved: code that waits in JavaScript, which no saved heap contains."""

# Pyodide declares much of the API used here without types that a checker understands.
# pyright: reportAbstractUsage=false, reportAttributeAccessIssue=false

import asyncio
import gc
import json
from collections.abc import Callable
from contextvars import Context
from typing import Any
from weakref import ref

from pyodide.webloop import WebLoop

from kernelmcp_guest import blocking
from kernelmcp_guest.programs.interpreter_state import running_programs

# Tasks that a reason names.
_MAX_NAMED = 5

_call_later = WebLoop.call_later

_timers: dict[object, ref[asyncio.Handle]] = {}
"""Callbacks of the event loop that have not run, by a token. JavaScript's timers hold the handles. There is no
reference cycle, so that a handle whose callback has run is freed at once: it may hold JavaScript objects."""


def call_later(
    self: WebLoop, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
) -> asyncio.Handle:
    """WebLoop.call_later that is counted; call_soon and call_at use it, too."""
    token = object()

    def run(*given: Any) -> None:
        _timers.pop(token, None)
        callback(*given)

    handle = _call_later(self, delay, run, *args, context=context)
    _timers[token] = ref(handle, lambda _: _timers.pop(token, None))
    return handle


def install() -> None:
    """Count the event loop's timers."""
    WebLoop.call_later = call_later


def reasons_against_saving(*, collect: bool) -> str:
    """The reasons why the session cannot be saved now, as a JSON list of texts for a person. `collect`: without the
    garbage, some of which refers to JavaScript objects, or is a task that nobody waits for; that may take a second."""
    if collect:
        gc.collect()
    reasons: list[str] = []
    if blocking.waits:
        reasons.append("a call waits for its answer")
    if running_programs:
        reasons.append("a program runs")
    tasks = [task for task in asyncio.all_tasks(asyncio.get_event_loop()) if not task.done()]
    if tasks:
        names = ", ".join(sorted(_name(task) for task in tasks)[:_MAX_NAMED])
        reasons.append(
            f"a task is under way: {names}" if len(tasks) == 1 else f"{len(tasks)} tasks are under way: {names}"
        )
    handles = [each() for each in _timers.values()]
    timers = sum(handle is not None and not handle.cancelled() for handle in handles)
    if timers and not tasks:  # a task that sleeps has one, too
        reasons.append(f"{_count(timers, 'timer is', 'timers are')} due later")
    return json.dumps(reasons)


def _count(number: int, one: str, many: str) -> str:
    return f"a {one}" if number == 1 else f"{number} {many}"


def _name(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))
