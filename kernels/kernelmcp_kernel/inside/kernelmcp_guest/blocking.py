"""Blocking calls: `time.sleep`, `input`, `getpass`, `run_until_complete`, `asyncio.Runner`, `run_sync`.

All can be interrupted. With JSPI (stack switching) a Python frame can wait for a JavaScript promise: `input` and
`run_until_complete` do, and the event loop continues meanwhile. `time.sleep` blocks the event loop, as in any Python,
in short naps that notice an interrupt.
"""

# IPython and Pyodide declare much of the API used here without types that a checker understands.
# pyright: reportAbstractUsage=false, reportAttributeAccessIssue=false

import asyncio
import builtins
import getpass
import inspect
import json
import time
from collections.abc import Awaitable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Self

import pyodide.ffi
from IPython.core.error import StdinNotImplementedError
from pyodide.ffi import JsException, can_run_sync, run_sync
from pyodide.webloop import WebLoop

from kernelmcp_guest import swallowed_interrupts
from kernelmcp_guest.bridge import bridge, request_id

# Exceptions of a rejected promise, of a cancellation that crossed JavaScript, and of an interrupt in the C code before.
FAILED: tuple[type[Exception], ...] = (JsException, vars(pyodide.ffi)["ConversionError"])

_run: Any = asyncio.run
_run_until_complete = WebLoop.run_until_complete
stdin_allowed = False


# Each uses its own WebAssembly stack (runtime/node.py), and V8 ends the process if it has no space for another.
MAX_WAITS = 100


class Wait:
    """A blocking wait (`with Wait(task):`) for a task, which can be cancelled, or for a host call, which the host
    rejects. If it is interrupted, it ends with KeyboardInterrupt.

    `request` is the request for which it waits, and `waiter` the blocked task, if it is one.
    """

    def __init__(self, task: asyncio.Future[Any] | None = None) -> None:
        if len(waits) >= MAX_WAITS:
            raise RuntimeError(f"{MAX_WAITS} calls are waiting already, the maximum: await them instead")
        self.task = task
        self.request = request_id.get()
        self.waiter = asyncio.current_task()
        self.interrupted = False

    def interrupt(self) -> None:
        self.interrupted = True
        if self.task is not None:
            self.task.cancel()

    def __enter__(self) -> None:
        waits.append(self)

    def __exit__(self, kind: object, error: BaseException | None, entry: object) -> None:
        waits.remove(self)
        if isinstance(error, (asyncio.CancelledError, *FAILED)):
            # An interrupt in the C code before the wait turns a KeyboardInterrupt into another error.
            swallowed = swallowed_interrupts.take()
            if self.interrupted or swallowed:
                raise KeyboardInterrupt from None
        elif error is None and self.interrupted:  # the interrupt came in the same turn as the result
            raise KeyboardInterrupt


waits: list[Wait] = []


def interrupt(request: str) -> set[asyncio.Task[Any] | None]:
    """Interrupt all waits of a request; return the tasks that were blocked in them.

    Tasks left behind by an earlier cell are not included: they belong to another request.
    """
    own = [wait for wait in waits if wait.request == request]
    for wait in own:
        wait.interrupt()
    return {wait.waiter for wait in own}


def is_waiting(request: str) -> bool:
    """Return whether a cell without a task waits."""
    return any(wait.waiter is None and wait.request == request for wait in waits)


def cancel_blocked() -> None:
    """Cancel the waits of cancelled tasks (perhaps via their awaiter), which would notice it only when unblocked."""
    for wait in waits:
        if wait.task is not None and wait.waiter is not None and wait.waiter.cancelling():
            wait.task.cancel()


def is_awaited(error: BaseException) -> bool:
    """Return whether it ended a task that blocked code waits for."""
    done = [wait.task for wait in waits if wait.task is not None and wait.task.done() and not wait.task.cancelled()]
    return any(task.exception() is error for task in done)


def sleep(seconds: float, /) -> None:
    """time.sleep that can be interrupted."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        if bridge.nap(rest * 1000):
            raise KeyboardInterrupt


def check_can_wait(what: str) -> None:
    """Raise RuntimeError in code in which no frame can wait, such as a callback."""
    if not can_run_sync():
        raise RuntimeError(f"{what} cannot wait here: call it from a cell or a coroutine, not from a callback")


def ask_and_wait(what: str, text: str) -> str:
    """Make a host call, a JSON text, and wait for the answer.

    Raises KeyboardInterrupt if the cell is interrupted meanwhile, OSError if the host refuses.
    """
    check_can_wait(what)
    try:
        with Wait():
            return run_sync(bridge.ask(request_id.get(), text))
    except FAILED as error:
        raise OSError(error.message if isinstance(error, JsException) else str(error)) from None


def host_call(kind: str, **arguments: Any) -> Any:
    """Make a host call to the kernel process and wait for the answer. Raises the same errors as `ask_and_wait`."""
    return json.loads(ask_and_wait(f"{kind}()", json.dumps({"call": kind, **arguments})))


def run_sync_interruptible(awaitable: Awaitable[Any]) -> Any:
    """pyodide.ffi.run_sync that can be interrupted."""
    waits_for_task = isinstance(awaitable, asyncio.Future) or inspect.iscoroutine(awaitable)
    task = asyncio.ensure_future(awaitable) if waits_for_task else None
    with Wait(task):
        return run_sync(task or awaitable)


def _read_line(prompt: object, password: bool) -> str:
    if not stdin_allowed:
        raise StdinNotImplementedError("raw_input was called, but this frontend does not support input requests.")
    value = host_call("input", prompt=str(prompt), password=password)
    if value == "\x04":  # Ctrl-D, in the form that frontends send
        raise EOFError
    return value


def read_input(prompt: object = "", /) -> str:
    """input() through the Jupyter stdin channel."""
    return _read_line(prompt, password=False)


def read_password(prompt: str = "Password: ", stream: object = None, *, echo_char: str | None = None) -> str:
    """getpass.getpass through the Jupyter stdin channel."""
    return _read_line(prompt, password=True)


def run_until_complete(loop: WebLoop, future: Any) -> Any:
    """WebLoop.run_until_complete that can be interrupted."""
    if not can_run_sync():
        return _run_until_complete(loop, future)
    task = asyncio.ensure_future(future, loop=loop)
    with Wait(task):
        return _run_until_complete(loop, task)


_runner: ContextVar["Runner | None"] = ContextVar("runner", default=None)
"""The one for which code runs."""


class Runner(asyncio.Runner):  # pyright: ignore[reportGeneralTypeIssues]  # final; it stays an instance of it
    """asyncio.Runner on the only loop, which it does not own: closing it ends only its own tasks."""

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Cancel the tasks that its code has left. The loop continues."""
        if not can_run_sync():
            return
        loop = asyncio.get_event_loop()
        left = [task for task in asyncio.all_tasks(loop) if task.get_context().get(_runner) is self]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_event_loop()

    def run(self, coro: Coroutine[Any, Any, Any], *, context: Context | None = None) -> Any:
        loop = asyncio.get_event_loop()
        own = copy_context() if context is None else context
        before = own.run(_runner.set, self)
        try:
            return loop.run_until_complete(loop.create_task(coro, context=own))
        finally:
            own.run(_runner.reset, before)


def run(main: Any, *, debug: bool | None = None, loop_factory: Any = None) -> Any:
    """asyncio.run."""
    if loop_factory is not None or not inspect.iscoroutine(main):
        return _run(main, debug=debug, loop_factory=loop_factory)
    with Runner() as runner:
        return runner.run(main)


def install() -> None:
    """Replace the standard calls by the interruptible ones."""
    time.sleep = sleep
    builtins.input = read_input
    getpass.getpass = read_password
    WebLoop.run_until_complete = run_until_complete
    asyncio.run = run
    asyncio.Runner = asyncio.runners.Runner = Runner
    pyodide.ffi.run_sync = run_sync_interruptible
