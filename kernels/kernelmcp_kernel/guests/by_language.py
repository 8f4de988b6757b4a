"""The guests of a kernel: one for its main language from the start, and one for each other language from its first
cell on. They share the sandbox directory, the limits and the queue, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kernelmcp_kernel import languages
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Spawned
from kernelmcp_kernel.runtime.identity import BuildError
from kernelmcp_kernel.settings import Quota, settings


class Guests:
    """A kernel's supervisors. For the thread of the event loop, but `interrupt` and `close` are for any."""

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
        self.main = GuestSupervisor(languages.main(), sandbox, on_frame, log, early)
        self._by_name = {languages.table()[0].name: self.main}

    def of(self, language: str) -> GuestSupervisor:
        """The guest of a language, started if there is none yet. Raises GuestDied where it cannot be."""
        if language not in self._by_name:
            chosen = languages.language(language)
            try:
                chosen.prepare()
                supervisor = GuestSupervisor(chosen, self._sandbox, self._on_frame, self._log)
            except (BuildError, OSError) as error:
                raise GuestDied(f"the sandbox could not start: {error}") from error
            supervisor.set_quota(self._quota)
            self._by_name[language] = supervisor
        return self._by_name[language]

    def set_quota(self, quota: Quota) -> None:
        """Apply a quota to every guest, and to those that come."""
        self._quota = quota
        for supervisor in self._by_name.values():
            supervisor.set_quota(quota)

    def interrupt(self) -> None:
        """Interrupt what runs. From any thread."""
        for supervisor in list(self._by_name.values()):
            supervisor.interrupt()

    def kill(self, reason: str) -> None:
        """End every guest that has run anything; the next cell gets a fresh one."""
        for supervisor in self._by_name.values():
            if supervisor.guest.used:
                supervisor.guest.kill(reason)

    def close(self) -> None:
        """End all guests for good. From any thread."""
        for supervisor in list(self._by_name.values()):
            supervisor.close()
