"""Runs a cell: IPython's own steps, synchronously unless the cell awaits, and always returns a reply."""

# IPython and Pyodide declare much of the API used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportGeneralTypeIssues=false

import asyncio
import sys
from collections.abc import Awaitable
from contextvars import copy_context
from typing import Any

from IPython.core.interactiveshell import ExecutionResult

from kernelmcp_guest import blocking, memory, swallowed_interrupts
from kernelmcp_guest.interrupts import begin, interrupt
from kernelmcp_guest.ipython_shell import GuestShell, encode_bundle
from kernelmcp_guest.out_stream import end_output
from kernelmcp_guest.plots import cell_figures
from kernelmcp_guest.running import running
from kernelmcp_guest.shown import for_views

# One per shell, as in ipykernel: a context variable that a cell sets (decimal precision, numpy's error handling) stays
# set in the next cell. Tasks get copies, so that those which a cell leaves behind keep its request.
context = copy_context()


def execute(
    code: str,
    silent: bool,
    store_history: bool,
    user_expressions: dict[str, str],
    allow_stdin: bool,
    execution_count: int,
    parent: dict[str, Any] | None = None,
    idents: dict[str, list[str]] | None = None,
    control: dict[str, Any] | None = None,
    views: bool = False,
) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Run a cell; `parent` is the header of its message, `control` that of the last one on the control channel, and
    `idents` the routing ids of their senders. `views`: the client shows objects in a page.

    Returns the content of the execute_reply, or a coroutine of it if the cell awaits.
    """
    memory.hold()
    shell = GuestShell.instance()
    shell.execution_count = execution_count
    shell.last_error = shell.result_error = None
    shell.interrupted = False
    shell.kernel.parent.set(parent)
    shell.kernel.note_channels(idents or {}, control or {})
    blocking.stdin_allowed = allow_stdin
    for_views.wanted.now = views
    cell_figures.begin()
    transformed, failure = code, None
    try:
        transformed = shell.transform_cell(code)
    except Exception:  # noqa: BLE001  # a magic of the user's may raise anything
        failure = sys.exc_info()
    cell = shell.run_cell_async(
        code,
        store_history=store_history and not silent,
        silent=silent,
        transformed_cell=transformed,
        preprocessing_exc_tuple=failure,
    )
    if shell.should_run_async(code, transformed_cell=transformed, preprocessing_exc_tuple=failure):
        return _execute_async(shell, cell, silent, user_expressions)
    return _execute_sync(shell, cell, silent, user_expressions)


def _execute_sync(shell: GuestShell, cell: Any, silent: bool, user_expressions: dict[str, str]) -> dict[str, Any]:
    result, escaped = None, None
    try:
        cell.send(None)  # without an await, the coroutine ends at the first step
    except StopIteration as stop:
        result = stop.value
    except BaseException as error:  # noqa: BLE001  # an interrupt in IPython's own frames, or a broken shell
        escaped = error
    return _finish(shell, result, escaped, silent, user_expressions)


async def _execute_async(
    shell: GuestShell, cell: Any, silent: bool, user_expressions: dict[str, str]
) -> dict[str, Any]:
    result, escaped = None, None
    running.task = asyncio.get_event_loop().create_task(cell, context=context)
    running.cancelled = False
    try:
        if begin():
            interrupt()
        result = await running.task
    except BaseException as error:  # noqa: BLE001  # whatever it is, the request gets its reply
        escaped = error
    running.task = None
    try:
        return context.run(_finish, shell, result, escaped, silent, user_expressions)
    finally:
        running.active = False
        swallowed_interrupts.forget()


def _finish(
    shell: GuestShell,
    result: ExecutionResult | None,
    escaped: BaseException | None,
    silent: bool,
    user_expressions: dict[str, str],
) -> dict[str, Any]:
    """The reply of a cell that has ended, in whatever way."""
    if escaped is None and result is not None:
        escaped = result.error_before_exec or result.error_in_exec
    escaped = _end_output(escaped)
    if escaped is not None and shell.last_error is None:
        memory.release()
        shell.showtraceback((type(escaped), escaped, escaped.__traceback__))
    if escaped is not None and shell.last_error is None:
        # IPython could not format it: the reply must not be a success.
        shell.show_name(escaped)
    if escaped is not None:
        memory.forget(escaped)
    if not_drawn := cell_figures.finish(shell):
        escaped = _interrupt_in_drawing(shell, escaped, not_drawn)
    shell.events.trigger("post_execute")
    if not silent and result is not None:
        shell.events.trigger("post_run_cell", result)
    payload = list(shell.payload_manager.read_payload())
    shell.payload_manager.clear_payload()
    # If `display` failed, the cell continued, and it is no error of the cell; an error in its last expression is.
    error = shell.last_error if escaped is not None else shell.result_error
    if error is not None:
        return {"status": "error", **error, "user_expressions": {}, "payload": payload}
    values = shell.user_expressions(user_expressions)
    for value in values.values():
        if "data" in value:
            value["data"] = encode_bundle(value["data"])
    return {"status": "ok", "user_expressions": values, "payload": payload}


def _end_output(escaped: BaseException | None) -> BaseException | None:
    """End the output of a cell. Returns its error, which may be an interrupt meanwhile."""
    try:
        end_output()
    except KeyboardInterrupt as error:
        swallowed_interrupts.take()
        return error if escaped is None else escaped
    return escaped


def _interrupt_in_drawing(shell: GuestShell, escaped: BaseException | None, said: str) -> BaseException:
    """The error of a cell that was interrupted before some of its figures were drawn."""
    swallowed_interrupts.take()
    if escaped is not None:
        sys.stderr.write(f"{said}\n")
        return escaped
    interrupted = KeyboardInterrupt(said)
    shell.show_line(interrupted)
    return interrupted
