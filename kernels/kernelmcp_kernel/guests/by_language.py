"""The guests of a kernel: the main language's starts with the kernel, each other language's with its first cell. They
share the sandbox directory, the queue and the memory of the flavor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kernelmcp_kernel import languages
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest
from kernelmcp_kernel.guests.memory_watchdog import SharedMemoryWatchdog
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.runtime.build_identity import BuildError
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Spawned
from kernelmcp_kernel.settings import Quota, settings

# MiB for all guests together, in addition to the flavor's memory, which is WebAssembly's: compiled code, V8's heaps,
# buffers.
UNCOUNTED_MB = 256


class StartFailed(ValueError):
    """A language has no guest, and none could be started. Nothing is lost."""


class Guests:
    """A kernel's supervisors. For the event loop's thread; `close` may be called from any thread."""

    def __init__(
        self,
        sandbox: SandboxDirectory,
        on_frame: Callable[[Guest, Frame], None],
        log: logging.Logger,
        early: Spawned | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._on_frame = on_frame
        self._log = log
        self._quota = settings().quota
        self._closed = False
        self._starting = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._preparing: asyncio.Future[None] | None = None
        self.main = GuestSupervisor(languages.main_language(), sandbox, on_frame, log, early)
        self._by_name = {languages.table()[0].name: self.main}
        self._memory = SharedMemoryWatchdog(
            lambda: [supervisor.guest for supervisor in self._by_name.values()], settings().memory_mb + UNCOUNTED_MB
        )

    async def of(self, language: str, level: int = 0) -> GuestSupervisor:
        """Return a language's guest; start it if there is none yet. A level above 0 names an additional guest, for work
        that the others wait for. Raises StartFailed."""
        name = f"{language} {level}" if level else language
        async with self._starting:
            if (found := self._by_name.get(name)) is not None:
                return found
            try:
                return await self._start(language, name)
            except asyncio.CancelledError:
                if self._preparing is None or not self._preparing.cancelled():
                    raise
                raise StartFailed(f"interrupted while {language} was being prepared") from None
            except (BuildError, ImportError, OSError, GuestDied) as error:
                raise StartFailed(f"{language} could not start: {error}") from error
            finally:
                self._preparing = None

    async def _start(self, language: str, name: str) -> GuestSupervisor:
        chosen = languages.find(language)
        self._preparing = asyncio.ensure_future(asyncio.to_thread(chosen.prepare))
        await self._preparing
        if self._closed:
            raise GuestDied("the kernel is shutting down")
        started = GuestSupervisor(chosen, self._sandbox, self._on_frame, self._log)
        started.set_quota(self._quota)
        self._by_name[name] = started
        if self._closed:  # another thread may have closed it meanwhile, without seeing this one
            started.close()
        return started

    def running(self, language: str) -> GuestSupervisor | None:
        """The guest of a language, if it has run a cell or is the main one."""
        return self._by_name.get(language)

    def others(self) -> list[str]:
        """Languages besides the main one whose guests may have variables, or have lost them unnoticed."""
        return [
            name
            for name, each in self._by_name.items()
            if each is not self.main
            and (each.guest.has_variables or each.untold_loss is not None)
            and " " not in name  # of a level, which ends with its cell
        ]

    def pids(self) -> list[int]:
        """The process ids of all live guests."""
        return [each.guest.pid for each in self._by_name.values() if each.guest.death is None]

    def end_more(self) -> None:
        """End all guests of a language except its first."""
        for name in [name for name in self._by_name if " " in name]:
            self._by_name.pop(name).close()

    def set_quota(self, quota: Quota) -> None:
        """Apply a quota to every guest, including later ones."""
        self._quota = quota
        for supervisor in self._by_name.values():
            supervisor.set_quota(quota)

    def interrupt(self, grace_seconds: float | None = None) -> None:
        """Interrupt everything that runs or is about to run; a guest that still runs it after `grace_seconds` is ended.
        Where no request runs, operations without a reply are ended. The guest is told before this returns, so an answer
        to a host call that is sent afterwards cannot overtake the interrupt."""
        if self._preparing is not None:
            self._preparing.cancel()
        is_idle = not any(each.guest.busy for each in self._by_name.values())
        for supervisor in self._by_name.values():
            supervisor.interrupt(grace_seconds)
            if is_idle:
                supervisor.guest.end_background(with_operations=True)

    def pause(self, paused: bool) -> None:
        """Make every guest wait when it sends something, or let them continue."""
        for supervisor in self._by_name.values():
            supervisor.guest.pause(paused)

    def kill(self, reason: str) -> None:
        """End every guest that has run anything; the next cell gets a new one."""
        for supervisor in self._by_name.values():
            if supervisor.guest.used:
                supervisor.guest.kill(reason)

    def close(self) -> None:
        """End all guests for good. From any thread."""
        self._closed = True
        self._loop.call_soon_threadsafe(self._memory.stop)
        for supervisor in list(self._by_name.values()):
            supervisor.close()
