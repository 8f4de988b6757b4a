"""One guest process as the kernel process sees it: requests down, frames up, interrupt, end.

It must not know Jupyter messages. Everything is for the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kernelmcp_kernel.guests.cpu import BackgroundLimit, CpuLimit
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, Frame, FrameDecoder, FrameError, encode_frame
from kernelmcp_kernel.guests.memory_watchdog import MemoryWatchdog
from kernelmcp_kernel.runtime.spawn import Spawned
from kernelmcp_kernel.settings import Quota

_log = logging.getLogger(__name__)

# A guest that has not noticed an interrupt after this time is in code that never will (a long C loop, JavaScript).
INTERRUPT_GRACE_SECONDS = 3.0

# What is written to the interrupt pipe instead of a request's number, to interrupt what no request runs.
_BACKGROUND = 0xFFFFFFFF

# The guest's exit status when no memory is left for another cell (inside/kernelmcp_guest/operations.py).
_EXIT_OUT_OF_MEMORY = 71

# How much is read from the pipe at a time: bounds what one guest can make the loop do before others get their turn.
_READ_BYTES = 1 << 18

# Frames of one guest that are handled in a second, on average over a moment: a third of what one core can do. A program
# that prints makes hundreds, however much it prints.
MAX_FRAMES_PER_SECOND = 20_000
_PACE_SECONDS = 0.1

# What may wait for a guest that does not read: the largest request, and answers to its host calls.
_MAX_UNREAD_BYTES = 2 * MAX_FRAME_BYTES

# How much of a guest's stderr (Node's own last words) is kept to explain its death.
_LAST_WORDS_BYTES = 2000


def new_request_id() -> str:
    """Unguessable, so that a frame which the guest wrote ahead of time belongs to no request."""
    return secrets.token_hex(8)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"


class GuestDied(Exception):
    """The guest process has ended; its variables are gone. The text says why, as far as is known."""


class Pace:
    """Bounds the rate of frames: a guest that sends more waits in its own write to the pipe."""

    def __init__(self) -> None:
        self._due = 0.0  # when the frames that were handled may all have come

    def pause(self, frames: int) -> float:
        """How long to read nothing, in seconds, after so many more frames."""
        now = time.monotonic()
        self._due = max(self._due, now - _PACE_SECONDS) + frames / MAX_FRAMES_PER_SECOND
        return max(0.0, self._due - now)


class Guest:
    """A running guest. `on_frame` gets every frame that belongs to the current request or to an earlier one."""

    def __init__(
        self, spawned: Spawned, on_frame: Callable[[Frame], None], background_cpu_seconds: float | None = None
    ) -> None:
        self.pid = spawned.pid
        self.death: str | None = None
        self._spawned = spawned
        self._on_frame = on_frame
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._outbox = bytearray()
        self._number = 0
        self._id = ""
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._last_words = bytearray()
        self._kill_timer: asyncio.TimerHandle | None = None
        self.exit_status: int | None = None
        self.ended = asyncio.Event()
        for fd in (spawned.requests, spawned.frames, spawned.interrupts, spawned.errors):
            os.set_blocking(fd, False)
        self._loop.add_reader(spawned.frames, self._read_frames)
        self._loop.add_reader(spawned.errors, self._read_errors)
        self._pace = Pace()
        self.background = BackgroundLimit(background_cpu_seconds)
        self._watchdog = (
            MemoryWatchdog(self.pid, spawned.max_resident_mb, self.kill) if spawned.max_resident_mb else None
        )

    # -- requests

    async def ready(self) -> None:
        """Wait until the guest has restored its image. Raises GuestDied."""
        await asyncio.shield(self._ready)

    def set_environment(self, variables: dict[str, str]) -> None:
        """Before the first request. By the pipe, because a command line can be read by everybody on the machine."""
        self._send(encode_frame({"op": "set_environment", "content": variables}))

    def set_quota(self, quota: Quota) -> None:
        """What its own count allows, from the next request on."""
        if self.death is None:
            self._send(encode_frame({"op": "set_quota", "content": asdict(quota)}))

    async def request(
        self, op: str, content: dict[str, Any], request_id: str, limit: CpuLimit | None = None
    ) -> dict[str, Any]:
        """Ask for an operation and return the content of its reply. One at a time, each with an id of its own.

        Raises GuestDied when the guest ends first, ValueError when the request is too large for a frame.
        """
        await self.ready()
        if self.death is not None:
            raise GuestDied(self.death)
        self.background.stop()
        self._number += 1
        self._id = request_id
        frame = encode_frame({"op": op, "id": request_id, "number": self._number, "content": content})
        reply = self._reply = self._loop.create_future()
        self._send(frame)
        if limit is not None:
            limit.start(self)
        try:
            return await reply
        finally:
            self._reply = None
            self._cancel_kill()
            if limit is not None:
                limit.stop()
            if self.death is None:
                self.background.start(self)

    def notify(self, op: str, content: dict[str, Any], request_id: str) -> None:
        """Ask for an operation that has no reply, also while a request is under way; it runs when that waits."""
        if self.death is None:
            self._send(encode_frame({"op": op, "id": request_id, "content": content}))

    def answer(self, number: int, value: Any = None, error: str | None = None) -> None:
        """Answer a host call of the guest."""
        if self.death is None:
            self._send(encode_frame({"op": "result", "content": {"number": number, "value": value, "error": error}}))

    def mount(self, packages: list[dict[str, str]]) -> None:
        """Show folders to the guest, before the next request or answer is read: each is {folder, point}."""
        if packages and self.death is None:
            self._send(encode_frame({"op": "mount", "content": {"packages": packages}}))

    @property
    def current_id(self) -> str:
        """The id of the newest request."""
        return self._id

    @property
    def busy(self) -> bool:
        """Is a request under way?"""
        return self._reply is not None

    @property
    def used(self) -> bool:
        """Was it ever asked for something?"""
        return self._number > 0

    # -- interrupt and end

    def interrupt(self, why: str = "") -> None:
        """Interrupt the current request. A guest that ignores it is killed after a grace period."""
        if not self.busy or self.death is not None:
            return
        with contextlib.suppress(OSError):  # full: it has been told often enough; broken: it is ending
            os.write(self._spawned.interrupts, struct.pack("<I", self._number))
        self._send(encode_frame({"op": "interrupt"}))
        if self._kill_timer is None:
            reason = f"{why or 'it '}could not be interrupted within {INTERRUPT_GRACE_SECONDS:.0f} s"
            self._kill_timer = self._loop.call_later(INTERRUPT_GRACE_SECONDS, self.kill, reason)

    def end_background(self) -> None:
        """Have what runs between requests end: tasks that cells left behind."""
        if self.busy or self.death is not None:
            return
        with contextlib.suppress(OSError):
            os.write(self._spawned.interrupts, struct.pack("<I", _BACKGROUND))
        self._send(encode_frame({"op": "end_background"}))

    def _cancel_kill(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None

    def kill(self, reason: str) -> None:
        """End the guest at once; whoever waits for it gets GuestDied."""
        if self.death is not None:
            return
        self.death = reason
        self._cancel_kill()
        self.background.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, self.exit_status = os.waitpid(self.pid, 0)  # killed: a matter of milliseconds
        if self._spawned.group is not None:
            self._spawned.group.remove()
        self._loop.remove_reader(self._spawned.frames)
        self._loop.remove_reader(self._spawned.errors)
        self._loop.remove_writer(self._spawned.requests)
        for fd in (self._spawned.requests, self._spawned.frames, self._spawned.interrupts, self._spawned.errors):
            os.close(fd)
        if not self._ready.done():
            self._ready.set_result(None)
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(GuestDied(reason))
        self.ended.set()

    # -- pipes

    def _send(self, data: bytes) -> None:
        self._outbox += data
        if len(self._outbox) > _MAX_UNREAD_BYTES:
            self.kill("it asks and does not read the answers")
            return
        self._flush_outbox()

    def _flush_outbox(self) -> None:
        try:
            written = os.write(self._spawned.requests, self._outbox)
        except BlockingIOError:
            written = 0
        except OSError:
            return  # the guest is ending; its frames pipe will say so
        del self._outbox[:written]
        if self._outbox:
            self._loop.add_writer(self._spawned.requests, self._flush_outbox)
        else:
            self._loop.remove_writer(self._spawned.requests)

    def _read_frames(self) -> None:
        try:
            data = os.read(self._spawned.frames, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._on_end()
            return
        count = 0
        try:
            for frame in self._decoder.feed(data):
                count += 1
                self._dispatch(frame)
                if self.death is not None:
                    return
        except FrameError as error:
            self.kill(f"it broke the protocol: {error}")
        except Exception:  # noqa: BLE001  # frames behind this one must not be left lying
            _log.exception("a frame could not be handled")
            self.kill("it sent what cannot be relayed")
        if self.death is None and (pause := self._pace.pause(count)):
            self._loop.remove_reader(self._spawned.frames)
            self._loop.call_later(pause, self._read_on)

    def _read_on(self) -> None:
        if self.death is None:
            self._loop.add_reader(self._spawned.frames, self._read_frames)

    def _dispatch(self, frame: Frame) -> None:
        if frame.type == "ready":
            if not self._ready.done():
                self._ready.set_result(None)
        elif frame.type == "reply":
            if frame.id == self._id and self._reply is not None and not self._reply.done():
                self._reply.set_result(frame.content)
        elif frame.type == "interrupted":
            if frame.id == self._id:
                self._cancel_kill()
        else:
            self._on_frame(frame)

    def _read_errors(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._spawned.errors, _READ_BYTES)
            if not data:
                self._loop.remove_reader(self._spawned.errors)
            self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]

    def _on_end(self) -> None:
        """The frames pipe has ended: the process has, too, or is about to."""
        self._read_errors()
        self._loop.remove_reader(self._spawned.frames)
        self._finish_ending(time.monotonic() + 0.5)

    def _finish_ending(self, deadline: float) -> None:
        if self.death is not None:
            return
        # A process closes its pipes a moment before it can be waited for; its own exit status says more than our
        # SIGKILL.
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is None and time.monotonic() < deadline:
            self._loop.call_later(0.002, self._finish_ending, deadline)
            return
        self.kill(self._explain(status))

    def _explain(self, status: os.waitid_result | None) -> str:
        words = self._last_words.decode("utf-8", "replace").strip()
        if status is None:
            return "it closed its pipe"
        if status.si_code == os.CLD_EXITED and status.si_status == _EXIT_OUT_OF_MEMORY:
            how = "it ran out of memory"
        elif status.si_code == os.CLD_EXITED:
            how = f"it exited with status {status.si_status}"
        elif self._spawned.group is not None and self._spawned.group.ran_out_of_memory():
            how = "it was killed for memory: its control group had no more"
        elif status.si_status == signal.SIGABRT and "memory" in words.lower():
            how = "it was killed for memory: it ran out of it"
        else:
            how = f"it was killed by {_signal_name(status.si_status)}"
        last = words.splitlines()[-1][:300] if words and status.si_status else ""
        return f"{how}: {last}" if last else how
