"""A guest process without a kernel process, whose state can be saved and loaded."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.languages.interface import Language
from kernelmcp_kernel.languages.python.language import Python
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import Launch, spawn_guest

from .driver import DEADLINE

LEAD_BYTES = 16


class StateGuest:
    """One guest process. What it says besides replies is collected in `output`."""

    def __init__(
        self,
        folder: Path,
        change: Callable[[Launch], Launch] = lambda launch: launch,
        language: type[Language] = Python,
    ) -> None:
        self._directory = SandboxDirectory(folder)
        self.workspace, self.offered = self._directory.workspace, self._directory.offered
        self._spawned = spawn_guest(self._directory, change(language().launch(self._directory)))
        self._buffer = b""
        self._cells = 0
        self.output: list[str] = []
        self.wait_for("ready")

    def send(self, op: str, **more: Any) -> None:
        self.send_together({"op": op, **more})

    def send_together(self, *requests: dict[str, Any]) -> None:
        """In one write."""
        texts = [json.dumps(request).encode() for request in requests]
        data = memoryview(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        while data:
            data = data[os.write(self._spawned.requests, data) :]

    def interrupt(self) -> None:
        self.signal(self._cells)

    def signal(self, number: int) -> None:
        os.write(self._spawned.interrupts, struct.pack("<I", number))

    def frames(self) -> Iterator[dict[str, Any]]:
        """All frames to come. Raises EOFError when the guest has ended."""
        while True:
            while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (n := struct.unpack_from("<I", self._buffer)[0]):
                frame, self._buffer = json.loads(self._buffer[4 : 4 + n]), self._buffer[4 + n :]
                yield frame
            if not select.select([self._spawned.frames], [], [], 3 * DEADLINE)[0]:
                raise TimeoutError("the guest says nothing")
            data = os.read(self._spawned.frames, 1 << 20)
            if not data:
                raise EOFError(os.read(self._spawned.errors, 65536).decode(errors="replace")[-2000:])
            self._buffer += data

    def wait_for(self, kind: str) -> dict[str, Any]:
        for frame in self.frames():
            content = frame["content"]
            if frame["type"] == kind:
                return dict(content)
            if frame["type"] == "stream":
                self.output.append(content["text"])
            elif frame["type"] == "execute_result":
                self.output.append(content["data"]["text/plain"])
            elif frame["type"] == "call":
                self.send("result", content={"number": content["number"], "value": None, "error": "refused"})
        raise AssertionError("unreachable")

    def begin(self, code: str) -> None:
        self._cells += 1
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": False, "execution_count": self._cells}
        self.output = []
        self.send("execute", id=f"r{self._cells}", number=self._cells, content=content)

    def finish(self) -> str:
        """What the cell printed and its result, or its error."""
        reply = self.wait_for("reply")
        text = "".join(self.output).strip()
        return text if reply["status"] == "ok" else f"{text}{reply['ename']}: {reply['evalue']}"

    def run(self, code: str) -> str:
        self.begin(code)
        return self.finish()

    def save(self, **how: Any) -> tuple[dict[str, Any], bytes]:
        """The answer, and the state that was written before it."""
        data = bytearray()
        done = threading.Event()

        def read() -> None:
            while True:
                is_last = done.is_set()  # asked first: what was written before the answer is there then
                if select.select([self._spawned.state_out], [], [], 0.02)[0]:
                    if not (found := os.read(self._spawned.state_out, 1 << 20)):
                        return
                    data.extend(found)
                elif is_last:
                    return

        reader = threading.Thread(target=read)
        reader.start()
        try:
            self.send("save_state", content=how)
            answer = self.wait_for("state")
        finally:
            done.set()
            reader.join()
        return answer, bytes(data)

    def load(self, data: bytes, *, end: bool = False, reseed: bool = False) -> dict[str, Any]:
        """The answer. `end`: close the pipe after the data."""

        def write() -> None:
            rest = memoryview(data)
            with contextlib.suppress(BrokenPipeError):
                while rest:
                    rest = rest[os.write(self._spawned.state_in, rest[: 1 << 20]) :]
            if end:
                os.close(self._spawned.state_in)

        writer = threading.Thread(target=write)
        self.send("load_state", content={"reseed": reseed})
        writer.start()
        try:
            return self.wait_for("state")
        finally:
            writer.join()

    def exit_status(self) -> str:
        """The status with which it has ended, as it says it."""
        try:
            for _ in self.frames():
                pass
        except EOFError as error:
            return str(error).rpartition("\0")[2]
        raise AssertionError("unreachable")

    def follow(self, other: StateGuest) -> None:
        """Give it the files and the count of cells of a guest that has ended, as the server does for a session."""
        self._cells = other._cells
        for directory in (self._directory, other._directory):
            directory.path.chmod(0o700)
        for name in ("workspace", "tmp"):
            shutil.rmtree(self._directory.path / name)
            (other._directory.path / name).rename(self._directory.path / name)
        self._directory.seal()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._spawned.pid, 9)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._spawned.pid, 0)
        spawned = self._spawned
        ours = (
            spawned.requests,
            spawned.frames,
            spawned.interrupts,
            spawned.errors,
            spawned.state_out,
            spawned.state_in,
        )
        for fd in ours:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._directory.close()


@contextlib.contextmanager
def starting(folders: pytest.TempPathFactory, language: type[Language] = Python) -> Iterator[Callable[[], StateGuest]]:
    """Starts guests, and ends them at the end."""
    guests: list[StateGuest] = []

    def start() -> StateGuest:
        guests.append(StateGuest(folders.mktemp("guest") / "sandbox", language=language))
        return guests[-1]

    yield start
    for guest in guests:
        guest.close()


def header_of(data: bytes) -> dict[str, Any]:
    length = struct.unpack_from("<I", data, 8)[0]
    return dict(json.loads(data[LEAD_BYTES : LEAD_BYTES + length]))


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The state with another header, whose checksum is right."""
    length = struct.unpack_from("<I", data, 8)[0]
    header = header_of(data)
    change(header)
    text = json.dumps(header).encode()
    return data[:8] + struct.pack("<II", len(text), zlib.crc32(text)) + text + data[LEAD_BYTES + length :]
