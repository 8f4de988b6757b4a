"""What the kernel process can ask of the guest: one function for each operation, named as its Jupyter message.

`handle` decodes a request, runs its function and sends the reply; `notify` does so for a comm message that comes while
a cell waits, and has no reply. `interrupt` is called by the host while a cell waits, `end_background` when none runs.
"""

# IPython and Pyodide declare much of what is used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportGeneralTypeIssues=false

import asyncio
import inspect as python_inspect
import json
import sys
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.interactiveshell import ExecutionResult
from IPython.utils.tokenutil import token_at_cursor

from kernelmcp_guest import blocking, comms, memory, noticing
from kernelmcp_guest.bridge import bridge, request_id, send
from kernelmcp_guest.shell import GuestShell, encode_bundle

# The kernel process starts another guest, and says what happened.
EXIT_OUT_OF_MEMORY = 71


class _Running:
    """What runs now. An interrupt that comes before the user's code has begun waits for it."""

    active = False
    early = False
    request = ""
    task: asyncio.Task[Any] | None = None
    cancelled = False


running = _Running()

# One for the shell, as in ipykernel: a context variable that a cell sets (the precision of decimals, numpy's handling
# of errors) is set in the next cell. Tasks get copies, so what a cell leaves behind keeps the request it belongs to.
_context = copy_context()


def on_interrupt_signal(signum: int, frame: object) -> None:
    """SIGINT's handler: raise in the cell, or cancel its task when other code has the event loop."""
    if not running.active:
        running.early = True
        return
    GuestShell.instance().interrupted = True
    task = running.task
    if task is None or asyncio.current_task() is task:
        noticing.raise_watched()
    running.cancelled = True
    task.cancel()


def on_stuck_signal(signum: int, frame: object) -> None:
    """SIGUSR1's handler: the event loop has not turned since the interrupt. Another task holds it, or the interrupt was
    thrown away by C code."""
    if not running.active:
        return
    if running.cancelled:
        running.cancelled = False
        raise KeyboardInterrupt
    noticing.raise_again()


def on_swallowed(unraisable: Any) -> None:
    """sys.unraisablehook: an interrupt that came in a `__del__` or the like has not reached the cell: once more."""
    sys.__unraisablehook__(unraisable)
    if issubclass(unraisable.exc_type, KeyboardInterrupt) and running.active:
        bridge.interrupt_again()


def on_loop_interrupted() -> None:
    """A callback or a task has ended with KeyboardInterrupt: it was meant for the cell that waits."""
    if running.active:
        interrupt()


def interrupt() -> None:
    """Interrupt a cell that waits: for the event loop, for a host call, or inside run_until_complete."""
    if not running.active:
        running.early = True
        return
    GuestShell.instance().interrupted = True
    blocked = blocking.interrupt(running.request)
    if running.task is not None and running.task not in blocked:
        running.task.cancel()
        blocking.cancel_blocked()


def end_background() -> None:
    """Cancel what earlier cells have left behind: it has used its share of the processor."""
    if running.active:
        return
    for wait in list(blocking.waits):
        wait.interrupt()
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        task.cancel()


def on_background_signal(signum: int, frame: object) -> None:
    """SIGUSR2's handler: the same when a task holds the event loop."""
    end_background()
    if not running.active:
        raise KeyboardInterrupt


def _begin() -> bool:
    """The user's code begins. True: it is interrupted already (and not the request before, a moment too late)."""
    early, running.active, running.early = running.early, True, False
    return early and bridge.was_interrupted()


def execute(
    code: str,
    silent: bool,
    store_history: bool,
    user_expressions: dict[str, str],
    allow_stdin: bool,
    execution_count: int,
    parent: dict[str, Any] | None = None,
) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Run a cell; `parent` is the header of its message.

    Returns the content of the execute_reply, or a coroutine of it when the cell awaits.
    """
    memory.hold()
    shell = GuestShell.instance()
    shell.execution_count = execution_count
    shell.last_error = shell.result_error = None
    shell.interrupted = False
    shell.kernel.parent.set(parent)
    blocking.stdin_allowed = allow_stdin
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
        cell.send(None)  # without an await in it, the coroutine ends at the first step
    except StopIteration as stop:
        result = stop.value
    except BaseException as error:  # noqa: BLE001  # an interrupt in IPython's own frames, or a broken shell
        escaped = error
    return _finish(shell, result, escaped, silent, user_expressions)


async def _execute_async(
    shell: GuestShell, cell: Any, silent: bool, user_expressions: dict[str, str]
) -> dict[str, Any]:
    result, escaped = None, None
    running.task = asyncio.get_event_loop().create_task(cell, context=_context)
    running.cancelled = False
    try:
        if _begin():
            interrupt()
        result = await running.task
    except BaseException as error:  # noqa: BLE001  # whatever it is, the request gets its reply
        escaped = error
    running.task = None
    try:
        return _context.run(_finish, shell, result, escaped, silent, user_expressions)
    finally:
        running.active = False
        noticing.forget()


def _finish(
    shell: GuestShell,
    result: ExecutionResult | None,
    escaped: BaseException | None,
    silent: bool,
    user_expressions: dict[str, str],
) -> dict[str, Any]:
    """The reply of a cell that has ended, however it ended."""
    if escaped is None and result is not None:
        escaped = result.error_before_exec or result.error_in_exec
    if escaped is not None and shell.last_error is None:
        memory.release()
        shell.showtraceback((type(escaped), escaped, escaped.__traceback__))
    if escaped is not None and shell.last_error is None:
        # IPython could not format it: the error must not pass for success.
        shell.show_name(escaped)
    if escaped is not None:
        memory.forget(escaped)
    shell.events.trigger("post_execute")
    if not silent and result is not None:
        shell.events.trigger("post_run_cell", result)
    payload = list(shell.payload_manager.read_payload())
    shell.payload_manager.clear_payload()
    # What `display` could not show is no error of the cell, which went on; what the cell ends with is.
    error = shell.last_error if escaped is not None else shell.result_error
    if error is not None:
        return {"status": "error", **error, "user_expressions": {}, "payload": payload}
    values = shell.user_expressions(user_expressions)
    for value in values.values():
        if "data" in value:
            value["data"] = encode_bundle(value["data"])
    return {"status": "ok", "user_expressions": values, "payload": payload}


def complete(code: str, cursor_pos: int) -> dict[str, Any]:
    """complete_request; `cursor_pos` counts code points."""
    with provisionalcompleter():
        found = list(rectify_completions(code, GuestShell.instance().Completer.completions(code, cursor_pos)))
    types = [{"start": c.start, "end": c.end, "text": c.text, "type": c.type, "signature": c.signature} for c in found]
    return {
        "status": "ok",
        "matches": [c.text for c in found],
        "cursor_start": found[0].start if found else cursor_pos,
        "cursor_end": found[0].end if found else cursor_pos,
        "metadata": {"_jupyter_types_experimental": types},
    }


def inspect(code: str, cursor_pos: int, detail_level: int) -> dict[str, Any]:
    """inspect_request: the docstring, or with detail_level 1 the source, of the name at the cursor."""
    name = token_at_cursor(code, cursor_pos)
    try:
        bundle = GuestShell.instance().object_inspect_mime(name, detail_level=detail_level)
    except KeyError:
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    return {"status": "ok", "found": True, "data": encode_bundle(bundle), "metadata": {}}


def is_complete(code: str) -> dict[str, Any]:
    """is_complete_request."""
    status, indent = GuestShell.instance().input_transformer_manager.check_complete(code)
    return {"status": status, "indent": " " * (indent or 0)} if status == "incomplete" else {"status": status}


def comm_message(
    msg_type: str, content: dict[str, Any], metadata: dict[str, Any], parent: dict[str, Any]
) -> dict[str, Any]:
    """comm_open, comm_msg or comm_close from the frontend; `parent` is the message's header."""
    GuestShell.instance().kernel.parent.set(parent)
    comms.comm_message(msg_type, content, metadata)
    return {}


def comm_info(target_name: str | None) -> dict[str, Any]:
    """comm_info_request."""
    return {"status": "ok", "comms": comms.comm_info(target_name)}


OPERATIONS: dict[str, Callable[..., Any]] = {
    "execute": execute,
    "complete": complete,
    "inspect": inspect,
    "is_complete": is_complete,
    "comm_message": comm_message,
    "comm_info": comm_info,
}


def handle(text: str) -> Awaitable[None] | None:
    """Run one request frame (JSON text) and send its reply. The host awaits what it returns."""
    return _context.run(_handle, json.loads(text))


def _handle(request: dict[str, Any]) -> Awaitable[None] | None:
    running.request = request["id"]
    request_id.set(request["id"])
    try:
        if _begin():  # completions, display hooks and event handlers are the user's code, too
            raise KeyboardInterrupt
        content = OPERATIONS[request["op"]](**request["content"])
    except KeyboardInterrupt:
        content = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
    finally:
        running.active = False
        noticing.forget()
    if python_inspect.isawaitable(content):
        return _reply_later(request["id"], content)
    _reply(content)
    return None


def notify(text: str) -> None:
    """A comm message while a cell waits. It has a context of its own, because the cell is in the shell's."""
    copy_context().run(_notify, json.loads(text))


def _notify(request: dict[str, Any]) -> None:
    request_id.set(request["id"])
    try:
        OPERATIONS[request["op"]](**request["content"])
    except Exception:  # noqa: BLE001  # a callback of the user's
        GuestShell.instance().showtraceback()


def _reply(content: dict[str, Any]) -> None:
    if not memory.usable():
        bridge.exit(EXIT_OUT_OF_MEMORY)
    send("reply", **content)


async def _reply_later(request: str, content: Awaitable[dict[str, Any]]) -> None:
    request_id.set(request)  # the host runs this as a task of its own, with a context of its own
    _reply(await content)
