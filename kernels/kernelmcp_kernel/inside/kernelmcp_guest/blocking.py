"""The calls that block: `time.sleep`, `input`, `getpass`, `run_until_complete`, `asyncio.Runner`, `run_sync`.

All can be interrupted. With JSPI (stack switching) a Python frame can wait for a JavaScript promise: `input` and
`run_until_complete` do, and the event loop goes on meanwhile. `time.sleep` blocks the event loop, as it does
everywhere, in naps that notice an interrupt.
"""

# IPython and Pyodide declare much of what is used here without types that a checker understands.
# pyright: reportAbstractUsage=false, reportAttributeAccessIssue=false

import asyncio
import builtins
import getpass
import inspect
import json
import time
from collections.abc import Awaitable, Coroutine
from contextvars import Context
from typing import Any, Self

import pyodide.ffi
from IPython.core.error import StdinNotImplementedError
from pyodide.ffi import JsException, can_run_sync, run_sync
from pyodide.webloop import WebLoop

from kernelmcp_guest import swallowed_interrupts
from kernelmcp_guest.bridge import bridge, request_id

# What comes of a promise that is rejected, and of an interrupt in the C code on the way to it.
FAILED: tuple[type[Exception], ...] = (JsException, vars(pyodide.ffi)["ConversionError"])

_run_until_complete = WebLoop.run_until_complete
stdin_allowed = False


# Each takes a WebAssembly stack of its own (runtime.py), and V8 ends the process when it has no room for another.
MAX_WAITS = 100


class Wait:
    """What code is blocked on: a task to cancel, or a host call, which the host itself rejects.

    `request` is the request on whose behalf it waits, and `waiter` the task that is blocked, if it is one.
    """

    def __init__(self, task: asyncio.Future[Any] | None = None) -> None:
        if len(waits) >= MAX_WAITS:
            raise RuntimeError(f"{MAX_WAITS} calls wait already, which is the most: await them instead")
        self.task = task
        self.request = request_id.get()
        self.waiter = asyncio.current_task()
        self.interrupted = False

    def interrupt(self) -> None:
        self.interrupted = True
        if self.task is not None:
            self.task.cancel()

    def check(self) -> None:
        """Raise KeyboardInterrupt when the interrupt came in the same turn as what was waited for."""
        if self.interrupted:
            raise KeyboardInterrupt

    def take_interrupt(self) -> bool:
        """Whether it was interrupted while it waited, or in the C code before, which makes an error of its own of a
        KeyboardInterrupt. The caller raises it: it does not come again."""
        swallowed = swallowed_interrupts.take()
        return self.interrupted or swallowed


waits: list[Wait] = []


def interrupt(request: str) -> set[asyncio.Task[Any] | None]:
    """Interrupt what waits on behalf of a request; the tasks that were blocked in it.

    Tasks that an earlier cell has left behind are no part of it: theirs is another request.
    """
    own = [wait for wait in waits if wait.request == request]
    for wait in own:
        wait.interrupt()
    return {wait.waiter for wait in own}


def cancel_blocked() -> None:
    """Tasks that were cancelled, perhaps because who awaits them was, notice it only when they no longer block."""
    for wait in waits:
        if wait.task is not None and wait.waiter is not None and wait.waiter.cancelling():
            wait.task.cancel()


def is_awaited(error: BaseException) -> bool:
    """Has a task ended with it that blocked code waits for?"""
    done = [wait.task for wait in waits if wait.task is not None and wait.task.done() and not wait.task.cancelled()]
    return any(task.exception() is error for task in done)


def sleep(seconds: float, /) -> None:
    """time.sleep that an interrupt ends."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    end = time.monotonic() + seconds
    while (rest := end - time.monotonic()) > 0:
        if bridge.nap(rest * 1000):
            raise KeyboardInterrupt


def check_can_wait(what: str) -> None:
    """Raises RuntimeError in code that no frame can wait in, as a callback."""
    if not can_run_sync():
        raise RuntimeError(f"{what} cannot wait here: call it from a cell or a coroutine, not from a callback")


def ask_and_wait(what: str, text: str) -> str:
    """Make a host call, a JSON text, and wait for the answer.

    Raises KeyboardInterrupt when the cell is interrupted meanwhile, OSError when the host refuses.
    """
    check_can_wait(what)
    wait = Wait()
    waits.append(wait)
    try:
        answer = run_sync(bridge.ask(request_id.get(), text))
    except FAILED as error:
        if wait.take_interrupt():
            raise KeyboardInterrupt from None
        raise OSError(error.message if isinstance(error, JsException) else str(error)) from None
    finally:
        waits.remove(wait)
    wait.check()
    return answer


def host_call(kind: str, **arguments: Any) -> Any:
    """Ask the kernel process for something and wait for the answer. Raises as `ask_and_wait`."""
    return json.loads(ask_and_wait(f"{kind}()", json.dumps({"call": kind, **arguments})))


def run_sync_interruptible(awaitable: Awaitable[Any]) -> Any:
    """pyodide.ffi.run_sync that an interrupt ends; urllib3 (so requests) waits for its answers with it."""
    waits_for_task = isinstance(awaitable, asyncio.Future) or inspect.iscoroutine(awaitable)
    task = asyncio.ensure_future(awaitable) if waits_for_task else None
    wait = Wait(task)
    waits.append(wait)
    try:
        result = run_sync(task or awaitable)
    except (asyncio.CancelledError, *FAILED):
        if wait.take_interrupt():
            raise KeyboardInterrupt from None
        raise
    finally:
        waits.remove(wait)
    wait.check()
    return result


def _read_line(prompt: object, password: bool) -> str:
    if not stdin_allowed:
        raise StdinNotImplementedError("raw_input was called, but this frontend does not support input requests.")
    value = host_call("input", prompt=str(prompt), password=password)
    if value == "\x04":  # Ctrl-D, as frontends send it
        raise EOFError
    return value


def read_input(prompt: object = "", /) -> str:
    """input() through the Jupyter stdin channel."""
    return _read_line(prompt, password=False)


def read_password(prompt: str = "Password: ", stream: object = None, *, echo_char: str | None = None) -> str:
    """getpass.getpass through the Jupyter stdin channel."""
    return _read_line(prompt, password=True)


def run_until_complete(loop: WebLoop, future: Any) -> Any:
    """WebLoop.run_until_complete that an interrupt ends (asyncio.run ends here too)."""
    if not can_run_sync():
        return _run_until_complete(loop, future)
    task = asyncio.ensure_future(future, loop=loop)
    wait = Wait(task)
    waits.append(wait)
    try:
        result = _run_until_complete(loop, task)
    except (asyncio.CancelledError, *FAILED):  # a cancellation that crossed JavaScript comes back as its exception
        if wait.take_interrupt():
            raise KeyboardInterrupt from None
        raise
    finally:
        waits.remove(wait)
    wait.check()
    return result


class Runner(asyncio.Runner):  # pyright: ignore[reportGeneralTypeIssues]  # final; it stays an instance of it
    """asyncio.Runner on the one loop that there is, which is not its own: closing it ends nothing."""

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """The loop goes on."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_event_loop()

    def run(self, coro: Coroutine[Any, Any, Any], *, context: Context | None = None) -> Any:
        loop = asyncio.get_event_loop()
        return loop.run_until_complete(loop.create_task(coro, context=context))


def install() -> None:
    """Put the interruptible calls in place of the stock ones."""
    time.sleep = sleep
    builtins.input = read_input
    getpass.getpass = read_password
    WebLoop.run_until_complete = run_until_complete
    asyncio.Runner = asyncio.runners.Runner = Runner
    pyodide.ffi.run_sync = run_sync_interruptible
