"""One guest process as the kernel process sees it: requests, answers to host calls, interrupt, end.

It must not know Jupyter messages. Everything is for the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

from kernelmcp_kernel.guests.channel import Channel
from kernelmcp_kernel.guests.cpu import BackgroundLimit, CpuLimit, cpu_seconds
from kernelmcp_kernel.guests.death import GuestDied, explain
from kernelmcp_kernel.guests.frames import MAX_DISPLAY_FRAME_BYTES, MAX_FRAME_BYTES, Frame, encode_frame
from kernelmcp_kernel.guests.memory_watchdog import MemoryWatchdog, resident_mb
from kernelmcp_kernel.guests.state_pipes import StatePipes
from kernelmcp_kernel.runtime.guest_process import Spawned
from kernelmcp_kernel.runtime.told_status import told_status
from kernelmcp_kernel.sandbox.cgroup import MAX_TASKS
from kernelmcp_kernel.settings import Quota

# A guest that has not noticed an interrupt after this time runs code that never will (a long C loop, JavaScript).
INTERRUPT_GRACE_SECONDS = 3.0
# On a loaded machine a guest gets little CPU time during the grace period. It gets more time until it has had enough to
# notice (one numpy step takes at most 0.5 s). A guest that has used none waits for something that never comes. The
# longest grace ends before the server's (kernels.interrupt_grace_seconds), which ends the whole kernel.
_NOTICE_CPU_SECONDS = 1.0
_IDLE_CPU_SECONDS = 0.02
_MORE_GRACE_SECONDS = 1.0
_LONGEST_GRACE_SECONDS = 5.0
# For a cell that must end even if it notices: fractions of its grace period at which it is interrupted again. Code that
# cleans up has the time before the first one.
_AGAIN = (0.6, 0.8)

# Written to the interrupt pipe instead of a request's number: interrupt background tasks between requests.
_BACKGROUND = 0xFFFFFFFF

# A process closes its pipes a moment before it can be reaped. Wait this long for it, then kill it.
_EXIT_WAIT_SECONDS = 0.5
_EXIT_CHECK_SECONDS = 0.002

# A guest that is saved has written its first bytes by then; one that loads a state has loaded it.
_MOVE_SECONDS = 60.0
# The next ones; and all of them.
_SAVE_STALLS_SECONDS = 15.0
_SAVE_SECONDS = 300.0


def new_request_id() -> str:
    """An id that cannot be guessed, so that no request accepts a frame that the guest wrote in advance."""
    return secrets.token_hex(8)


def is_starved(used: float, waited: float) -> bool:
    """Return whether a guest has had too little CPU time since its interrupt to notice it. Both in seconds."""
    return _IDLE_CPU_SECONDS < used < _NOTICE_CPU_SECONDS and waited < _LONGEST_GRACE_SECONDS


def _too_large(excess: str) -> dict[str, Any]:
    return {"status": "error", "ename": "ReplyTooLarge", "evalue": f"the reply was not read: {excess}", "traceback": []}


class Guest:
    """A running guest. `on_frame` gets every frame that belongs to the current request or to an earlier one."""

    def __init__(
        self, spawned: Spawned, on_frame: Callable[[Guest, Frame], None], background_cpu_seconds: float | None = None
    ) -> None:
        self.pid = spawned.pid
        self.death: str | None = None
        self.exit_code: int | None = None  # negative for a signal
        self.started = False
        self.base_mb: float | None = None
        self.ended = asyncio.Event()
        self.background = BackgroundLimit(background_cpu_seconds)
        self._group = spawned.group
        self._on_frame = on_frame
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._number = 0
        self._beside = set[str]()  # operations without a reply that it has not told to be done
        self._id = ""
        self._max_reply_bytes = 0
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._limit: CpuLimit | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._end_timers: list[asyncio.TimerHandle] = []
        self._state: asyncio.Future[dict[str, Any]] | None = None
        self._state_deadline: asyncio.TimerHandle | None = None
        self._save_ends = 0.0
        self._restored = False
        self._has_kept = False
        self.state_pipes = StatePipes(spawned)
        self._channel = Channel(spawned, self._dispatch, self._on_end, self.kill)
        self._watchdog = (
            MemoryWatchdog(self.pid, spawned.max_resident_mb, self.kill, MAX_TASKS) if spawned.max_resident_mb else None
        )

    # -- requests

    async def ready(self) -> None:
        """Wait until the guest has restored its image, or has died."""
        if not self._ready.done():
            await asyncio.shield(self._ready)

    def set_environment(self, variables: dict[str, str]) -> None:
        """Set the guest's environment variables, before the first request.

        They go through the pipe, because every user of the machine can read a command line.
        """
        self._channel.send(encode_frame({"op": "set_environment", "content": variables}))

    def set_quota(self, quota: Quota) -> None:
        """Set the quota that the guest counts against, from the next request on."""
        if self.death is None:
            self._channel.send(encode_frame({"op": "set_quota", "content": asdict(quota)}))

    async def request(
        self, op: str, content: dict[str, Any], request_id: str, limit: CpuLimit | None = None
    ) -> dict[str, Any]:
        """Request an operation and return the content of its reply. One at a time, each with its own id.

        Raises GuestDied if the guest ends first, ValueError if the request is too large for a frame.
        """
        await self.ready()
        if self.death is not None:
            raise GuestDied(self.death)
        frame = encode_frame({"op": op, "id": request_id, "number": self._number + 1, "content": content})
        self.background.stop()
        # A program's output goes to another guest; all other replies go to clients.
        is_bulk = op == "run_program" or "capture" in content
        self._max_reply_bytes = MAX_FRAME_BYTES if is_bulk else MAX_DISPLAY_FRAME_BYTES
        self._number += 1
        self._has_kept = self._has_kept or "capture" not in content
        self._id = request_id
        reply = self._reply = self._loop.create_future()
        self._channel.send(frame)
        del frame  # up to MAX_FRAME_BYTES, which would otherwise be held until the reply
        if limit is not None and not reply.done():  # otherwise `send` has ended the guest
            self._limit = limit
            limit.start(self)
        try:
            return await reply
        finally:
            self._reply = self._limit = None
            self._cancel_kill()
            self._cancel_end()
            if limit is not None:
                limit.stop()
            if self.death is None:
                self.background.start(self)

    def notify(self, op: str, content: dict[str, Any], request_id: str) -> None:
        """Request an operation without a reply, even during a request; it runs when that request waits. `on_frame` gets
        a `comm_done` once it is done, also if the guest ends before.

        Raises ValueError if it is too large for a frame, or for the room that earlier ones leave.
        """
        if self.death is None:
            self._channel.send_aside(encode_frame({"op": op, "id": request_id, "content": content}))
            self._beside.add(request_id)

    async def drained(self) -> None:
        """Wait, before a large answer, until the guest has read nearly all of the earlier ones."""
        await self._channel.drained()

    def answer(self, number: int, value: Any = None, error: str | None = None) -> None:
        """Answer a host call of the guest."""
        if self.death is None:
            self._channel.send(
                encode_frame({"op": "result", "content": {"number": number, "value": value, "error": error}})
            )

    def answer_lines(self, number: int, lines: bytes) -> None:
        """Answer a host call with text that is already JSON, in the form that the guest expects."""
        if self.death is None:
            self._channel.send(encode_frame({"op": "result", "content": {"number": number}}, lines))

    def mount(self, packages: list[dict[str, str]]) -> None:
        """Mount folders in the guest before it reads the next request or answer: each is {folder, point}."""
        if packages and self.death is None:
            self._channel.send(encode_frame({"op": "mount", "content": {"packages": packages}}))

    async def move_state(self, op: Literal["save_state", "load_state"], content: dict[str, Any]) -> dict[str, Any]:
        """Ask an idle guest to write its state to its pipe, or to become what it reads there; return its answer.

        {ok: true, ...}, or {ok: false, reasons}; docs/languages.md has the fields. A guest that answers neither in time
        is killed. Raises GuestDied.
        """
        self.background.stop()
        answer = self._state = self._loop.create_future()
        self._save_ends = self._loop.time() + _SAVE_SECONDS
        self._set_state_deadline(_MOVE_SECONDS)
        self._channel.send(encode_frame({"op": op, "content": content}))
        try:
            found = await answer
        finally:
            self._state = None
            self._set_state_deadline(None)
            if self.death is None:
                self.background.start(self)
        self._restored = self._restored or (op == "load_state" and found.get("ok") is True)
        return found

    def note_progress(self) -> None:
        """Its state is coming."""
        self._set_state_deadline(min(_SAVE_STALLS_SECONDS, self._save_ends - self._loop.time()))

    def _set_state_deadline(self, seconds: float | None) -> None:
        if self._state_deadline is not None:
            self._state_deadline.cancel()
            self._state_deadline = None
        if seconds is not None and self._state is not None:
            why = "its state was not moved in time"
            self._state_deadline = self._loop.call_later(seconds, self.kill, why)

    def pause(self, paused: bool) -> None:
        """Make the guest wait when it sends something, or let it continue."""
        if self.death is None:
            self._channel.pause(paused)

    @property
    def is_ready(self) -> bool:
        """True if `ready` does not wait."""
        return self._ready.done()

    @property
    def current_id(self) -> str:
        """The id of the newest request."""
        return self._id

    @property
    def busy(self) -> bool:
        """True if a request is under way."""
        return self._reply is not None

    @property
    def used(self) -> bool:
        """True if a request has been made, or a state was loaded."""
        return self._number > 0 or self._restored

    @property
    def has_variables(self) -> bool:
        """True if it may have some: a program's command leaves none."""
        return self._has_kept or self._restored

    # -- interrupt and end

    def interrupt(self, why: str = "", grace_seconds: float | None = None) -> None:
        """Interrupt the current request. A guest that ignores it is killed after a grace period; with `grace_seconds`,
        a guest that noticed it but still runs after that time is killed too."""
        if not self.busy or self.death is not None:
            return
        self._signal()
        if self.death is not None:  # it lets its answers lie, and this was one too many
            return
        if grace_seconds is not None and not self._end_timers:
            reason = f"it went on for {grace_seconds:,.15g} s after it was interrupted"
            self._end_timers = [
                *(self._loop.call_later(part * grace_seconds, self._signal) for part in _AGAIN),
                self._loop.call_later(grace_seconds, self.kill, reason),
            ]
        if self._kill_timer is None:
            reason = f"{why or 'it '}could not be interrupted within {INTERRUPT_GRACE_SECONDS:.0f} s"
            self._await_notice(reason, cpu_seconds(self.pid))

    def _signal(self) -> None:
        self._channel.signal(self._number)
        self._channel.send(encode_frame({"op": "interrupt"}))

    def _await_notice(self, reason: str, before: float, waited: float = 0.0) -> None:
        """Kill the guest after a grace period, or extend it if the guest had no chance to notice. `before`: its CPU
        time when it was interrupted; `waited`: seconds since then."""
        seconds = _MORE_GRACE_SECONDS if waited else INTERRUPT_GRACE_SECONDS

        def end() -> None:
            if is_starved(cpu_seconds(self.pid) - before, waited + seconds):
                self._await_notice(reason, before, waited + seconds)
            else:
                self.kill(reason)

        self._kill_timer = self._loop.call_later(seconds, end)

    def end_background(self, *, with_operations: bool = False) -> None:
        """Cancel the tasks that cells left behind, while no request runs; `with_operations`: only if operations without
        a reply run, which end with them."""
        if self.busy or self.death is not None or (with_operations and not self._beside):
            return
        self._channel.signal(_BACKGROUND)
        self._channel.send(encode_frame({"op": "end_background"}))

    def _cancel_kill(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None

    def _cancel_end(self) -> None:
        for timer in self._end_timers:
            timer.cancel()
        self._end_timers = []

    def kill(self, reason: str) -> None:
        """Kill the guest at once; a request under way fails with GuestDied."""
        if self.death is not None:
            return
        self.death = reason
        self._cancel_kill()
        self._cancel_end()
        self.background.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._limit is not None:
            self._limit.stop()  # its clock can be read until it is reaped
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)  # killed: takes milliseconds
        self.exit_code, _ = told_status(os.waitstatus_to_exitcode(status), self._channel.last_words)
        if self._group is not None:
            self._group.remove()
        self._channel.close()
        self.state_pipes.close()
        if not self._ready.done():
            self._ready.set_result(None)
        died = GuestDied(reason)
        died.had_variables = self.has_variables
        for waiting in (self._reply, self._state):
            if waiting is not None and not waiting.done():
                waiting.set_exception(died)
        for request_id in self._beside:
            self._on_frame(self, Frame("comm_done", request_id, {}, 0))
        self._beside.clear()
        self.ended.set()

    # -- frames from the guest

    def _dispatch(self, frame: Frame) -> bool:
        """Handle one frame; return False if the guest has ended, so that reading stops."""
        if frame.type == "ready":
            self.started = True
            if self.base_mb is None:
                self.base_mb = resident_mb(self.pid)
            if not self._ready.done():
                self._ready.set_result(None)
        elif frame.type == "reply":
            if frame.id == self._id and self._reply is not None and not self._reply.done():
                excess = frame.excess or ("" if frame.size <= self._max_reply_bytes else f"{frame.size:,} bytes")
                self._reply.set_result(_too_large(excess) if excess else frame.content)
        elif frame.type == "state":
            if self._state is not None and not self._state.done():
                self._state.set_result(frame.content)
        elif frame.type == "interrupted":
            if frame.id == self._id:
                self._cancel_kill()
        else:
            self._pass_on(frame)
        return self.death is None

    def _pass_on(self, frame: Frame) -> None:
        if frame.type == "comm_done":
            if frame.id not in self._beside:
                return
            self._beside.remove(frame.id)
        self._on_frame(self, frame)

    def _on_end(self) -> None:
        """The frames pipe has ended: the process has ended too, or is about to."""
        self._await_exit(time.monotonic() + _EXIT_WAIT_SECONDS)

    def _await_exit(self, deadline: float) -> None:
        if self.death is not None:
            return
        # The process's own exit status is more informative than our SIGKILL.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None and time.monotonic() < deadline:
            self._loop.call_later(_EXIT_CHECK_SECONDS, self._await_exit, deadline)
            return
        exit_code, last_words = None, ""
        if ended is not None:
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            exit_code, last_words = told_status(status, self._channel.last_words)
        self.kill(explain(exit_code, last_words.strip(), self._group))
