"""A shell guest without a kernel: started and confined as a kernel does it, asked over its pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmcp_kernel.languages.shell.language import LANGUAGE
from kernelmcp_kernel.runtime.directory import SandboxDirectory, open_directory
from kernelmcp_kernel.runtime.guest_process import Spawned, spawn_guest

from .driver import DEADLINE

Content = dict[str, Any]


@dataclass
class Apart:
    """What a command in a shell of its own has come to."""

    exit_code: int
    stdout: str
    stderr: str


class ShellGuest:
    def __init__(self, spawned: Spawned, sandbox: SandboxDirectory) -> None:
        self._spawned = spawned
        self._numbers = itertools.count(1)
        self.pid = spawned.pid
        self.workspace = Path(sandbox.workspace)
        self.frames: list[Content] = []
        """Of the newest request, without its reply."""
        self.answer_call: Callable[[Content], Content] = lambda call: {"error": "nobody is there"}
        self._buffer = b""
        assert self._frame()["type"] == "ready"

    def tell(self, op: str, content: Content) -> None:
        self._write({"op": op, "content": content})

    def start(self, op: str, **content: Any) -> int:
        """Send a request; its number."""
        number = next(self._numbers)
        self.frames = []
        self._write({"op": op, "id": f"r{number}", "number": number, "content": content})
        return number

    def interrupt(self, number: int) -> None:
        os.write(self._spawned.interrupts, struct.pack("<I", number))
        self._write({"op": "interrupt"})

    def finish(self) -> Content:
        """The reply. What else comes is in `frames`; host calls are answered."""
        while (frame := self._frame())["type"] != "reply":
            if frame["type"] == "call":
                answer = self.answer_call(frame["content"]["arguments"])
                self._write({"op": "result", "content": {"number": frame["content"]["number"], **answer}})
            self.frames.append(frame)
        return frame["content"]

    def execute(self, code: str, **content: Any) -> Content:
        self.start("execute", code=code, silent=False, execution_count=1, **content)
        return self.finish()

    def apart(self, code: str, cwd: str | None = None, stdin: bytes | None = None, **environment: str) -> Apart:
        given = None if stdin is None else base64.b64encode(stdin).decode()
        reply = self.execute(code, capture=True, cwd=cwd, environment=environment or None, stdin=given)
        assert reply["status"] == "ok"
        return Apart(reply["exit_code"], *(base64.b64decode(reply[name]).decode() for name in ("stdout", "stderr")))

    def text(self, name: str = "stdout") -> str:
        contents = [frame["content"] for frame in self.frames if frame["type"] == "stream"]
        return "".join(content["text"] for content in contents if content["name"] == name)

    def wait_for_text(self) -> None:
        while not self.text():
            self.frames.append(self._frame())

    def _write(self, message: Content) -> None:
        body = json.dumps(message).encode()
        data = struct.pack("<I", len(body)) + body
        while data:
            data = data[os.write(self._spawned.requests, data) :]

    def _frame(self) -> Content:
        end = time.monotonic() + DEADLINE
        while len(self._buffer) < 4 or len(self._buffer) < 4 + struct.unpack_from("<I", self._buffer)[0]:
            assert select.select([self._spawned.frames], [], [], max(0, end - time.monotonic()))[0], "no frame came"
            data = os.read(self._spawned.frames, 1 << 20)
            assert data, f"the guest has ended: {os.read(self._spawned.errors, 4000)!r}"
            self._buffer += data
        end_of_frame = 4 + struct.unpack_from("<I", self._buffer)[0]
        body, self._buffer = self._buffer[4:end_of_frame], self._buffer[end_of_frame:]
        return json.loads(body)


@contextmanager
def shell_guest() -> Iterator[ShellGuest]:
    sandbox = open_directory()
    LANGUAGE.prepare()
    spawned = spawn_guest(sandbox, LANGUAGE.launch(sandbox))
    try:
        yield ShellGuest(spawned, sandbox)
    finally:
        os.kill(spawned.pid, signal.SIGKILL)
        os.waitpid(spawned.pid, 0)
        for fd in (spawned.requests, spawned.frames, spawned.interrupts, spawned.errors):
            os.close(fd)
        sandbox.close(keep_files=False)
