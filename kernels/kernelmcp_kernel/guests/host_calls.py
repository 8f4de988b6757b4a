"""Host calls: requests from a guest to its kernel process while a cell runs, decided here in trusted code.

A handler takes the guest's arguments (hostile: any JSON object) and the request that it works on, and returns a JSON
value for the guest; in the guest, a `HostCallError` becomes an OSError with its text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, cast

from kernelmcp_kernel.guests.cell_requests import Request
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, Frame
from kernelmcp_kernel.guests.guest import Guest

Arguments = dict[str, Any]
Handler = Callable[[Arguments, Request], Awaitable[Any]]

# Calls that one cell may have under way at a time; more are refused.
MAX_CALLS = 32

# Bytes of all these calls together: one as large as a frame may be, or several smaller ones.
MAX_HELD_BYTES = MAX_FRAME_BYTES + 2**20

INTERRUPTED = "interrupted"
IN_CALLBACK = "a widget's callback cannot do this: do it in a cell"
CELL_ENDED = "the cell that made this call has ended: the host answers only while a cell runs"

_log = logging.getLogger(__name__)


class Answering(Protocol):
    """Answers frequent host calls itself, without a task for each."""

    def answer(self, guest: Guest, number: int, arguments: Arguments, request: Request) -> None:
        """Accept a call, and answer it now or later, in every case."""
        ...

    def cancel(self, reason: str) -> None:
        """Answer all open calls with this error."""
        ...


class HostCallError(Exception):
    """A host call is refused; the text gives the reason and is sent to the guest."""


class HostCalls:
    """The host calls of a kernel: each is a task, which ends no later than its cell."""

    def __init__(self, handlers: dict[str, Handler], answering: dict[str, Answering] | None = None) -> None:
        self._handlers = handlers
        self._answering = answering or {}
        self._running: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._one_person = asyncio.Lock()

    def start(self, guest: Guest, frame: Frame, request: Request | None, otherwise: str = CELL_ENDED) -> None:
        """Answer a `call` frame of the guest, in every case: code in the guest waits for the answer.

        `request` is None if no cell that runs makes the call: a task of one that has ended, or a widget's callback.
        `otherwise`: the answer then.
        """
        number, arguments = frame.content.get("number"), frame.content.get("arguments", {})
        if not isinstance(number, int) or not isinstance(arguments, dict):
            return
        if frame.excess:
            guest.answer(number, error=frame.excess)
            return
        if request is None:
            guest.answer(number, error=otherwise)
            return
        kind = str(cast("Arguments", arguments).get("call"))
        if kind in self._answering and kind in request.host_calls:
            self._answering[kind].answer(guest, number, cast("Arguments", arguments), request)
            return
        handler = self._handlers.get(kind) if kind in request.host_calls else None
        held = self._held_bytes + frame.size
        if handler is None or len(self._running) >= MAX_CALLS or held > MAX_HELD_BYTES:
            guest.answer(number, error="the host does not offer this call, or has too many of them under way")
            return
        task = asyncio.ensure_future(
            self._answer(guest, number, partial(handler, cast("Arguments", arguments), request), kind)
        )
        self._running.add(task)
        self._held_bytes = held
        task.add_done_callback(partial(self._ended, frame.size))

    def _ended(self, size: int, task: asyncio.Task[None]) -> None:
        self._running.remove(task)
        self._held_bytes -= size

    def cancel(self, reason: str) -> None:
        """End all calls, with this reason as their error: the cell was interrupted or has ended."""
        for task in list(self._running):
            # Not before the task has begun: otherwise it would never answer, and its guest would wait forever.
            task.get_loop().call_soon_threadsafe(task.cancel, reason)
        for each in self._answering.values():
            each.cancel(reason)

    async def _answer(self, guest: Guest, number: int, answer: Callable[[], Awaitable[Any]], kind: str) -> None:
        try:
            # `input` asks one person, so one question at a time.
            async with self._one_person if kind == "input" else nullcontext():
                value = await answer()
            guest.answer(number, value=value)
        except asyncio.CancelledError as cancelled:
            guest.answer(number, error=str(cancelled) or INTERRUPTED)
            raise
        except (HostCallError, ValueError) as error:
            guest.answer(number, error=str(error))
        except Exception:  # noqa: BLE001  # a guest must get an answer whatever happened
            _log.exception("a host call failed")
            guest.answer(number, error="the host failed; the kernel's log says why")
