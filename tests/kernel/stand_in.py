"""A process that does nothing in a guest's place: the test holds the other ends of its pipes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from typing import Any

from kernelmcp_kernel.runtime.guest_process import Spawned


class StandIn:
    """One process, which the `Guest` of it has to kill."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "1000"])
        requests_theirs, requests = os.pipe()
        frames, self._frames = os.pipe()
        interrupts_theirs, interrupts = os.pipe()
        errors, errors_theirs = os.pipe()
        state_out, state_out_theirs = os.pipe()
        state_in_theirs, state_in = os.pipe()
        self._theirs = [requests_theirs, self._frames, interrupts_theirs, errors_theirs]
        self._theirs += [state_out_theirs, state_in_theirs]
        pipes = requests, frames, interrupts, errors
        self.spawned = Spawned(self._process.pid, *pipes, state_out=state_out, state_in=state_in)

    def say(self, frame_type: str, request: str = "", **content: Any) -> None:
        body = json.dumps({"type": frame_type, "id": request, "content": content}).encode()
        os.write(self._frames, struct.pack("<I", len(body)) + body)

    def hear(self) -> bytes:
        """Read what has arrived."""
        os.set_blocking(self._theirs[0], False)
        try:
            return os.read(self._theirs[0], 2**20)
        except BlockingIOError:
            return b""

    def end(self) -> None:
        """Close the pipes, as the end of a process does. May be called twice."""
        self._process.returncode = 0  # the Guest waits for it
        while self._theirs:
            os.close(self._theirs.pop())
