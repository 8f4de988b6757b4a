"""A process that does nothing in a guest's place: the test holds the other ends of its pipes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from contextlib import suppress
from typing import Any

from kernelmcp_kernel.runtime.guest_process import Spawned


class StandIn:
    """One process, which the `Guest` of it has to kill."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "1000"])
        self.requests, requests = os.pipe()
        frames, self.frames = os.pipe()
        self._interrupts, interrupts = os.pipe()
        errors, self._errors = os.pipe()
        state_out, self._state_out = os.pipe()
        self._state_in, state_in = os.pipe()
        pipes = requests, frames, interrupts, errors
        self.spawned = Spawned(self._process.pid, *pipes, state_out=state_out, state_in=state_in)

    def say(self, frame_type: str, request: str = "", **content: Any) -> None:
        body = json.dumps({"type": frame_type, "id": request, "content": content}).encode()
        os.write(self.frames, struct.pack("<I", len(body)) + body)

    def end(self) -> None:
        """Close the pipes, as the end of a process does."""
        self._process.returncode = 0  # the Guest has waited for it
        for fd in (self.requests, self.frames, self._interrupts, self._errors, self._state_out, self._state_in):
            with suppress(OSError):
                os.close(fd)
