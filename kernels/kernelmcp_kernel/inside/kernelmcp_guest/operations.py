"""The requests of the kernel process to the guest: one function per operation, named like its Jupyter message.

`handle` decodes a request, runs its function and sends the reply; `notify` does so for a comm message that arrives
while a cell waits, and only tells that it is done.
"""

# IPython and Pyodide declare much of the API used here without types that a checker understands.
# pyright: reportOptionalMemberAccess=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import inspect as python_inspect
import json
import os
import pkgutil
import sys
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from IPython.core import completerlib
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor

from kernelmcp_guest import comms, memory, swallowed_interrupts
from kernelmcp_guest.bridge import bridge, request_id, send
from kernelmcp_guest.execute_cell import context, execute
from kernelmcp_guest.interrupts import begin, on_loop_interrupted
from kernelmcp_guest.ipython_shell import GuestShell, encode_bundle
from kernelmcp_guest.programs.environment_variables import environment_changes
from kernelmcp_guest.programs.run import run_program
from kernelmcp_guest.running import running

# The exit status that tells the kernel process the reason (guests/death.py). It then starts another guest.
EXIT_OUT_OF_MEMORY = 71


def root_modules() -> list[str]:
    """Names of importable top-level modules. IPython's own function does not search the standard library's zip file."""
    return sorted({*sys.builtin_module_names, *(found.name for found in pkgutil.iter_modules())})


completerlib.get_root_modules = root_modules


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


def environment() -> dict[str, Any]:
    """What code has changed of the environment variables, for the session's shell."""
    return {"status": "ok", **environment_changes(os.environ)}


OPERATIONS: dict[str, Callable[..., Any]] = {
    "execute": execute,
    "complete": complete,
    "inspect": inspect,
    "is_complete": is_complete,
    "comm_message": comms.comm_message,
    "comm_info": comms.comm_info,
    "run_program": run_program,
    "environment": environment,
}


def handle(text: str) -> Awaitable[None] | None:
    """Run one request frame (JSON text) and send its reply. The host awaits the returned value."""
    return context.run(_handle, json.loads(text))


def _handle(request: dict[str, Any]) -> Awaitable[None] | None:
    running.request = request["id"]
    request_id.set(request["id"])
    try:
        # Completions, display hooks and event handlers are also the user's code. Who asks for the environment may have
        # given up, and the interrupt is the next request's.
        if request["op"] != "environment" and begin():
            raise KeyboardInterrupt
        content = OPERATIONS[request["op"]](**request["content"])
    except KeyboardInterrupt:
        content = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
    finally:
        running.active = False
        swallowed_interrupts.forget()
    if python_inspect.isawaitable(content):
        return _reply_later(request["id"], content)
    _reply(content)
    return None


def notify(text: str) -> None:
    """Handle a comm message while a cell waits. It has its own context, because the cell runs in the shell's."""
    copy_context().run(_notify, json.loads(text))


def _notify(request: dict[str, Any]) -> None:
    request_id.set(request["id"])
    try:
        OPERATIONS[request["op"]](**request["content"])
    except Exception:  # noqa: BLE001  # a callback of the user's
        GuestShell.instance().showtraceback()
    except KeyboardInterrupt:
        GuestShell.instance().showtraceback()
        on_loop_interrupted()
    finally:
        send("comm_done")


def _reply(content: dict[str, Any]) -> None:
    if not memory.usable():
        bridge.exit(EXIT_OUT_OF_MEMORY)
    send("reply", **content)


async def _reply_later(request: str, content: Awaitable[dict[str, Any]]) -> None:
    request_id.set(request)  # the host runs this as a separate task, with its own context
    _reply(await content)
