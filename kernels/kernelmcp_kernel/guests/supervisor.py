"""Keeps one live guest of a language: starts it, replaces it after it has ended, and reports that variables were
lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmcp_kernel.guests.cpu import CpuLimit, cpu_seconds
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest
from kernelmcp_kernel.guests.state_pipes import FilePart
from kernelmcp_kernel.languages.interface import Language
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Spawned, spawn_guest
from kernelmcp_kernel.settings import Quota, settings

# CPU time for starting a guest, forty times what it needs; and wall time, for a guest that waits for something that
# never comes: on a machine that starts a hundred guests at once, each takes a minute.
_START_CPU_SECONDS = 10.0
_START_SECONDS = 300.0
_START_CHECK_SECONDS = 1.0

# How long a save waits for a request that is under way, such as a completion: meanwhile the kernel takes no interrupt.
_SAVE_WAITS_SECONDS = 2.0

# Requests that an interrupt ends before they begin; the others are short, and of other clients.
_OF_CELLS = ("execute", "run_program")

# How long a saved state waits for its build to be kept, which goes on meanwhile; and until it is looked at again.
_KEEP_WAITS_SECONDS = 2.0
_KEEP_AGAIN_SECONDS = 600.0

# What a state may have beyond a full heap: its header, files in memory, blocks that do not compress.
_STATE_EXCESS_MB = 64


@dataclass(frozen=True)
class Loss:
    """A guest has ended, and its variables are lost."""

    reason: str
    reported: bool
    """A cell has already failed with it."""


class GuestSupervisor:
    """Keeps a language's guest. For the event loop's thread; `close` may be called from any thread."""

    def __init__(
        self,
        language: Language,
        sandbox: SandboxDirectory,
        on_frame: Callable[[Guest, Frame], None],
        log: logging.Logger,
        early: Spawned | None = None,
    ) -> None:
        self._language = language
        self._sandbox = sandbox
        self._on_frame = on_frame
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._requests = asyncio.Lock()
        self._interrupts = 0
        self._closed = False
        self._quota = settings().quota
        self._mounts: dict[str, dict[str, str]] = {}
        self._has_run = False
        self._keeping: asyncio.Task[None] | None = None
        self._keep_again = 0.0
        self._kept: str | None = None
        """The image whose build was kept last."""
        self.guest = self._start(early)
        self._loss: Loss | None = None
        self._reported = False

    def _start(self, spawned: Spawned | None = None) -> Guest:
        if self._closed:
            raise GuestDied("the kernel is shutting down")
        spawned = spawned or spawn_guest(self._sandbox, self._language.launch(self._sandbox))
        guest = Guest(spawned, self._on_frame, settings().background_cpu_seconds)
        if variables := settings().env:
            guest.set_environment(variables)
        if self._quota != settings().quota:
            guest.set_quota(self._quota)
        self._mounts |= {package["point"]: package for package in self._language.mounts()}
        self._has_run = False
        guest.mount(list(self._mounts.values()))
        self._watcher = asyncio.ensure_future(self._watch(guest))
        return guest

    def mount(self, packages: list[dict[str, str]]) -> None:
        """Mount folders ({folder, point}) in the guest and every later one."""
        self._mounts |= {package["point"]: package for package in packages}
        self.guest.mount(packages)

    def set_quota(self, quota: Quota) -> None:
        """Apply a quota to this guest and every later one."""
        if quota != self._quota:
            self._quota = quota
            self.guest.set_quota(quota)

    def take_loss(self) -> Loss | None:
        """Return the loss of an earlier guest, once."""
        loss, self._loss = self._loss, None
        return loss

    @property
    def untold_loss(self) -> str | None:
        """Why variables are lost, if nobody has been told yet."""
        return None if self._loss is None or self._loss.reported else self._loss.reason

    async def _watch(self, guest: Guest) -> None:
        """When the guest ends: record the loss, and start the next one before it is needed."""
        await guest.ended.wait()
        if self._closed or not guest.used:
            return  # nothing is lost, and a guest that ends at once would be restarted again and again
        self._log.warning("the guest process has ended: %s", guest.death)
        if guest.has_variables:
            self._loss = Loss(str(guest.death), self._reported)
        self._reported = False
        if self.guest is guest:  # otherwise a request came first, and has started the next one
            self._language.use_own_image()
            self.guest = self._start()

    async def request(
        self, op: str, content: dict[str, Any], request_id: str, limit: CpuLimit | None = None
    ) -> dict[str, Any]:
        """Send a request to the guest, and start one if there is none. Requests run in order of arrival.

        Raises GuestDied if the guest ends before its reply, or cannot be started.
        """
        before = self._interrupts
        async with self._requests:
            if self._closed:
                raise GuestDied("the kernel is shutting down")
            try:
                if op == "execute" and not self._has_run:
                    await self._exchange(content["code"])
                guest = await self._live()
            except (BuildError, OSError) as error:
                raise GuestDied(f"the sandbox could not start: {error}") from error
            if self._interrupts > before and op in _OF_CELLS:
                return {
                    "status": "error",
                    "ename": "KeyboardInterrupt",
                    "evalue": "",
                    "traceback": ["KeyboardInterrupt"],
                }
            self._has_run = self._has_run or op == "execute"
            try:
                return await guest.request(op, content, request_id, limit)
            except GuestDied:
                # Only a cell shows its error to a person; a program's command is not a cell.
                self._reported = op == "execute" and "capture" not in content
                raise

    async def save_state(self, file: int, max_bytes: int, how: dict[str, Any]) -> dict[str, Any]:
        """Write the guest's state to a file. `how`: docs/languages.md has it. Returns {ok: true, bytes, id, gone,
        image, mounts}, or {ok: false, reasons}: then the guest goes on as if nothing had been asked.

        Raises GuestDied, and OSError if the file cannot be written: then the guest goes on as well.
        """
        try:
            async with asyncio.timeout(_SAVE_WAITS_SECONDS):
                await self._requests.acquire()
        except TimeoutError:
            return {"ok": False, "reasons": ["a cell is running"], "is_busy": True}
        try:
            return await self._save_idle(file, max_bytes, how)
        finally:
            self._requests.release()

    async def _save_idle(self, file: int, max_bytes: int, how: dict[str, Any]) -> dict[str, Any]:
        if (reason := self.untold_loss) is not None:
            return {"ok": False, "reasons": [f"the sandbox process had ended: {reason}"]}
        await self._started()
        guest = self.guest
        if (image := self._language.image) is None or guest.death is not None:
            return {"ok": False, "reasons": ["they cannot be saved in this language"]}
        failures: list[OSError] = []
        written = 0
        most = (settings().memory_mb + _STATE_EXCESS_MB) << 20

        def take(data: bytes) -> None:
            nonlocal written
            written += len(data)
            guest.note_progress()
            if written > most:
                guest.kill("its state is larger than its memory")
            elif not failures and written <= max_bytes:
                try:
                    _write(file, data)
                except OSError as error:
                    failures.append(error)

        with guest.state_pipes.receiving(take):
            found = await guest.move_state("save_state", how)
        if failures:
            raise failures[0]
        if found.get("ok") is not True:
            return {"ok": False, "reasons": found.get("reasons")}
        if written > max_bytes:
            why = f"{written:,} bytes of variables are more than your sessions may still store: delete some, or files"
            return {"ok": False, "reasons": [why]}
        await self._keep_image()
        told = {name: found.get(name) for name in ("id", "gone")}
        return {"ok": True, "bytes": written, **told, "image": image, "mounts": list(self._mounts.values())}

    async def _keep_image(self) -> None:
        """So that the state that was saved can be loaded after an upgrade. Looked at now and then: the home keeps the
        builds that are used. A home on a slow network does not hold up the state."""
        image = self._language.image
        if self._keeping is None and (time.monotonic() >= self._keep_again or image != self._kept):
            self._kept = image
            self._keeping = asyncio.create_task(asyncio.to_thread(self._keep))
        if self._keeping is not None:
            await asyncio.wait([self._keeping], timeout=_KEEP_WAITS_SECONDS)
            if self._keeping.done():
                self._keeping = None

    def _keep(self) -> None:
        try:
            if self._language.keep_image():
                self._keep_again = time.monotonic() + _KEEP_AGAIN_SECONDS
        except (BuildError, OSError, ValueError, KeyError) as error:
            self._keep_again = time.monotonic() + _KEEP_AGAIN_SECONDS
            self._log.warning("after an upgrade its variables cannot be restored: %s", error)

    async def load_state(
        self, parts: list[FilePart], image: str, mounts: list[dict[str, str]], *, reseed: bool
    ) -> dict[str, Any]:
        """Put a state into a guest that has run nothing yet. `reseed`: the saved session goes on elsewhere, too, so its
        random generators get other seeds. Returns {ok: true, lost, gone} or {ok: false, reasons}; then the next request
        gets a fresh guest. Raises GuestDied, BuildError, OSError."""
        async with self._requests:
            if self._has_run or self.guest.used:
                return {"ok": False, "reasons": ["the kernel has run something already"]}
            if not await asyncio.to_thread(_all_there, mounts):
                return {"ok": False, "reasons": ["a package that it uses is no longer in the cache"]}
            before = self._language.image
            if why_not := await asyncio.to_thread(self._language.use_image, image):
                return {"ok": False, "reasons": [why_not]}
            if image != before:
                self._mounts = {}  # those of the image that is left: nothing has run that might have added others
                self._restart("its boot image is another one")
            guest = await self._live()
            if self._language.image != image:
                raise GuestDied("no guest starts with its boot image")
            self.mount([each for each in mounts if self._mounts.get(each["point"]) != each])
            try:
                with guest.state_pipes.sending(parts):
                    found = await guest.move_state("load_state", {"reseed": reseed})
            except GuestDied:
                self._language.use_own_image()
                raise
            if found.get("ok") is not True:
                self._language.use_own_image()
                self._restart("half of a state may be in it")
                return {"ok": False, "reasons": found.get("reasons")}
            self._has_run = True
            guest.set_environment(settings().env)  # also none: those that the state had are gone from the settings
            return {"ok": True, "lost": found.get("lost"), "gone": found.get("gone")}

    def notify(self, op: str, content: dict[str, Any], request_id: str) -> bool:
        """Send an operation without a reply to a busy guest. Returns False if it is idle or has ended: use `request`
        instead."""
        if not self.guest.busy or self.guest.death is not None:
            return False
        self.guest.notify(op, content, request_id)
        return True

    async def _exchange(self, code: str) -> None:
        """Replace the guest before the first cell if the language has a more suitable one: no cell has left anything
        here. Not if the session has installed packages, before its guest ended: another image may have other versions
        of them."""
        if not self._mounts.keys() <= {package["point"] for package in self._language.mounts()}:
            return
        if await asyncio.to_thread(self._language.suits, code):
            return
        self._restart("another one is better for the first cell")

    def _restart(self, why: str) -> None:
        self._watcher.cancel()
        self.guest.kill(why)
        self.guest = self._start()

    async def _live(self) -> Guest:
        await self._started()
        if (ended := self.guest).death is not None:
            if ended.exit_code is not None and not ended.started:
                await asyncio.to_thread(self._language.mend, ended.exit_code)
            if self.guest is ended:  # otherwise `_watch` has replaced it meanwhile
                if ended.used:
                    self._language.use_own_image()
                self.guest = self._start()
            await self._started()
        if self.guest.death is not None:
            raise GuestDied(f"the sandbox could not start: {self.guest.death}")
        return self.guest

    async def _started(self) -> None:
        """Wait for the guest; kill one that does not become ready, since it cannot report why."""
        guest, end = self.guest, time.monotonic() + _START_SECONDS
        while not guest.is_ready:
            try:
                async with asyncio.timeout(_START_CHECK_SECONDS):
                    await guest.ready()
            except TimeoutError:
                if guest.death is not None:
                    return
                if cpu_seconds(guest.pid) > _START_CPU_SECONDS or time.monotonic() > end:
                    guest.kill("it never finishes starting")
                    return

    def interrupt(self, grace_seconds: float | None = None) -> None:
        """Interrupt the current request, if there is one, and cells that still wait for their turn or for the guest."""
        self._interrupts += 1
        self.guest.interrupt(grace_seconds=grace_seconds)

    def close(self) -> None:
        """End the guest for good; it has ended when this returns. From any thread, even if it has already ended."""
        self._closed = True
        self._loop.call_soon_threadsafe(self._watcher.cancel)
        guest = self.guest
        if guest.death is not None:
            return  # it was reaped: its id may have been reused
        self._loop.call_soon_threadsafe(guest.pause, False)  # otherwise nobody notices its end
        # WNOWAIT: the guest's own object reaps it, if it still runs.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(guest.pid, signal.SIGKILL)
            os.waitid(os.P_PID, guest.pid, os.WEXITED | os.WNOWAIT)


def _all_there(mounts: list[dict[str, str]]) -> bool:
    return all(Path(each["folder"]).is_dir() for each in mounts)


def _write(file: int, data: bytes) -> None:
    waiting = memoryview(data)
    while waiting:
        waiting = waiting[os.write(file, waiting) :]
